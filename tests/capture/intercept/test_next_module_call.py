"""Ours runs once, before the next call of a module, whoever else wraps modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aten_dump.capture.intercept.next_module_call import NextModuleCall

MODEL = nn.Linear(2, 2)
X = torch.ones(1, 2)


@pytest.fixture
def modules_as_they_were() -> Iterator[Callable[..., Any]]:
    before = nn.Module.__call__
    yield before
    nn.Module.__call__ = before  # type: ignore[method-assign]


def test_it_runs_once_before_the_module(modules_as_they_were: Callable[..., Any]) -> None:
    told: list[str] = []
    hook = MODEL.register_forward_pre_hook(lambda *args: told.append("module"))
    call = NextModuleCall(lambda: told.append("ours"))
    MODEL(X)
    MODEL(X)
    hook.remove()
    assert told == ["ours", "module", "module"]
    assert nn.Module.__call__ is modules_as_they_were and not call.cancel()


def test_what_it_puts_there_sees_the_call(modules_as_they_were: Callable[..., Any]) -> None:
    seen: list[nn.Module] = []

    def watched(module: nn.Module, *args: Any) -> Any:
        seen.append(module)
        return modules_as_they_were(module, *args)

    NextModuleCall(lambda: setattr(nn.Module, "__call__", watched))
    MODEL(X)
    assert seen == [MODEL]


def test_it_runs_once_where_somebody_wraps_it(modules_as_they_were: Callable[..., Any]) -> None:
    told: list[str] = []
    call = NextModuleCall(lambda: told.append("ours"))
    ours = nn.Module.__call__
    nn.Module.__call__ = lambda module, *args: ours(module, *args)  # type: ignore[method-assign, assignment]
    MODEL(X)
    MODEL(X)
    assert told == ["ours"] and not call.cancel()


def test_it_is_cancelled(modules_as_they_were: Callable[..., Any]) -> None:
    told: list[str] = []
    call = NextModuleCall(lambda: told.append("ours"))
    assert call.cancel() and not call.cancel()
    MODEL(X)
    assert told == [] and nn.Module.__call__ is modules_as_they_were


def test_other_threads_and_backward_are_not_waited_for(modules_as_they_were: Callable[..., Any]) -> None:
    told: list[str] = []
    loss = checkpoint(lambda x: torch.relu(MODEL(x)), X.clone().requires_grad_(), use_reentrant=False).sum()
    call = NextModuleCall(lambda: told.append("ours"))
    loss.backward()  # computes the forward again
    thread = threading.Thread(target=MODEL, args=(X,))
    thread.start()
    thread.join()
    assert told == [] and call.cancel()
