"""Our own modes. `aten_dump` is imported where it is used: peers run in environments without it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .measure import Mode, Sample, Sampler, timed
from .workloads import Workload

STATISTICS = ("count", "min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
_POLL_SECONDS = 0.001


def _recording(name: str, *, is_tmpfs: bool = False, limit: tuple[str, ...] = (), **config: Any) -> Mode:
    """Return the mode of a DumpConfig: the time of a step holds what ends it in the dump."""

    @contextlib.contextmanager
    def start(workload: Workload, folder: Path) -> Iterator[Sampler]:
        from aten_dump import DumpConfig, DumpMode

        with DumpMode(DumpConfig(path=folder / "dump", **config), model=workload.model) as dump:
            dump.pause()

            def step() -> None:
                workload.step()
                dump.step()

            def sample(steps: int) -> Sample:
                first = dump.current_step
                written = tuple(folder / "dump" / f"step{first + number}" for number in range(steps))
                dump.resume()
                found = timed(steps, step, lambda: _await_commit(written))
                dump.pause()
                return found

            yield sample

    return Mode(name, "ours", start, is_tmpfs=is_tmpfs, limit=limit)


def _await_commit(steps: tuple[Path, ...]) -> tuple[Path, ...]:
    """Wait until the last step is committed."""
    from aten_dump.dump.index.summary import summarize

    directory = steps[-1] / "rank0"
    while not (directory / "index.msgpack").exists() or any(directory.glob("*.partial")):
        time.sleep(_POLL_SECONDS)
    while summarize(directory).commit is None:
        time.sleep(_POLL_SECONDS)
    return steps


@contextlib.contextmanager
def _idle(workload: Workload, folder: Path) -> Iterator[Sampler]:
    """Mount a dump whose selected steps never come. The bare batches run with nothing mounted at all."""
    from aten_dump import DumpConfig, DumpMode

    def sample(steps: int) -> Sample:
        path = folder / "dump"
        with DumpMode(DumpConfig(path=path, steps=10**9, overwrite=True), model=workload.model) as dump:

            def step() -> None:
                workload.step()
                dump.step()

            return timed(steps, step)

    yield sample


def _watching(name: str, every: int, **options: Any) -> Mode:
    """Return the mode of a Watch that writes for TensorBoard."""

    @contextlib.contextmanager
    def start(workload: Workload, folder: Path) -> Iterator[Sampler]:
        from aten_dump import Watch

        def sample(steps: int) -> Sample:
            to = f"tensorboard:{folder / 'runs'}"
            with Watch(every, to, model=workload.model, **options) as watch:
                if every > 1:  # step 0 is watched always: it is not timed
                    workload.step()
                    watch.step()

                def step() -> None:
                    workload.step()
                    watch.step()

                return timed(steps, step)

        yield sample

    return Mode(name, "ours", start, is_fine=every > 1)


@contextlib.contextmanager
def _against(workload: Workload, folder: Path) -> Iterator[Sampler]:
    """Record a golden of hashes, and hold the same steps against it: no bit differs, so that all is compared."""
    import torch

    from aten_dump import DumpConfig, DumpMode

    def run(steps: int, **config: Any) -> Sample:
        with DumpMode(DumpConfig(overwrite=True, **config), model=workload.model) as dump:

            def step() -> None:
                workload.step()
                dump.step()

            found = timed(steps, step)
        if dump.first_difference is not None:
            raise RuntimeError(f"the steps are not the same: {dump.first_difference}")
        return found

    def sample(steps: int) -> Sample:
        before = {name: tensor.clone() for name, tensor in workload.model.state_dict().items()}
        generator = torch.get_rng_state()
        run(steps, path=folder / "golden", data="hash")
        workload.model.load_state_dict(before)
        torch.set_rng_state(generator)
        return run(steps, path=folder / "dump", against=folder / "golden")

    yield sample


_WRITE, _WRITE_TMPFS = ("limit-write",), ("limit-write-tmpfs",)
_READ = ("limit-statistics", "limit-hash")
OURS = (
    Mode("idle", "ours", _idle, is_fine=True),
    _recording("structure-no-stacks", data="structure", stacks=False),
    _recording("structure", data="structure"),
    _recording("hash", data="hash", limit=("limit-hash",)),
    Mode("against", "ours", _against),
    _recording("statistic", data="statistic", statistics=STATISTICS, limit=("limit-statistics",)),
    _recording("statistic-all-12", data="statistic", limit=("limit-statistics",)),
    _recording("tensor", data="tensor", limit=_WRITE),
    _recording("full", data="full", statistics=STATISTICS, limit=(*_WRITE, *_READ)),
    _recording("tensor-tmpfs", data="tensor", is_tmpfs=True, limit=_WRITE_TMPFS),
    _watching("watch-idle", 10**9),
    _watching("watch", 1),
    _watching("watch-activations", 1, modules="*"),
    _recording("full-tmpfs", data="full", statistics=STATISTICS, is_tmpfs=True, limit=(*_WRITE_TMPFS, *_READ)),
)


class IndexCosts:
    """What the indexes of the recorded steps say of their cost."""

    def __init__(self) -> None:
        self._seconds: list[dict[str, float]] = []
        self._size: dict[str, Any] = {}

    def look(self, written: tuple[Path, ...]) -> None:
        """Read what a batch wrote; does nothing where that is no dump."""
        indexes = [path for step in written if (path := step / "rank0" / "index.msgpack").exists()]
        if not indexes:
            return
        from aten_dump.dump.index.summary import summarize

        commits = [summarize(index.parent).commit for index in indexes]
        self._seconds += [commit.seconds for commit in commits if commit is not None]
        self._size = self._size or _index_size(indexes[-1])

    def found(self) -> dict[str, Any]:
        """Return the sizes of one step's index and the median over all steps of what they say they cost."""
        names = dict.fromkeys(name for seconds in self._seconds for name in seconds)
        medians = {name: statistics.median(seconds.get(name, 0.0) for seconds in self._seconds) for name in names}
        return {**self._size, "seconds": medians} if self._size else {}


def _index_size(path: Path) -> dict[str, Any]:
    """Return calls by kind, bytes of the index, and those of them in source stacks, which come once per line."""
    import msgpack

    from aten_dump.store import records

    with open(path, "rb") as file:
        rows = list(msgpack.Unpacker(file, strict_map_key=False))
    kinds = {row[1]: records.CALL_KINDS[row[2]] for row in rows if row[0] == records.OP}
    texts = {text for row in rows if row[0] == records.FRAME for text in (row[2], row[4])}
    stacks = (
        row for row in rows if row[0] in (records.FRAME, records.STACK) or (row[0] == records.TEXT and row[1] in texts)
    )
    return {
        "calls": dict(Counter(kinds.get(row[3], "unknown") for row in rows if row[0] == records.CALL)),
        "index_bytes": path.stat().st_size,
        "stack_bytes": sum(len(msgpack.packb(row)) for row in stacks),
    }
