"""Makes a recording of any length out of a real one: its records again and again, with new ids."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.shard_reader import ShardReader
from aten_dump.store.writing.index_writer import INDEX_FILE
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.writer import Writer

_ONCE = (r.TEXT, r.OP, r.FRAME, r.STACK)
_EVERY = 4096  # records between two looks at how many wait


def repeat_recording(source: Path, target: Path, calls: int, copies: int = 1) -> Path:
    """Write step 0, rank 0 of `target` with at least so many calls, from the records of the folder `source`.

    Each value is there `copies` times; calls name the last. Tensors are stored once; the values of all rounds share
    their bytes.
    """
    data = read_index(source)
    assert data.header is not None
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False)
    unpacker.feed((source / INDEX_FILE).read_bytes())
    rows = list(unpacker)
    by_kind = {kind: [row for row in rows if row[0] == kind] for kind in r.RECORD_TYPES}
    writer = Writer(target, 0, WriterSettings(queue_bytes=64 << 20, shard_bytes=1 << 30))
    writer.begin_step(data.header._replace(step=0, rank=0))
    for row in rows:
        if row[0] in _ONCE:
            writer.emit(row)
    reader = ShardReader(source, by_kind[r.SHARD])
    blobs = {0: 0} | {blob.id: _store(writer, blob, reader) for blob in data.records(r.BLOB)}
    rounds = -(-calls // len(by_kind[r.CALL]))
    repeat = _Repeat(by_kind, blobs, copies)
    repeated = [row for row in rows if row[0] in repeat.kinds]
    for number in range(rounds):
        repeat.round = number
        for at, row in enumerate(repeated):
            record = repeat.kinds[row[0]](row)
            for less in range(copies - 1 if row[0] == r.VALUE else 0, 0, -1):
                writer.emit((r.VALUE, record[1] - less, *record[2:]))
            writer.emit(record)
            if at % _EVERY == 0:
                writer.wait_for_room()
    writer.end_step(rounds * len(by_kind[r.CALL]), rounds * len(by_kind[r.VALUE]) * copies, {})
    writer.close()
    return target / "step0" / "rank0"


def _store(writer: Writer, blob: r.Blob, reader: ShardReader) -> int:
    source = reader.read(blob)

    def fill(offset: int, address: int, nbytes: int) -> None:
        ctypes.memmove(address, source.ctypes.data + offset, nbytes)

    return writer.store(blob.dtype, list(blob.shape), blob.nbytes, fill)


class _Repeat:
    """The records of one round."""

    def __init__(self, rows: dict[int, list[Any]], blobs: dict[int, int], copies: int) -> None:
        self.round = 0
        self._copies = copies
        self._blobs = blobs
        self._last = {kind: max((row[1] for row in rows[kind]), default=0) for kind in (r.CALL, r.VALUE, r.STORAGE)}
        labels = {row[1]: (row[4], row[5]) for row in rows[r.OP]}
        names: dict[Any, int] = {}
        for row in rows[r.CALL]:
            names[labels[row[3]]] = max(row[4] + 1, names.get(labels[row[3]], 0))
        self._names = {op: names.get(label, 0) for op, label in labels.items()}
        self.kinds: dict[int, Callable[[Any], tuple[Any, ...]]] = {
            r.STORAGE: lambda row: (row[0], self._new(r.STORAGE, row[1]), *row[2:]),
            r.VALUE: lambda row: (row[0], self._value(row[1]), self._new(r.STORAGE, row[2]), *row[3:]),
            r.DATA: lambda row: (row[0], self._value(row[1]), self._blobs[row[2]], *row[3:]),
            r.STATISTICS: lambda row: (row[0], self._value(row[1]), *row[2:]),
            r.HASH: lambda row: (row[0], self._value(row[1]), *row[2:]),
            r.SAME: lambda row: (row[0], self._value(row[1]), self._value(row[2]), *row[3:]),
            r.OPEN: lambda row: (*self._begun(row), *row[5:]),
            r.CALL: self._call,
            r.SAVED: lambda row: (row[0], self._new(r.CALL, row[1]), row[2], [self._value(v) for v in row[3]]),
        }

    def _new(self, kind: int, number: int) -> int:
        return number and number + self.round * self._last[kind]

    def _value(self, number: int) -> int:
        return self._new(r.VALUE, number) * self._copies

    def _begun(self, row: Any) -> tuple[Any, ...]:
        n = row[4] + self.round * self._names[row[3]]
        return row[0], self._new(r.CALL, row[1]), self._new(r.CALL, row[2]), row[3], n

    def _call(self, row: Any) -> tuple[Any, ...]:
        call = r.Call(*row)
        call = call._replace(
            forward=self._new(r.CALL, call.forward),
            args=[self._tree(tree) for tree in call.args],
            kwargs=call.kwargs and {name: self._tree(tree) for name, tree in call.kwargs.items()},
            outputs=self._tree(call.outputs),
            written=call.written and [self._tree(tree) for tree in call.written],
        )
        return *self._begun(row), *call[5:]

    def _tree(self, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return tree
        if tree[0] == r.TREE_VALUE:
            return [r.TREE_VALUE, self._value(tree[1])]
        if tree[0] in (r.TREE_LIST, r.TREE_TUPLE, r.TREE_DICT):
            return [tree[0], *(self._tree(item) for item in tree[1:])]
        return list(tree)
