"""A reader of one step and rank, written from docs/format.md alone: it imports nothing of aten_dump."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import torch
import xxhash
from safetensors import safe_open

PHASES = ("forward", "recompute", "backward", "optimizer")
KINDS = ("aten", "api", "module", "node")
DEFAULTS = {7: (8, [0, None]), 15: (10, [None, 0, 0, 0, [], None, None, None, None])}  # first field, values
UNDEFINED, CONJUGATE, NEGATIVE, OPAQUE = 1, 2, 4, 16


def good_bytes(data: bytes) -> bytes:
    """Section 2.1: the bytes that the check records vouch for."""
    good = start = 0
    form = rb"(?=\x93\x13([\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})\xc4\x08(.{8}))"
    for at in re.finditer(form, data, re.DOTALL):
        number = msgpack.unpackb(at[1])
        if number != at.start():
            continue  # bytes in the middle of another record
        if xxhash.xxh3_64_digest(data[start:number]) != at[2]:
            break
        start, good = number, number + 2 + len(at[1]) + 10
    return data[:good]


class Step:
    """The calls and values of one folder step*/rank*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unpacker = msgpack.Unpacker(strict_map_key=False, use_list=True, max_buffer_size=0)
        unpacker.feed(good_bytes((folder / "index.msgpack").read_bytes()))
        self.rows: dict[int, list[Any]] = {}
        for row in unpacker:
            first, values = DEFAULTS.get(row[0], (len(row), []))
            self.rows.setdefault(row[0], []).append(row + values[len(row) - first :])
        if not self.rows.get(1) or self.rows[1][0][1] != 1:
            raise ValueError("no index of format version 1")
        self.texts = {row[1]: row[2] for row in self.rows.get(2, [])}
        self.ops = {row[1]: row for row in self.rows.get(3, [])}
        self.shards = {row[1]: row[2] for row in self.rows.get(8, [])}
        self.values, self.blobs, self.data = ({row[1]: row for row in self.rows.get(kind, [])} for kind in (7, 9, 10))

    def calls(self) -> list[dict[str, Any]]:
        """Section 5.2: the calls in order of execution."""
        found = []
        for row in sorted(self.rows.get(15, []), key=lambda row: row[1]):
            op = self.ops[row[3]]
            name = f"{op[4]}.{op[5]}.{row[4]}.{PHASES[row[6]]}" + (f".{row[5]}" if row[5] else "")
            call = {"name": name, "kind": KINDS[op[2]], "phase": PHASES[row[6]], "op": op[3], "error": row[18]}
            trees = {"args": [1, *row[14]], "kwargs": [3, *sum((row[15] or {}).items(), ())], "outputs": row[16]}
            found.append(call | {field: self.tree(tree) for field, tree in trees.items()})
        return found

    def tree(self, item: Any) -> Any:
        """Section 5.1; a tensor is ("value", id)."""
        if not isinstance(item, list):
            return item
        tag, *rest = item
        if tag in (1, 2):
            return [list, tuple][tag - 1](map(self.tree, rest))
        if tag == 3:
            return {key: self.tree(value) for key, value in zip(rest[::2], rest[1::2], strict=True)}
        names = {0: "value", 4: "dtype", 5: "device", 6: "memory_format", 7: "layout", 8: "generator", 9: "complex"}
        return (names.get(tag, "object"), *rest)

    def blob(self, number: int) -> bytes:
        """Section 3: the bytes of a blob, from a finished shard or a growing one."""
        shard, offset, nbytes = self.blobs[number][2:5]
        path = self.folder / f"shard-{shard:05d}.safetensors"
        with open(path if path.exists() else f"{path}.partial", "rb") as file:
            file.seek(self.shards[shard] + offset)
            return file.read(nbytes)

    def tensor(self, number: int) -> torch.Tensor | None:
        """Section 4: the elements of a value; None where they were not stored. A sample is 1-D."""
        dtype, shape, stride, flags = self.values[number][5:9]
        if number not in self.data or self.data[number][2] not in self.blobs or flags & (UNDEFINED | OPAQUE):
            return None
        blob, offset, layout = self.data[number][2:5]
        kind = getattr(torch, self.texts[dtype])
        raw = bytearray(self.blob(blob)[offset:])
        del raw[len(raw) // kind.itemsize * kind.itemsize :]
        flat = torch.frombuffer(raw, dtype=torch.uint8).view(kind) if raw else torch.empty(0, dtype=kind)
        result = flat if layout == 2 else flat.as_strided(shape, stride) if layout == 0 else flat.view(shape)
        result = result.conj() if flags & CONJUGATE else result
        return torch._neg_view(result) if flags & NEGATIVE else result

    def stock(self, shard: int) -> dict[str, torch.Tensor]:
        """The tensors of a finished shard as stock safetensors gives them."""
        with safe_open(self.folder / f"shard-{shard:05d}.safetensors", "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
