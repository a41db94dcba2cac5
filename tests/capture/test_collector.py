"""What the recorder keeps is not for Python's collector to look through, and goes without it."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import IS_COMPILED, DumpConfig, DumpMode
from aten_dump.capture import collector
from aten_dump.capture.calls import ops
from aten_dump.capture.collector import hide
from aten_dump.capture.step import step as steps
from aten_dump.capture.torch_internals import saved_tensors
from aten_dump.capture.values import known_values


@pytest.fixture(autouse=True)
def _every_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    if not IS_COMPILED:
        monkeypatch.setattr(ops, "CALLS_PER_PAUSE", 0)
        monkeypatch.setattr(steps, "CALLS_PER_PAUSE", 0)


class Net(nn.Module):
    """Ops whose results autograd saves, in modules, with a value that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, rounds: int = 1) -> torch.Tensor:
        for _ in range(rounds):
            x = torch.sigmoid(self.linear(x) * 1.5).tanh() + x
        return x.sum()


@pytest.fixture
def mode(tmp_path: Path) -> DumpMode:
    return DumpMode(DumpConfig(path=tmp_path / "dump", data="structure"))


def test_few_objects_are_kept_of_an_op_until_its_backward(mode: DumpMode) -> None:
    net, x, rounds = Net(), torch.ones(2, 4), 100
    with mode:
        net(x).backward()
        gc.collect()
        before = len(gc.get_objects())
        loss = net(x, rounds)
        gc.collect()
        kept = (len(gc.get_objects()) - before) / rounds
        loss.backward()
        mode.step()
    assert kept < 45  # of five calls of ops and a module's: torch's own are most of them


def test_what_a_short_step_keeps_is_not_worth_hiding_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[object] = []
    in_python = collector._InLongSteps(hidden.append)
    monkeypatch.setattr(collector, "_in_long_steps", in_python)
    collector.note_long_step(False)
    in_python.hide([])
    assert not hidden
    collector.note_long_step(True)
    in_python.hide([], 3, None)
    assert hidden == [[]]


def test_a_hidden_dict_is_seen_again_when_something_is_put_in() -> None:
    found: list[Any] = [[], {}, {"key": []}, torch.ones(1), 3, None]
    collector.note_long_step(True)
    hide(*found)
    assert not any(map(gc.is_tracked, found))
    found[2]["more"] = []
    assert gc.is_tracked(found[2]) is collector.HIDES_DICTS


@pytest.mark.skipif(IS_COMPILED and not known_values.FINDS, reason="torch is older than DLPack's C functions")
def test_torchs_storages_are_not_looked_through_for_having_been_asked_for(mode: DumpMode) -> None:
    with mode:
        x = torch.ones(2, 4).exp()
        mode.step()
    assert not gc.is_tracked(x.untyped_storage())
    gone = weakref.ref(x.untyped_storage())
    del x
    assert gone() is None


@pytest.mark.skipif(not saved_tensors.SHOWS_SAVED, reason="a torch that does not show what its nodes saved")
def test_nor_are_the_storages_of_numbers_that_nodes_save(mode: DumpMode) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with mode:
        x.exp()  # of a step without any call nothing is hidden yet, where nothing is compiled
        before = _tracked_storages()
        y = x * 1.5
        found = _tracked_storages() - before  # to ask a tensor for its storage would be seen, and hide it
        y.sum().backward()
    assert found == set()


def test_nor_where_the_bytes_of_values_are_stored(tmp_path: Path) -> None:
    parameters = [torch.ones(4) for _ in range(300)]
    with DumpMode(DumpConfig(path=tmp_path / "tensors", data="tensor")) as mode:
        torch._foreach_add_(parameters, 1.0)
        mode.step()
        gc.collect()
        before = len(gc.get_objects())
        parameters[0].exp()  # of a step without any call nothing is hidden yet, where nothing is compiled
        torch._foreach_add_(parameters, 1.0)
        gc.collect()  # which looks no more through tuples of numbers
        kept = len(gc.get_objects()) - before
    assert kept < 100


def _tracked_storages() -> set[int]:
    return {id(one) for one in gc.get_objects() if type(one) is torch.UntypedStorage}


def _steps(net: Net, mode: DumpMode, count: int) -> None:
    for number in range(count):
        x = torch.ones(2, 4, requires_grad=True)
        loss = net(x, 3)
        loss.backward(create_graph=number % 2 == 1)
        if number % 3 == 0:
            kept = net(x)  # its graph outlives the step
            with pytest.raises(RuntimeError):
                net(torch.ones(5))
            mode.step()
            kept.backward()
        else:
            mode.step()
        net.zero_grad(set_to_none=True)
        x.grad = None


def test_all_of_it_goes_with_the_step(mode: DumpMode) -> None:
    net = Net()
    with mode:
        _steps(net, mode, 12)
        mode.flush()
        gc.collect()
        before = sys.getallocatedblocks()
        _steps(net, mode, 36)
        mode.flush()
        gc.collect()
        assert sys.getallocatedblocks() - before < 36 * 20  # one call or node that stays is 30 blocks a step


@pytest.mark.parametrize("put", ["register_hook", "register_prehook"])
def test_circles_of_the_program_s_own_are_still_found(mode: DumpMode, put: str) -> None:
    def circle() -> Any:
        y = (torch.ones(3, requires_grad=True) * 2).exp()
        node: Any = y.grad_fn
        getattr(node, put)(lambda *gradients, held=y: None)
        y.note = lambda: y  # type: ignore[attr-defined]
        return weakref.ref(y)

    bare = circle()
    gc.collect()
    with mode:
        recorded = circle()
        gc.collect()
        assert (recorded() is None) is (bare() is None)
