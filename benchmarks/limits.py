"""What the machine itself asks for the same bytes: the least that any recorder could cost.

Theory of operation
    One step is recorded to learn what there is to do: the sizes of the blobs that go to shards, and
    the shapes and dtypes of the values that get statistics and hashes of their own. Memory of that make is then
    copied and written, reduced, or hashed after each bare step, by nothing but one call per piece. So a limit is what
    a recorder costs that knows beforehand what to do, on one thread, and overlaps nothing; one that overlaps its
    writing with the step, or has it done by several threads, may come out below it. `limit-statistics-threads` is the
    pass on all of torch's threads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .measure import Mode, Sample, Sampler, timed
from .workloads import Workload

if TYPE_CHECKING:
    from aten_dump.config import DataKind
    from aten_dump.dump.index.tables import Tables

_ARENA_BYTES = 16 << 20
_SOURCE_BYTES = 256 << 20
_CACHED_ELEMENTS = 128 << 10  # three reductions over a chunk that stays in cache read memory once


@contextlib.contextmanager
def _write(workload: Workload, folder: Path) -> Iterator[Sampler]:
    """Copy the bytes of all blobs into one reused piece of memory, and write that to one file."""
    import numpy as np

    sizes = [blob.nbytes for blob in _tables(workload, folder, "tensor").blobs.values()]
    # What is read is cold, as it is larger than caches are, and yet not all of several GB.
    source = np.ones(max(max(sizes, default=0), min(sum(sizes), _SOURCE_BYTES)), np.uint8)
    arena = np.ones(_ARENA_BYTES, np.uint8)
    numbers = itertools.count()

    def write(file: int) -> None:
        used = start = 0
        for nbytes in sizes:
            start = start if start + nbytes <= source.size else 0
            end = start + nbytes
            while start < end:
                size = min(end - start, _ARENA_BYTES - used)
                arena[used : used + size] = source[start : start + size]
                start, used = start + size, used + size
                if used == _ARENA_BYTES:
                    _write_all(file, arena.data)
                    used = 0
        _write_all(file, arena.data[:used])

    def sample(steps: int) -> Sample:
        path = folder / f"{next(numbers)}.bytes"
        file = os.open(path, os.O_WRONLY | os.O_CREAT)

        def step() -> None:
            workload.step()
            write(file)

        def finish() -> tuple[Path, ...]:
            os.close(file)
            return (path,)

        return timed(steps, step, finish)

    yield sample


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _reading(
    data: DataKind, select: Callable[[Tables], Any], read: Callable[[torch.Tensor], None]
) -> Callable[..., AbstractContextManager[Sampler]]:
    """Return the start of a mode that reads memory like that of the selected values once."""

    @contextlib.contextmanager
    def start(workload: Workload, folder: Path) -> Iterator[Sampler]:
        tables = _tables(workload, folder, data)
        values = [tables.values[number] for number in select(tables)]
        tensors = [
            torch.ones(value.shape, dtype=getattr(torch, tables.text(value.dtype)))
            for value in values
            if hasattr(torch, tables.text(value.dtype))
        ]

        def step() -> None:
            workload.step()
            for tensor in tensors:
                read(tensor)

        yield lambda steps: timed(steps, step)

    return start


def _reduce(tensor: torch.Tensor, threads: int = 1) -> None:
    """Reduce in the compiled pass; without it to sum, min and max, and l2 norm, in chunks that stay in cache."""
    if _in_one_pass(tensor, threads):
        return
    for chunk in tensor.view(-1).split(_CACHED_ELEMENTS):
        if chunk.dtype is torch.bool or chunk.numel() == 0:
            chunk.sum()
            continue
        chunk.sum()
        torch.aminmax(chunk)
        if chunk.is_floating_point():
            torch.linalg.vector_norm(chunk)


def _reduce_on_threads(tensor: torch.Tensor) -> None:
    _reduce(tensor, torch.get_num_threads())


def _in_one_pass(tensor: torch.Tensor, threads: int) -> bool:
    """Reduce to all statistics; False where nothing is compiled, or there are no elements that it knows."""
    from aten_dump.capture.data.statistics import one_pass
    from aten_dump.config import STATISTICS

    code, compiled = one_pass.CODES.get(tensor.dtype), _compiled_pass()
    if compiled is None or code is None or not tensor.numel():
        return False
    compiled.of_one(code, tensor.data_ptr(), tensor.numel(), threads, bytes(range(len(STATISTICS))))
    return True


@functools.cache
def _compiled_pass() -> Any:
    """Return the C file of the statistics: this build's, or that of `make compiled`; None where there is neither."""
    from aten_dump.capture.data.statistics import one_pass

    if one_pass.IS_COMPILED:
        return one_pass
    folder = Path("build/compiled", *one_pass.__name__.split(".")[:-1])
    finder = importlib.machinery.FileFinder(
        str(folder), (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    )
    spec = finder.find_spec("_one_pass")
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hash(tensor: torch.Tensor) -> None:
    import xxhash

    xxhash.xxh3_64_digest(tensor.view(-1).view(torch.uint8).numpy().data)


def _tables(workload: Workload, folder: Path, data: DataKind) -> Tables:
    """Record one step and return what its index says; the files are deleted."""
    from aten_dump import DumpConfig, DumpMode, open_dump

    path = folder / "sizes"
    with DumpMode(DumpConfig(path=path, data=data, steps=0), model=workload.model) as dump:
        workload.step()
        dump.step()
    tables = open_dump(path).step(0).rank(0).tables
    shutil.rmtree(path)
    return tables


def _limit(name: str, start: Callable[..., AbstractContextManager[Sampler]], is_tmpfs: bool = False) -> Mode:
    return Mode(name, "limits", start, is_tmpfs=is_tmpfs)


LIMITS = (
    _limit("limit-write", _write),
    _limit("limit-write-tmpfs", _write, is_tmpfs=True),
    _limit("limit-statistics", _reading("statistic", lambda tables: tables.statistics, _reduce)),
    _limit("limit-statistics-threads", _reading("statistic", lambda tables: tables.statistics, _reduce_on_threads)),
    _limit("limit-hash", _reading("hash", lambda tables: tables.hashes, _hash)),
)
