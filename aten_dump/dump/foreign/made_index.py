"""Makes the records of an index in memory, out of what another tool recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import torch
import xxhash

from ...errors import FormatError
from ...store import records as r
from ...store.index_reader import IndexData
from ...store.raw_rows import split_records
from ...torch_names import DTYPES

_MOST_DIMENSIONS: Final = 64  # that torch has
_MOST_BYTES: Final = 1 << 63
COMPACT: Final = r.LAYOUTS.index("compact")
Load = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class MadeCall:
    """What is known of a call."""

    kind: str
    op: str
    prefix: str
    api: str
    n: int
    phase: str
    module: str = ""
    thread: int = 0
    start_ns: int = 0


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """What is known of a tensor. `load` reads it from its file; None without one."""

    dtype: str
    shape: tuple[int, ...]
    statistics: dict[str, Any] = field(default_factory=dict)
    digest: bytes | None = None
    requires_grad: bool = False
    load: Load | None = None


class MadeIndex:
    """Records of one step and rank, and how the bytes of each blob are read.

    Args:
        directory: where the other tool's files are.
        step: number of the step.
        rank: number of the rank.
        world_size: ranks that recorded.
        config: what stands for the DumpConfig; ``statistics`` names them in the order in which they are kept.
    """

    def __init__(self, directory: Path, step: int, rank: int, world_size: int, config: dict[str, Any]) -> None:
        self._directory = directory
        self._statistics = tuple(config["statistics"])
        self.header = r.Header(r.HEADER, r.FORMAT_VERSION, step, rank, world_size, 0, 0, config)
        self._records: list[tuple[Any, ...]] = []
        self._texts: dict[str, int] = {}
        self._ops: dict[tuple[Any, ...], int] = {}
        self._frames: dict[tuple[int, int, int, bool], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}  # by the caller's stack and the frame
        self.loads: dict[int, Load] = {}  # by blob id
        self.absent: list[str] = []  # files that a table names and that are not there
        self.blob_bytes = 0
        self._values = 0
        self.calls = 0

    def text(self, text: str) -> int:
        """Return the id of a text; 0 for none."""
        if text and text not in self._texts:
            self._texts[text] = len(self._texts) + 1
            self._records.append(r.Text(r.TEXT, self._texts[text], text))
        return self._texts.get(text, 0)

    def _op(self, call: MadeCall) -> int:
        key = (r.CALL_KINDS.index(call.kind), call.op, call.prefix, call.api)
        if key not in self._ops:
            self._ops[key] = len(self._ops) + 1
            self._records.append(r.Op(r.OP, self._ops[key], *key, []))
        return self._ops[key]

    def stack(self, frames: Sequence[tuple[str, int, str, bool]]) -> int:
        """Return the id of a stack of (file, line, function, is the user's), innermost first."""
        parent = 0
        for file, line, function, user in reversed(frames):
            frame = (self.text(file), line, self.text(function), user)
            number = self._frames.get(frame)
            if number is None:
                number = self._frames[frame] = len(self._frames) + 1
                self._records.append(r.Frame(r.FRAME, number, *frame))
            key = (parent, number)
            if key not in self._stacks:
                self._stacks[key] = len(self._stacks) + 1
                self._records.append(r.Stack(r.STACK, self._stacks[key], parent, number))
            parent = self._stacks[key]
        return parent

    def tensor(self, facts: MadeTensor) -> list[int]:
        """Add a value and return its tree."""
        dtype = DTYPES.get(facts.dtype)
        if dtype is None:
            shown = f"{facts.dtype!r:.80}"
            raise FormatError(f"a tensor in {self._directory} has dtype {shown}, which torch does not have")
        shape = self._checked(facts.shape, dtype.itemsize)
        self._values += 1
        number = self._values
        nbytes = math.prod(shape) * dtype.itemsize
        self._records.append(r.Storage(r.STORAGE, number, nbytes, self.text("cpu")))
        flags = r.REQUIRES_GRAD if facts.requires_grad else 0
        dtype_id = self.text(facts.dtype)
        self._records.append(r.Value(r.VALUE, number, number, 0, 0, dtype_id, shape, _row_major(shape), flags))
        numbers = [facts.statistics.get(name) for name in self._statistics]
        if any(one is not None for one in numbers):
            self._records.append(r.Statistics(r.STATISTICS, number, numbers))
        if facts.digest is not None:
            self._records.append(r.Hash(r.HASH, number, facts.digest))
        if facts.load is not None:
            self.loads[number] = facts.load
            self.blob_bytes += nbytes
            # Not of the bytes, which nobody has read: a checksum that no other tensor has.
            checksum = xxhash.xxh3_64_digest(f"{self._directory.absolute()}:{number}".encode())
            self._records.append(r.Blob(r.BLOB, number, 0, 0, nbytes, "U8", [nbytes], checksum))
            self._records.append(r.Data(r.DATA, number, number, 0, COMPACT))
        return [r.TREE_VALUE, number]

    def _checked(self, shape: tuple[int, ...], itemsize: int) -> list[int]:
        """Return the sizes of a tensor that there can be: its elements, and those of its strides, have numbers."""
        if any(size < 0 for size in shape):
            raise FormatError(f"a tensor in {self._directory} has shape {shape!r:.80}; no size may be negative")
        if len(shape) > _MOST_DIMENSIONS or math.prod(max(size, 1) for size in shape) * itemsize >= _MOST_BYTES:
            raise FormatError(f"a tensor in {self._directory} has shape {shape!r:.80}, which is none of a tensor")
        return list(shape)

    def call(self, facts: MadeCall, *, parent: int = 0, forward: int = 0, stack: int = 0, **trees: Any) -> int:
        """Add a call and return its id; `trees` are args, kwargs and outputs."""
        self.calls += 1
        phase = r.PHASES.index(facts.phase)
        head = (r.CALL, self.calls, parent, self._op(facts), facts.n, 0, phase, facts.thread, facts.start_ns, 0, None)
        self._records.append(r.Call(*head, stack, self.text(facts.module), forward, **trees))
        return self.calls

    def gradient(self, name: str, tree: list[int]) -> None:
        """Record that a value is the gradient of a parameter."""
        self._records.append(r.Gradient(r.GRADIENT, name, tree[1], 0))

    def note(self, code: str, message: str, count: int = 1) -> None:
        """Add a note for the reader of the dump."""
        self._records.append(r.Note(r.NOTE, code, message, count))

    def finish(self) -> IndexData:
        """Return the index."""
        commit = r.Commit(r.COMMIT, self.calls, self._values, len(self.loads), self.blob_bytes, [], {})
        try:
            data = b"".join(msgpack.packb(tuple(record)) for record in (self.header, *self._records, commit))
        except (OverflowError, ValueError) as error:
            raise FormatError(f"{self._directory} has a number or text that no dump has: {error!s:.200}") from error
        rows, unknown = split_records(data, str(self._directory))
        return IndexData(self._directory, self.header, commit, rows, unknown, len(data), 0, 0, None)


def _row_major(shape: list[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return strides[::-1] if shape else []
