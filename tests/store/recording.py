"""What the tests of the store write: small steps with records of every kind that matters."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.shard_reader import ShardReader
from aten_dump.store.sink import Sink
from aten_dump.store.writing.host_bytes import HostBytes
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.writer import Writer

RANK = Path("step0/rank0")


def header(step: int = 0, rank: int = 0, **config: Any) -> r.Header:
    return r.Header(r.HEADER, r.FORMAT_VERSION, step, rank, 1, 1_700_000_000_000_000_000, 1, config)


def writer(root: Path, **options: Any) -> Writer:
    rank = options.pop("rank", 0)
    return Writer(root, rank, WriterSettings(**{"queue_bytes": 1 << 20, "shard_bytes": 1 << 30, **options}))


def fill_from(array: np.ndarray[Any, Any]) -> Callable[[int, int, int], None]:
    """Return a fill that copies the bytes of `array`, piece by piece."""
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def fill(offset: int, address: int, nbytes: int) -> None:
        assert address % 64 == 0
        assert offset % 64 == 0
        assert nbytes % 64 == 0 or offset + nbytes == source.nbytes
        ctypes.memmove(address, source.ctypes.data + offset, nbytes)

    return fill


def store(sink: Sink, array: np.ndarray[Any, Any], dtype: str, shape: list[int] | None = None) -> int:
    return sink.store(dtype, list(array.shape) if shape is None else shape, array.nbytes, fill_from(array))


def in_threads(work: Callable[[int], None], count: int = 6) -> None:
    """Call `work` with 0, 1, ... at the same time, and wait for all of them."""
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call(number: int, *, args: list[Any] | None = None, outputs: Any = None, op: int = 1, **fields: Any) -> r.Call:
    base = r.Call(
        r.CALL, number, 0, op, number, 0, 0, 0, number * 10, 5, number, 0, 0, 0, args or [], None, outputs, None, None
    )
    return base._replace(**fields)


def noise(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def begin(sink: Sink, step: int = 0) -> None:
    """Begin a step, with what `call` and `bare_value` name."""
    sink.begin_step(header(step))
    sink.emit(r.Text(r.TEXT, 1, "float32"))
    sink.emit(r.Text(r.TEXT, 2, "cpu"))
    sink.emit(r.Op(r.OP, 1, 0, "aten::relu", "Aten", "relu", ["self"]))


def bare_value(number: int) -> r.Value:
    """A value that is no tensor's memory."""
    return r.Value(r.VALUE, number, 0, 0, 0, 0, [], [], 0, None)


def small_step(sink: Sink, step: int = 0, calls: int = 5) -> None:
    """Write a step in which each call has one float32 value of its own."""
    begin(sink, step)
    for number in range(1, calls + 1):
        array = np.arange(number, dtype=np.float32) + step
        sink.emit(r.Storage(r.STORAGE, number, array.nbytes, 2))
        sink.emit(r.Value(r.VALUE, number, number, 0, 0, 1, [number], [1], 0, None))
        blob = store(sink, array, "F32")
        if blob:
            sink.emit(r.Data(r.DATA, number, blob, 0, 0))
        sink.emit(call(number, args=[[r.TREE_VALUE, number]]))
    sink.end_step(calls, calls, {"copy": 0.5})


def store_in_place(sink: Writer, array: np.ndarray, hash_of: int = 0) -> int:  # type: ignore[type-arg]
    """Store bytes that lie in the memory of the program."""
    return sink.store("U8", [array.size], array.size, HostBytes(array.ctypes.data, array), hash_of)


def blobs_of(folder: Path) -> dict[int, bytes]:
    data = read_index(folder)
    reader = ShardReader(folder, data.rows[r.SHARD])
    return {blob.id: reader.read(blob).tobytes() for blob in data.records(r.BLOB)}
