"""Backward passes that a hook of another begins, that fail, that stop at a node, or that share a graph with others."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.autograd.links import assert_linked
from tests.capture.bits import calls, only
from tests.capture.intercept.modes import Passing, Scaled
from tests.capture.twice import twice
from tests.torch_features import needs_saved_tensors

Record = Callable[..., Any]
Put = Callable[[Tensor, Callable[..., Any]], None]


def on_tensor(y: Tensor, hook: Callable[..., Any]) -> None:
    y.register_hook(hook)


def before_node(y: Tensor, hook: Callable[..., Any]) -> None:
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda gradients: (hook(gradients[0]),))


def after_node(y: Tensor, hook: Callable[..., Any]) -> None:
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda sent, got: (hook(sent[0]),))


def nodes(rank: Any, op: str) -> list[Any]:
    return [c for c in calls(rank, kind="node") if c.op == op]


def formula_of(call: Any) -> list[str]:
    return [c.op for c in call.children if c.kind == "aten" and c.op != "aten::detach"]


@needs_saved_tensors
@pytest.mark.parametrize("put", [on_tensor, before_node, after_node])
def test_a_hook_runs_a_pass_through_its_own_node(record: Record, put: Put) -> None:
    """Both runs are calls of their own, each in its pass; the hook's ops are in no formula but its own."""

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        inner, is_nested = y.sin().sum(), []

        def hook(gradient: Tensor) -> Tensor:
            if is_nested:
                return gradient
            is_nested.append(True)
            gradient = gradient.clamp(max=0.5)
            (found,) = torch.autograd.grad(inner, x, retain_graph=True)
            return gradient + found

        put(y, hook)
        y.cos().sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    runs = nodes(rank, "ExpBackward0")
    assert sorted(c.name for c in runs) == ["Node.ExpBackward0.0.backward", "Node.ExpBackward0.1.backward"]
    assert {c.parent.name for c in runs} == {"Tensor.exp.0.backward", "Tensor.exp.0.backward.1"}
    assert [formula_of(c).count("aten::mul.Tensor") for c in runs] == [1, 1] and not any(c.error for c in runs)
    assert len({c.id for c in rank.calls}) == len(rank.calls)
    assert only(calls(rank, op="aten::clamp")).forward.op == "aten::exp"
    assert_linked(rank)


@needs_saved_tensors
def test_a_node_that_a_pass_stops_at_has_no_call_though_its_hook_runs(record: Record) -> None:
    """What comes after it, of a node that was made before the block too, is not taken for what runs in it."""
    w = torch.randn(4, requires_grad=True)
    before = w.sin()

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        y.register_hook(lambda g: g.clamp(max=0.5))
        return list(torch.autograd.grad((before * y).sum(), [y, w], retain_graph=True))

    rank = twice(record, program)
    assert nodes(rank, "ExpBackward0") == [] and not any(c.error for c in rank.calls)
    later = only(calls(rank, op="aten::cos"))
    assert later.parent.op == only(calls(rank, op="aten::clamp")).parent.op == "torch.autograd.grad"


