"""Hand-made dumps for tests of the reader: records.py tuples, packed with msgpack, and safetensors written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import torch
import xxhash

from aten_dump.store import records as r

STATISTICS = ["count", "min", "max", "mean", "l2norm", "std", "nan", "posinf", "neginf", "zero", "negative", "positive"]
CONFIG = {"level": "mix", "data": "full", "io": "all", "hash": "xxh3", "statistics": STATISTICS, "max_bytes": None}
START_NS = 1_700_000_000_000_000_000
SHARD_HEADER_BYTES = 1 << 14


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of the whole storage."""
    return bytes(tensor.untyped_storage())


class Builder:
    """Makes one step and rank. `emit` takes any record; the other methods make the common ones."""

    def __init__(self, root: Path, step: int = 0, rank: int = 0, config: dict[str, Any] | None = None) -> None:
        self.root = root
        self.directory = root / f"step{step}" / f"rank{rank}"
        self.directory.mkdir(parents=True)
        self.records: list[Any] = []
        self.data = bytearray()
        self.blobs: list[r.Blob] = []
        self.ids: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self.ops: dict[tuple[Any, ...], int] = {}
        self.keep: list[torch.Tensor] = []
        self.storages: dict[int, int] = {}
        self.stored: dict[tuple[int, int], int] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.emit(r.Header(r.HEADER, r.FORMAT_VERSION, step, rank, 1, START_NS, 1234, {**CONFIG, **(config or {})}))
        self.emit(r.Shard(r.SHARD, 0, SHARD_HEADER_BYTES))

    def emit(self, record: Any) -> None:
        self.records.append(record)

    def next(self, what: str) -> int:
        self.ids[what] = self.ids.get(what, 0) + 1
        return self.ids[what]

    def text(self, text: str) -> int:
        if not text:
            return 0
        if text not in self.texts:
            self.texts[text] = self.next("text")
            self.emit(r.Text(r.TEXT, self.texts[text], text))
        return self.texts[text]

    def op(self, kind: str, op: str, prefix: str, api: str, arguments: tuple[str, ...] = ()) -> int:
        key = (kind, op, prefix, api)
        if key not in self.ops:
            self.ops[key] = self.next("op")
            self.emit(r.Op(r.OP, self.ops[key], r.CALL_KINDS.index(kind), op, prefix, api, list(arguments)))
        return self.ops[key]

    def stack(self, *frames: tuple[str, int, str, bool]) -> int:
        """Make a stack; frames are given innermost first."""
        parent = 0
        for file, line, function, user in reversed(frames):
            frame = self.next("frame")
            self.emit(r.Frame(r.FRAME, frame, self.text(file), line, self.text(function), user))
            number = self.next("stack")
            self.emit(r.Stack(r.STACK, number, parent, frame))
            parent = number
        return parent

    def blob(self, content: bytes, dtype: str = "U8", shape: list[int] | None = None) -> int:
        number = self.next("blob")
        blob = r.Blob(
            r.BLOB,
            number,
            0,
            len(self.data),
            len(content),
            dtype,
            shape or [len(content)],
            xxhash.xxh3_64_digest(content),
        )
        self.data += content
        self.blobs.append(blob)
        self.emit(blob)
        return number

    def storage(self, nbytes: int, device: str = "cpu") -> int:
        number = self.next("storage")
        self.emit(r.Storage(r.STORAGE, number, nbytes, self.text(device)))
        return number

    def value(
        self,
        tensor: torch.Tensor,
        *,
        version: int = 0,
        flags: int = 0,
        store: str | None = "strided",
        extra: dict[str, Any] | None = None,
        device: str = "cpu",
        sample: int = 4,
        raw: torch.Tensor | None = None,
    ) -> int:
        """Record a strided tensor; `store` is its data layout or None, `raw` what is stored instead of it."""
        self.keep.append(tensor)
        pointer = tensor.untyped_storage()._cdata
        if pointer not in self.storages:
            self.storages[pointer] = self.storage(tensor.untyped_storage().nbytes(), device)
        number = self.next("value")
        stored = raw if raw is not None else tensor
        geometry = [list(tensor.shape), list(tensor.stride())]
        self.emit(
            r.Value(
                r.VALUE,
                number,
                self.storages[pointer],
                version,
                tensor.storage_offset(),
                self.text(str(tensor.dtype).removeprefix("torch.")),
                *geometry,
                flags | (r.REQUIRES_GRAD if tensor.requires_grad else 0),
                extra,
            )
        )
        if store is not None:
            self._store(number, stored, version, store, sample)
        return number

    def _store(self, number: int, tensor: torch.Tensor, version: int, layout: str, sample: int) -> None:
        code = r.LAYOUTS.index(layout)
        if layout == "strided":
            key = (tensor.untyped_storage()._cdata, version)
            if key not in self.stored:
                self.stored[key] = self.blob(raw_bytes(tensor))
            offset = tensor.storage_offset() * tensor.element_size()
            self.emit(r.Data(r.DATA, number, self.stored[key], offset, code))
            return
        dense = tensor.contiguous().clone().reshape(-1)
        if layout == "sample":
            dense = dense[:sample].clone()
        self.emit(r.Data(r.DATA, number, self.blob(raw_bytes(dense)), 0, code))

    def call(
        self,
        op: int,
        *,
        id: int | None = None,
        parent: int = 0,
        n: int = 0,
        repeat: int = 0,
        phase: str = "forward",
        args: list[Any] = (),  # type: ignore[assignment]
        kwargs: dict[str, Any] | None = None,
        outputs: Any = None,
        written: list[Any] | None = None,
        forward: int = 0,
        module: str = "",
        stack: int = 0,
        sequence_nr: int | None = None,
        error: str | None = None,
        start_ns: int | None = None,
        duration_ns: int = 1000,
    ) -> int:
        if id is None:
            id = self.next("call")
        else:
            self.ids["call"] = max(self.ids.get("call", 0), id)
        start_ns = id * 10_000 if start_ns is None else start_ns
        self.emit(
            r.Call(
                r.CALL, id, parent, op, n, repeat, r.PHASES.index(phase), 0, start_ns, duration_ns, sequence_nr, stack,
                self.text(module), forward, list(args), kwargs, outputs, written, error,
            )
        )  # fmt: skip
        return id

    def open(self, op: int, *, id: int, parent: int = 0, n: int = 0, module: str = "") -> int:
        self.ids["call"] = max(self.ids.get("call", 0), id)
        self.emit(r.Open(r.OPEN, id, parent, op, n, 0, 0, id * 10_000, 0, self.text(module)))
        return id

    def finish(self, commit: bool = True, torn: bytes = b"", lose_bytes: int = 0) -> Path:
        """Write the files; returns the dump's root. An interrupted one keeps its shard ``.partial``."""
        packed = b"".join(msgpack.packb(list(record)) for record in self.records)
        first = len(packed)
        packed += self._check(packed, 0)
        if commit:
            calls, values = self.ids.get("call", 0), self.ids.get("value", 0)
            sizes = [SHARD_HEADER_BYTES + len(self.data)]
            done = r.Commit(r.COMMIT, calls, values, len(self.blobs), len(self.data), sizes, {"capture": 0.5})
            packed += msgpack.packb(list(done))
            packed += self._check(packed, first)
        (self.directory / "index.msgpack").write_bytes(packed + torn)
        self._write_shard(commit, lose_bytes)
        return self.root

    @staticmethod
    def _check(packed: bytes, start: int) -> bytes:
        return msgpack.packb(list(r.Check(r.CHECK, len(packed), xxhash.xxh3_64_digest(packed[start:]))))

    def _write_shard(self, commit: bool, lose_bytes: int) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for blob in self.blobs:
            ends = [blob.offset, blob.offset + blob.nbytes]
            header[str(blob.id)] = {"dtype": blob.dtype, "shape": list(blob.shape), "data_offsets": ends}
        size = SHARD_HEADER_BYTES - 8
        text = json.dumps(header, separators=(",", ":")).encode().ljust(size) if commit else bytes(size)
        name = "shard-00000.safetensors" + ("" if commit else ".partial")
        body = bytes(self.data)[: len(self.data) - lose_bytes]
        (self.directory / name).write_bytes(size.to_bytes(8, "little") + text + body)


def value(number: int) -> list[int]:
    """Return the tree of a value."""
    return [r.TREE_VALUE, number]
