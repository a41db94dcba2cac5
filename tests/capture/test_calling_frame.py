"""What the program has called with no frame of Python's above: by the engine on a device's thread, or by a thread in C."""

from __future__ import annotations

import _thread
import collections
import functools
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.calling_frame import calling_frame


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def test_frames_are_counted_from_who_asks() -> None:
    here = sys._getframe()

    def asks(above: int) -> Any:
        return calling_frame(above)

    assert asks(1) is here and asks(2) is here.f_back and asks(0).f_code is asks.__code__
    assert asks(10**6) is None


HOOKS: dict[str, Callable[[DumpMode], Callable[[torch.Tensor], Any]]] = {
    "an op": lambda dump: torch.Tensor.abs,
    "a module": lambda dump: Halved(),
    "a function": lambda dump: Cubed.apply,
    "what saves": lambda dump: functools.partial(dump.save, "gradient"),
}


@pytest.mark.parametrize("creates_graph", [False, True])
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_hooks_that_the_engine_calls(tmp_path: Path, kind: str, creates_graph: bool) -> None:
    def program(hook: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        y = (x * 2).sin()
        y.register_hook(hook)
        y.sum().backward(create_graph=creates_graph)
        assert x.grad is not None
        return x.grad.detach()

    dump = DumpMode(DumpConfig(path=tmp_path, data="structure"))
    hook = HOOKS[kind](dump)
    bare = program(hook)
    with dump:
        assert torch.equal(program(hook), bare)
    rank = open_dump(tmp_path).step(0).rank(0)
    assert not [note for note in rank.notes if note.level > 1]
    if kind == "what saves":
        assert "gradient" in rank.saved


@pytest.mark.parametrize("kind", ["a module", "a function", "what saves"])
def test_a_thread_that_begins_in_c(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", failed.append)
    with DumpMode(DumpConfig(path=tmp_path, data="structure")) as dump:
        done: list[int] = []
        work = itertools.chain(map(HOOKS[kind](dump), [torch.ones(2)]), map(done.append, [1]))
        _thread.start_new_thread(collections.deque, (work,))
        while not (done or failed):
            time.sleep(0.01)
    assert not failed
    (note,) = [note for note in open_dump(tmp_path).step(0).rank(0).notes if note.code == "other_threads"]
    assert note.message.endswith({"a module": ": Halved", "a function": ": Cubed", "what saves": ": gradient"}[kind])