@needs_saved_tensors
def test_what_a_hook_computes_on_a_subclass_opens_no_node_either(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        y.register_hook(lambda g: torch.ops.aten.clamp.default(Scaled(g), None, 0.5))
        y.sin().sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    exp = only(nodes(rank, "ExpBackward0"))
    assert formula_of(exp) == ["aten::mul.Tensor"] and exp.error is None and exp.outputs
    outer, inner = calls(rank, op="aten::clamp")
    assert inner.parent.id == outer.id and outer.parent.op == "torch.Tensor.backward"


class Failing(TorchDispatchMode):
    """A mode of the program's that refuses one op, some times."""

    def __init__(self, op: Any, times: int) -> None:
        super().__init__()
        self.op, self.left = op, times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.op and self.left:
            self.left -= 1
            raise ArithmeticError
        return func(*args, **(kwargs or {}))


@needs_saved_tensors
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_formula_that_has_failed_in_one_pass_is_whole_in_the_next(
    record: Record, nested: bool, is_first: bool
) -> None:
    """Nothing of the program's runs in between, which could find what the first has left."""

    def program() -> list[Tensor]:
        u, found = torch.randn(4, requires_grad=True), []
        v = u.cos()
        inner = v if is_first else v.sum()
        ones = torch.ones_like(inner)

        def passes() -> None:
            for _ in range(3):
                try:
                    found.extend(torch.autograd.grad(inner, u, ones, retain_graph=True))
                except ArithmeticError:
                    pass

        with Failing(torch.ops.aten.neg.default, 2):
            if nested:
                y = torch.randn(4, requires_grad=True).sin()
                y.register_hook(lambda g: passes())
                y.sum().backward()
            else:
                passes()
        return found

    rank = twice(record, program)
    last = nodes(rank, "CosBackward0")[-1]
    assert formula_of(last) == ["aten::sin", "aten::neg", "aten::mul.Tensor"] and last.error is None
    assert last.parent.op == "torch.Tensor.cos" and len(nodes(rank, "CosBackward0")) == 3
    sums = [c for c in calls(rank, kind="node") if c.op == "SumBackward0" and c.sequence_nr == last.sequence_nr + 1]
    assert len(sums) == (0 if is_first else 3) and len({c.parent.parent.kind for c in sums} - {"api"}) == 0
    assert_linked(rank)


@needs_saved_tensors
@pytest.mark.parametrize("does", [lambda: torch.zeros(1), None], ids=["an op", "nothing"])
def test_passes_that_fail_within_a_hook_leave_nothing_to_the_next(record: Record, does: Any) -> None:
    """Whether the program does something after them or not."""

    def program() -> list[Tensor]:
        x, u = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        v, failing = u.exp(), itertools.count()

        def fails_twice(gradients: Any) -> None:
            gradients[0].abs()
            if next(failing) < 2:
                raise ArithmeticError

        v.grad_fn.register_prehook(fails_twice)  # type: ignore[union-attr]
        inner, found = v.sin().sum(), []

        def hook(gradient: Tensor) -> Tensor:
            for _ in range(4):
                try:
                    found.append(torch.autograd.grad(inner, u, retain_graph=True)[0])
                except ArithmeticError:
                    found.extend([does()] if does else [])
            return gradient.clamp(max=0.5)

        y = x.cos()
        y.register_hook(hook)
        y.tan().sum().backward()
        return [x.grad, *found]  # type: ignore[list-item]

    rank = twice(record, program)
    runs = nodes(rank, "ExpBackward0")
    assert [bool(c.error) for c in runs] == [True, True, False, False]
    assert [[k.op for k in c.children if k.kind == "api"] for c in runs] == [["torch.Tensor.abs"]] * 4
    assert [formula_of(c) for c in runs] == [[], [], ["aten::mul.Tensor"], ["aten::mul.Tensor"]]
    assert {c.parent.op for c in calls(rank, op="aten::zeros")} == ({"torch.Tensor.backward"} if does else set())
    assert {c.parent.op for c in runs} == {"torch.Tensor.exp"} and len({c.parent.parent.op for c in runs}) == 1
    assert formula_of(only(nodes(rank, "CosBackward0"))) == ["aten::sin", "aten::neg", "aten::mul.Tensor"]
    assert_linked(rank)


@needs_saved_tensors
def test_a_formula_is_backward_though_a_hook_has_left_gradients_on(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()

        def hook(gradient: Tensor) -> Tensor:
            torch.set_grad_enabled(True)
            return gradient.clamp(max=0.5)

        y.register_hook(hook)
        y.sin().sum().backward()
        return [x.grad.detach()]  # type: ignore[union-attr]

    rank = twice(record, program)
    formula = only(nodes(rank, "ExpBackward0")).children
    assert {(c.phase, c.forward.op) for c in formula} == {("backward", "aten::exp")}


@needs_saved_tensors
def test_under_a_mode_of_the_program_s_formulas_are_in_their_nodes(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        with Passing():
            x.exp().sin().sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    assert [formula_of(only(nodes(rank, op))) for op in ("SinBackward0", "ExpBackward0")] == [
        ["aten::cos", "aten::mul.Tensor"],
        ["aten::mul.Tensor"],
    ]


def test_nothing_is_recorded_while_paused_under_a_mode_of_the_program_s(tmp_path: Path) -> None:
    x = torch.randn(4, requires_grad=True)
    with DumpMode(DumpConfig(path=tmp_path, data="structure")) as dump:
        y = x.exp() + 1
        dump.pause()
        with Passing():
            y.sum().backward()
        dump.resume()
        x.cos()
    rank = open_dump(tmp_path).step(0).rank(0)
    assert calls(rank, kind="node") == [] and len(calls(rank, op="aten::cos")) == 1


@needs_saved_tensors
def test_threads_that_share_a_graph_have_runs_of_their_own(tmp_path: Path) -> None:
    """At the same time: each run of a node is a call on its thread, and no thread is stopped or told of an error."""
    torch.manual_seed(0)
    x, layers, passes = torch.randn(8, requires_grad=True), 12, 3

    def build() -> Tensor:
        y = x
        for _ in range(layers):
            y = y.sin() * 1.5 + y.exp().tanh()
        return y.sum()

    (bare,) = torch.autograd.grad(build(), x)
    found: list[Tensor] = []
    with DumpMode(DumpConfig(path=tmp_path, data="structure")) as dump:
        total, start = build(), threading.Barrier(4)

        def work() -> None:
            with dump.thread():
                start.wait()
                found.extend(torch.autograd.grad(total, x, retain_graph=True)[0] for _ in range(passes))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(found) == 4 * passes and all(torch.equal(one, bare) for one in found)
    rank = open_dump(tmp_path).step(0).rank(0)
    assert not any(c.error for c in rank.calls)
    runs = collections.Counter(c.sequence_nr for c in calls(rank, kind="node"))
    assert set(runs.values()) == {4 * passes} and len(runs) == 5 * layers + 1
    for call in calls(rank, kind="node"):
        assert {c.thread for c in call.children} <= {call.thread}, call.name
