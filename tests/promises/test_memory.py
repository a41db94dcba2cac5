"""Trap: the dump keeps no tensor alive that the bare program frees."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from aten_dump import DumpConfig, DumpMode
from aten_dump.capture import run_file
from aten_dump.store.writing.shard_writer import ShardWriter
from tests.capture.oracle import Lifetimes
from tests.capture.process_state import resident
from tests.models import build, train_step
from tests.sampling import diagonal, slow_but_for
from tests.torch_features import needs_saved_hooks_shown

MIB = 1 << 20
LEVELS = ("aten", "api", "module", "mix")


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Only reference counts may free tensors, as in the bare program."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def weak(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


@pytest.mark.parametrize(("level", "data"), diagonal(LEVELS, ["structure", "statistic", "hash"]))
def test_fifty_forward_passes_leave_nothing(tmp_path: Path, level: str, data: str) -> None:
    x = torch.randn(1000, 1000, requires_grad=True)
    made = []
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level, data=data)):
        x.exp()
        before = resident()
        for _ in range(50):
            y = x.exp()
            made.append(weak(y))
            del y
        grown = resident() - before
    assert sum(not ref.expired() for ref in made) == 0
    assert grown < 60 * MIB, f"{grown / MIB:.0f} MiB more after 50 passes of 4 MB each"


@pytest.mark.parametrize("level", slow_but_for(["api", "mix"], LEVELS))
def test_memory_is_bounded_while_tensors_are_written(tmp_path: Path, level: str) -> None:
    x = torch.randn(1000, 1000, requires_grad=True)
    made = []
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level, data="tensor", queue_bytes=16 * MIB)):
        x.exp()
        before = resident()
        for _ in range(50):
            y = x.exp()
            made.append(weak(y))
            del y
        alive, grown = sum(not ref.expired() for ref in made), resident() - before
    assert alive == 0
    assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB more after 50 passes of 4 MB each, with a queue of 16 MiB"


@pytest.mark.parametrize(
    "saved_tensors", ["nodes", pytest.param("hooks", marks=[needs_saved_hooks_shown, pytest.mark.slow])]
)
def test_memory_is_bounded_over_steps_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_tensors: str
) -> None:
    """Some fifty tensors of 4 MB are computed faster than they are written."""
    written = ShardWriter.flush
    monkeypatch.setattr(ShardWriter, "flush", lambda shard: (time.sleep(0.02), written(shard))[1])
    monkeypatch.setattr(run_file, "has_spare_core", lambda: True)  # else the program waits for each of them
    w = torch.randn(1000, 1000, requires_grad=True)
    config = DumpConfig(tmp_path / "dump", data="tensor", queue_bytes=16 * MIB, saved_tensors=saved_tensors)
    with DumpMode(config) as dump:
        w.sin().mul(1.5).cos().sum().backward()
        dump.step()
        before = resident()
        for _ in range(6):
            w.sin().mul(1.5).cos().sum().backward()
            w.grad = None
            dump.step()
        grown = resident() - before
    assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB more after six steps, with a queue of 16 MiB"


def test_saved_inputs_are_freed_with_the_graph(tmp_path: Path) -> None:
    """Input of mul, output of tanh, mask of dropout: all that backward keeps."""
    x = torch.randn(64, 64, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")):
        a = x * 2
        b = torch.tanh(a * a)
        c = torch.nn.functional.dropout(b) @ b
        refs = [weak(t) for t in (a, b, c)]
        del a, b, c
        assert [ref.expired() for ref in refs] == [True, True, True]


def test_backward_frees_saved_tensors_as_it_goes(tmp_path: Path) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")):
        y = x * 1
        refs = []
        for _ in range(5):
            y = y.exp().neg()
            refs.append(weak(y.grad_fn._saved_result) if hasattr(y.grad_fn, "_saved_result") else weak(y))
        y.sum().backward()
        del y
        assert all(ref.expired() for ref in refs)
        (g,) = [weak(x.grad)]  # type: ignore[arg-type]
        x.grad = None
        assert g.expired()


@pytest.mark.parametrize(
    ("model", "data", "place"), diagonal(["gpt2", "resnet"], ["statistic", "tensor"], ["inside", "outside"])
)
def test_storages_die_at_the_same_op_as_in_the_bare_program(tmp_path: Path, model: str, data: str, place: str) -> None:
    program = build(model, "adamw_foreach")
    train_step(program)
    gc.collect()
    with Lifetimes() as bare:
        train_step(program)
        end = bare.mask()
    program = build(model, "adamw_foreach")
    train_step(program)
    gc.collect()
    lifetimes = Lifetimes()
    config = DumpConfig(path=str(tmp_path / "dump"), data=data)
    if place == "inside":
        with DumpMode(config, model=program.model), lifetimes:
            train_step(program)
            found_end = lifetimes.mask()
    else:
        with lifetimes, DumpMode(config, model=program.model):
            train_step(program)
            found_end = lifetimes.mask()
    assert [op for op, _ in lifetimes.alive] == [op for op, _ in bare.alive]
    for i, ((op, expected), (_, found)) in enumerate(zip(bare.alive, lifetimes.alive, strict=True)):
        assert found == expected, (
            f"before op {i} ({op}): {found.bit_count()} storages alive, {expected.bit_count()} in the bare program"
        )
    assert found_end == end


def test_the_model_is_not_kept_after_the_block(tmp_path: Path) -> None:
    import weakref

    model = torch.nn.Linear(8, 8)
    dump = DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor"), model=model)
    with dump:
        model(torch.randn(2, 8)).sum().backward()
    parameter, module = weakref.ref(model.weight), weakref.ref(model)
    del model, dump
    gc.collect()
    assert (parameter(), module()) == (None, None)


def test_many_steps_do_not_grow(tmp_path: Path) -> None:
    program = build("resnet")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="statistic"), model=program.model) as dump:
        for _ in range(3):
            train_step(program)
            dump.step()
        objects = _settled_objects()
        before = resident()
        for _ in range(6):
            train_step(program)
            dump.step()
        assert _settled_objects() - objects < 4000
        assert resident() - before < 40 * MIB


def _settled_objects() -> int:
    """Return how many objects Python's collector knows once the writer's thread has let go of what it wrote."""
    found = 0
    for _ in range(100):
        gc.collect()
        before, found = found, len(gc.get_objects())
        if found >= before > 0:
            break
        time.sleep(0.1)
    return found


def test_what_a_step_keeps_of_each_op_is_small(tmp_path: Path) -> None:
    """While the graph is alive: its tags and hooks, the calls that made it, and what is known of the tensors in it."""
    rounds, ops_per_round = 300, 11
    x = torch.randn(16, requires_grad=True)

    def step() -> torch.Tensor:
        y = x
        for _ in range(rounds):
            y = (y * 1.01 + 0.01).tanh().sigmoid()
        y.sum().backward(retain_graph=True)
        return y

    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="structure")) as dump:
        step()
        dump.step()
        dump.flush()
        tracemalloc.start()
        try:
            y = step()
            dump.flush()  # records that wait are no matter here
            kept = tracemalloc.get_traced_memory()[0] / (rounds * ops_per_round)
        finally:
            tracemalloc.stop()
    assert y.grad_fn is not None
    assert kept < 1250, f"{kept:.0f} bytes per op"
