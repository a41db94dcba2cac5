"""Ops that are made of other ops: tensor subclasses, higher-order operators, custom ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode
from aten_dump.capture.calls.watched_ops import WatchedOp, watch
from aten_dump.capture.intercept.inner_ops import open_nested, run_higher_order, run_subclass_op
from aten_dump.capture.naming.call_name import ATEN
from aten_dump.capture.unseen import Coverage
from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only
from tests.capture.intercept.modes import Passing
from tests.capture.intercept.watched import Watched
from tests.capture.same_outcome import note, ops, recorded
from tests.devices import drawn
from tests.torch_features import needs_higher_order_under_modes


def _x() -> Tensor:
    return drawn(5, 4, seed=1)


def _two() -> Any:
    pair = TwoTensor(_x(), 2 * _x()).requires_grad_()
    (pair.sin() * pair).sum().backward()
    assert pair.grad is not None
    return pair.grad.a, pair.grad.b  # type: ignore[attr-defined]


def test_inner_ops_of_a_subclass_are_children_of_its_op(tmp_path: Path) -> None:
    rank = recorded(tmp_path, _two)
    outer = rank["Aten.sin.0.forward"]
    assert ops(outer.children) == ["aten::sin", "aten::sin"]
    assert [c.name for c in outer.children] == ["Aten.sin.1.forward", "Aten.sin.2.forward"]
    assert_same(_x().sin(), outer.children[0].outputs.tensor())
    assert_same((2 * _x()).sin(), outer.children[1].outputs.tensor())
    assert outer.outputs.shape == (5, 4)
    assert outer.parent.op == "torch.Tensor.sin"
    assert_linked(rank)
    node = only(calls(rank, kind="node", op="SinBackward0"))
    assert node.forward == outer


class Sees(TorchDispatchMode):
    """Notes the ops and the classes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func.name(), [t.__name__ for t in types]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inside", [True, False])
def test_a_users_mode_sees_ops_of_a_subclass_as_without_us(tmp_path: Path, inside: bool) -> None:
    with Sees() as bare:
        _two()
    mode, dump = Sees(), DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full"))
    with dump if inside else mode, mode if inside else dump:
        _two()
        found = list(mode.seen)
    assert found == bare.seen


