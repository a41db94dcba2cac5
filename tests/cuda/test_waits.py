"""No op makes the host wait on the recorder's account: torch says where the program's thread is made to."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data.device_copies import Copier
from aten_dump.store.writing import writer_thread
from tests.models import build, train_step

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize")
COPY = "cudaMemcpyAsync"


@contextmanager
def waits_counted() -> Iterator[list[str]]:
    """Give what torch says at each wait of the host for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    found: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [str(one.message) for one in caught if "synchronizing CUDA operation" in str(one.message)]


@pytest.mark.parametrize("data", ["structure", "statistic", "hash", "tensor", "full"])
def test_no_op_makes_the_host_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    waiting: list[str] = []  # threads that wait for copies, of which torch says nothing
    copy = Copier.copy

    def watched(*args: Any, **kwargs: Any) -> Callable[[], None]:
        wait = copy(*args, **kwargs)
        return lambda: (waiting.append(threading.current_thread().name), wait())[1]

    monkeypatch.setattr(Copier, "copy", watched)
    with torch.device("cuda"):
        program = build("gpt2", "adamw_foreach")
        train_step(program)
        with waits_counted() as bare:
            for _ in range(2):
                train_step(program)
        config = DumpConfig(path=tmp_path / "dump", data=data)  # type: ignore[arg-type]
        with DumpMode(config, model=program.model) as dump, waits_counted() as recorded:
            for _ in range(2):
                train_step(program)
                dump.step()
    assert bare, "the program waits itself, so that what torch says is heard"
    assert len(recorded) == len(bare)
    assert bool(waiting) == (data != "structure") and all(name.startswith("aten_dump") for name in waiting), waiting
    rank = open_dump(tmp_path / "dump").step(1).rank(0)
    assert rank.complete and [note for note in rank.notes if note.code in ("error", "unreadable")] == []


def asked_by(run: Callable[[], object]) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    return Counter({event.key: event.count for event in profiler.key_averages()})


def test_a_batch_of_statistics_is_two_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "INTERVAL_SECONDS", 60.0)  # the writer's thread asks for none that is not full
    with torch.device("cuda"):
        program = build("gpt2", "adamw_foreach")
        train_step(program)
        bare = asked_by(lambda: train_step(program))
        with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic"), model=program.model) as dump:
            train_step(program)
            dump.step()

            def step() -> None:
                train_step(program)
                dump.step()

            recorded = asked_by(step)
    rank = open_dump(tmp_path / "dump").step(1).rank(0)
    batches = 2 + len(rank.values) // 100  # a copy of their results, and before it one of where each has its own
    lists = 2 * sum("_foreach_" in call.op for call in rank.calls if call.kind == "aten")
    assert {what: recorded[what] for what in WAITS} == {what: bare[what] for what in WAITS}
    assert 1 <= recorded[COPY] - bare[COPY] <= 2 * batches + lists
