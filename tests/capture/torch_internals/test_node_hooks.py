"""The program's own hooks on autograd nodes live beside the recorder's as they would without it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import _HookMixin

from aten_dump import DumpConfig, DumpMode
from aten_dump.capture.torch_internals import node_hooks
from aten_dump.capture.torch_internals.node_hooks import Hooks

Record = Callable[..., Any]
before = _HookMixin._register_hook


def _hooked(events: list[Any]) -> tuple[Tensor, list[Any]]:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    node = y.grad_fn
    assert node is not None
    handles: list[Any] = [
        node.register_prehook(lambda g: (events.append(("before", g[0].tolist())), (g[0] * 3,))[1]),
        node.register_hook(lambda sent, got: (events.append(("after", got[0].tolist())), (sent[0] + 1, None))[1]),
        node.register_hook(lambda sent, got: events.append(("last", sent[0].tolist()))),
        node.register_hook(lambda sent, got: events.append("removed")),
    ]
    handles.pop().remove()
    y.sum().backward(retain_graph=True)
    assert x.grad is not None
    events.append(x.grad.tolist())
    return y, handles


def test_they_see_and_change_what_they_would(record: Record) -> None:
    bare: list[Any] = []
    _hooked(bare)
    recorded: list[Any] = []
    rank = record(lambda: _hooked(recorded), data="full")
    assert recorded == bare
    assert bare[-1] == [7.0, 7.0, 7.0]
    node = next(call for call in rank.calls if call.name.startswith("Node.MulBackward0"))
    assert rank.tensor(f"{node.name}.output.0").tolist() == [7.0, 7.0, 7.0]


class _Held:
    """What a hook of the program's holds."""


def test_they_go_with_the_graph(record: Record) -> None:
    alive: list[Any] = []

    def program() -> None:
        held = _Held()
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda sent, got, held=held: None)
        y.grad_fn.register_prehook(lambda got, held=held: None)
        gone = weakref.ref(held)
        y.sum().backward()
        del y, held
        alive.append(gone())

    gc.disable()
    try:
        record(program)
    finally:
        gc.enable()
    assert alive == [None]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_behind(tmp_path: Any, fails: bool) -> None:
    events: list[Any] = []
    kept: list[Any] = []
    try:
        with DumpMode(DumpConfig(path=tmp_path / "dump")):
            assert _HookMixin._register_hook is not before
            kept.extend(_hooked(events))
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert _HookMixin._register_hook is before
    y, (first, second, third) = kept
    assert [len(handle.hooks_dict_ref()) for handle in (first, second, third)] == [1, 2, 2]  # theirs alone
    assert isinstance(second.hooks_dict_ref(), Hooks)
    events.clear()
    y.sum().backward(retain_graph=True)
    assert [event[0] for event in events] == ["before", "after", "last"]
    for handle in (first, second, third):
        handle.remove()
    events.clear()
    y.sum().backward()
    assert events == []


class _Ours:
    """A hook of the recorder's."""

    def __call__(self, *gradients: Any) -> None:
        pass


def _opener(*gradients: Any) -> None:
    pass


@pytest.mark.parametrize(
    "theirs", [(), ("register_prehook",), ("register_hook",), ("register_prehook", "register_hook")]
)
def test_ours_are_put_and_taken_away_whoever_came_first(theirs: tuple[str, ...]) -> None:
    node: Any = (torch.ones(3, requires_grad=True) * 2).grad_fn
    handles = [getattr(node, name)(lambda *gradients: None) for name in theirs]
    node_hooks.install(_Ours, _opener)
    try:
        handle = node_hooks.put(node, _Ours())
        assert node_hooks.let_others_first(handle) is ("register_hook" in theirs)
        later = node.register_hook(lambda *gradients: None)
        assert node_hooks.let_others_first(handle)
        assert type(list(later.hooks_dict_ref().values())[-1]) is _Ours
        node_hooks.remove_all([handle])
        assert not [hook for one in (*handles, later) for hook in one.hooks_dict_ref().values() if type(hook) is _Ours]
        assert not node_hooks.let_others_first(handle) or "register_hook" in theirs
        gone = node_hooks.put(node, _Ours())
        del node
        node_hooks.remove_all([gone])  # the node has died with its hooks
    finally:
        node_hooks.uninstall()


def test_an_opener_goes_ahead_of_hooks_of_the_program_s_where_ours_is_after_the_run_alone() -> None:
    y = torch.ones(3, requires_grad=True) * 2
    node: Any = y.grad_fn
    ran: list[str] = []

    class Ours(_Ours):
        def __call__(self, *gradients: Any) -> None:
            ran.append(f"ours {len(gradients)}")

    node_hooks.install(Ours, lambda *gradients: ran.append(f"opener {len(gradients)}"))
    try:
        handle = node_hooks.put_after(node, Ours())
        node.register_prehook(lambda gradients: ran.append("theirs 1"))
        theirs = [node.register_hook(lambda sent, got: ran.append("theirs 2")) for _ in range(2)]
        y.sum().backward(retain_graph=True)
        assert ran == ["opener 1", "theirs 1", "opener 2", "theirs 2", "theirs 2", "ours 2"]
        ran.clear()
        node_hooks.remove_all([handle])
    finally:
        node_hooks.uninstall()
    y.sum().backward(retain_graph=True)
    assert ran == ["theirs 1", "theirs 2", "theirs 2"]
    assert [len(one.hooks_dict_ref()) for one in theirs] == [2, 2]


def test_ours_is_not_put_after_a_run_alone_where_hooks_of_the_program_s_are_there_already() -> None:
    node: Any = (torch.ones(3, requires_grad=True) * 2).grad_fn
    node_hooks.install(_Ours, _opener)
    try:
        theirs = node.register_hook(lambda sent, got: None)
        assert node_hooks.put_after(node, _Ours()) is None
        assert not [hook for hook in theirs.hooks_dict_ref().values() if type(hook) is _Ours]
    finally:
        node_hooks.uninstall()
    assert len(theirs.hooks_dict_ref()) == 1