class Named(Tensor):
    """A subclass with ``__torch_function__`` only."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_with_a_torch_function(tmp_path: Path) -> None:
    def program() -> Any:
        Named.calls.clear()
        x = _x().as_subclass(Named).requires_grad_()
        y = (x.sin() * x).sum()
        y.backward()
        assert x.grad is not None
        return type(y).__name__, list(Named.calls), x.grad.as_subclass(Tensor)

    rank = recorded(tmp_path, program)
    assert_same(_x().sin(), only(calls(rank, op="aten::sin")).outputs.tensor())
    assert_linked(rank)


def test_a_jagged_tensor_asks_no_questions_of_the_dump(tmp_path: Path) -> None:
    linear = nn.Linear(4, 3)

    def program() -> Any:
        rows = torch.nested.nested_tensor([_x()[:2], _x()[2:]], layout=torch.jagged, requires_grad=True)
        linear.zero_grad()
        linear(rows).relu().values().sum().backward()
        return linear.weight.grad

    rank = recorded(tmp_path, program)
    assert not [call.op for call in rank.calls if call.op.startswith("prim::") or "sym_size" in call.op]
    forward = only(calls(rank, kind="node", op="LinearBackward0")).forward
    assert forward.op == "aten::linear"
    assert ops(forward.children) == ["aten::linear"]


@torch.library.custom_op("aten_dump_test::scale", mutates_args=())
def scale(x: Tensor, factor: float) -> Tensor:
    return x.sin() * factor


@scale.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, g: (g * ctx.factor * ctx.saved_tensors[0].cos(), None), setup_context=_setup)


@torch.library.custom_op("aten_dump_test::add_to", mutates_args=("out",))
def add_to(x: Tensor, out: Tensor) -> None:
    out.add_(x)


def test_a_custom_op_with_an_autograd_formula(tmp_path: Path) -> None:
    def program() -> Any:
        x = _x().requires_grad_()
        y = scale(x * 2, 3.0)
        y.sum().backward()
        return y.detach(), x.grad

    rank = recorded(tmp_path, program)
    call = rank["Custom.scale.0.forward"]
    assert call.op == "aten_dump_test::scale"
    assert_same((_x() * 2).sin() * 3.0, call.outputs.tensor())
    assert_linked(rank)
    assert only(calls(rank, op="aten::cos")).forward == call.parent
    assert note(rank, "custom_ops").count == 1


def test_what_a_custom_op_writes_is_a_new_version(tmp_path: Path) -> None:
    def program() -> Any:
        out = torch.zeros(5, 4)
        add_to(_x(), out)
        return out * 2

    rank = recorded(tmp_path, program)
    call = rank["Custom.add_to.0.forward"]
    assert call.mutated == ("out",)
    product = calls(rank, op="aten::mul.Tensor")[-1]
    assert_same(_x(), product.inputs[0][0].tensor())
    assert_same(torch.zeros(5, 4), call.inputs[0][1].tensor())


def _cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 100, lambda x: x.sin(), lambda x: x.cos(), (x,))


def _cond_backward() -> Any:
    x = _x().requires_grad_()
    _cond(x).sum().backward()
    return x.grad


def _attention() -> Any:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 16, 16) for _ in range(3))
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))


def _below(call: Any) -> list[Any]:
    return [below for child in call.children for below in (child, *_below(child))]


_OPERATORS: dict[str, tuple[Any, str, list[str]]] = {
    "cond": (lambda: _cond(_x()), "cond", ["aten::cos"]),
    "cond backward": (_cond_backward, "cond", ["aten::cos"]),
    "while_loop": (
        lambda: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), _x())),
        "while_loop",
        ["aten::mul.Tensor"] * 3,
    ),
    "scan": (lambda: scan(lambda c, x: (c + x, c * x), torch.zeros(4), _x()), "scan", ["aten::mul.Tensor"] * 5),
    "map": (lambda: map_op(lambda x: x.sin(), _x()), "map_impl", ["aten::sin"] * 5),
    "flex_attention": (_attention, "flex_attention", ["aten::logsumexp"]),
}


@pytest.mark.parametrize("name", list(_OPERATORS))
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_higher_order_operator_is_a_call_with_its_bodys_ops(tmp_path: Path, name: str) -> None:
    program, op, inner = _OPERATORS[name]
    rank = recorded(tmp_path, program)
    call = calls(rank, op=f"higher_order::{op}", phase="forward")[0]
    assert [op for op in ops(_below(call)) if op in inner][-len(inner) :] == inner  # an older scan asks the body first
    assert call.outputs is not None
    if name == "cond backward":
        assert_linked(rank)


@needs_higher_order_under_modes
def test_a_higher_order_operator_under_another_mode(tmp_path: Path) -> None:
    """A mode that is for such operators sees them as without us; what is in them we do not see then, and say so."""

    class Takes(Sees):
        supports_higher_order_operators = True

    def program() -> Any:
        with Takes() as mode:
            y = map_op(lambda x: x.sin(), _x())
        return y, mode.seen

    with Takes() as outer, DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        y = map_op(lambda x: x.sin(), _x())
    assert_same(_x().sin(), y)
    assert [name for name, _ in outer.seen if "map" in name] == ["map_impl"]


# -- by hand


def _watched(watched: Watched, func: Any, *args: Any) -> WatchedOp:
    op = watch(watched.recorder.ops, watched.recorder.step.here.state, watched.recorder.ops.entry_of(func), args, {})
    assert op is not None
    return op


def test_what_stands_for_an_op_is_its_place_and_no_record() -> None:
    watched, x = Watched(), torch.ones(2)
    op = _watched(watched, torch.ops.aten.add_.Scalar, x, 1)
    call = open_nested(op)
    stack = watched.recorder.step.here.state.stack
    assert stack == [call] and (call.id, call.visible, call.kind, call.recorded) == (op.id, op.id, ATEN, False)
    assert op.n == 0, "its number comes before those of the ops in it"
    inner = _watched(watched, torch.ops.aten.add_.Scalar, x, 1)
    assert inner.parent == op.id
    inner.end((x, 1), {}, x, None)
    watched.recorder.step.drop(watched.recorder.step.here.state, call)
    op.end((x, 1), {}, x, None)
    assert stack == [] and [(one.id, one.n) for one in watched.calls] == [(inner.id, 1), (op.id, 0)]
    watched.recorder.close()


def test_inner_ops_of_an_op_that_is_left_out_are_its_parent_s() -> None:
    watched, x = Watched(exclude_ops=("add_",)), torch.ones(2)
    op = _watched(watched, torch.ops.aten.add_.Scalar, x, 1)
    assert open_nested(op).visible == 0 and op.n == -1
    watched.recorder.close()


def test_for_a_subclass_our_mode_goes_below_the_program_s_and_away_again() -> None:
    watched = Watched()
    thread, mode, seen = watched.recorder.step.here.state, watched.modes.dispatch, []

    def op(x: int) -> int:
        seen.append(
            (thread.delegated, torch._C._get_dispatch_stack_at(0) is mode, torch._C._len_torch_dispatch_stack())
        )
        return x + 1

    thread.delegated = "outer"
    with Passing():
        assert run_subclass_op(mode, thread, op, (1,), {}) == 2
        assert torch._C._len_torch_dispatch_stack() == 1
    assert seen == [(op, True, 2)] and thread.delegated == "outer"


def test_after_an_error_of_a_subclass_all_is_as_it_was() -> None:
    watched = Watched()
    thread = watched.recorder.step.here.state

    def op() -> None:
        raise ValueError("of the subclass")

    with pytest.raises(ValueError, match="of the subclass"):
        run_subclass_op(watched.modes.dispatch, thread, op, (), {})
    assert thread.delegated is None and torch._C._len_torch_dispatch_stack() == 0


def _add_or_subtract() -> tuple[Any, tuple[Any, ...]]:
    x = torch.ones(2)
    return torch.ops.higher_order.cond, (True, lambda y: y + 1, lambda y: y - 1, (x,))


def test_the_ops_of_a_higher_order_operator_s_body_are_seen_and_no_others() -> None:
    mode, coverage = Passing(), Coverage()
    func, args = _add_or_subtract()
    result = run_higher_order(mode, coverage, func, args, {})
    assert torch.utils._pytree.tree_leaves(result)[0].tolist() == [2, 2]
    assert mode.ops == ["aten::add.Tensor"] and coverage.notes() == []
    assert torch._C._len_torch_dispatch_stack() == 0


@needs_higher_order_under_modes
def test_under_another_mode_that_mode_decides_and_the_dump_says_what_it_could_not_see() -> None:
    mode, coverage, other = Passing(), Coverage(), Passing()
    func, args = _add_or_subtract()
    with other:
        run_higher_order(mode, coverage, func, args, {})
    assert mode.ops == [] and [(note.code, note.count) for note in coverage.notes()] == [("higher_order", 1)]
    assert "cond" in coverage.notes()[0].message


def test_an_operator_that_is_not_known_is_one_call() -> None:
    class Unknown:
        py_kernels: ClassVar[dict[Any, Any]] = {torch._C.DispatchKey.CompositeExplicitAutograd: lambda x: x + 1}

        def name(self) -> str:
            return "of another library"

        def __call__(self, x: Tensor) -> Tensor:
            return x * 2

    mode, coverage = Passing(), Coverage()
    assert run_higher_order(mode, coverage, Unknown(), (torch.ones(1),), {}).tolist() == [2]
    assert mode.ops == [] and coverage.notes()[0].code == "higher_order"
