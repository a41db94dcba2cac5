"""The two modes: what they record, why not, and that the program's results and errors pass as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aten_dump.capture.intercept.torch_modes import ApiMode, OpMode
from aten_dump.store import records as r
from tests.capture.intercept.modes import Passing, Scaled
from tests.capture.intercept.watched import Watched


class Both:
    """Our two modes, over a recorder on a sink in memory."""

    def __init__(self, **config: Any) -> None:
        self.watched = Watched(**config)
        self.ops = OpMode(self.watched.watch, lambda: True)
        self.apis = ApiMode(self.watched.watch, self.ops)

    def run(self, body: Callable[[], Any]) -> Any:
        with self.apis, self.ops:
            return body()

    def names(self) -> list[str]:
        return self.watched.names()


@pytest.fixture
def both() -> Iterator[Both]:
    one = Both()
    yield one
    one.watched.recorder.close()


def test_the_outermost_call_is_recorded_with_the_ops_in_it(both: Both) -> None:
    x = torch.ones(2, 3)
    y = both.run(lambda: torch.nn.functional.linear(x, torch.ones(4, 3), torch.zeros(4)))
    assert both.names()[-3:] == ["Aten.t", "Aten.addmm", "Functional.linear"]
    t, addmm, linear = both.watched.calls[-3:]
    assert (t.parent, addmm.parent, linear.parent) == (linear.id, linear.id, 0)
    assert torch.equal(y, torch.full((2, 4), 3.0))


def test_reading_an_attribute_is_no_call(both: Both) -> None:
    x = torch.ones(2)
    both.run(lambda: (x.shape, x.grad, x.device, x.requires_grad))
    assert both.names() == []


@pytest.mark.parametrize("kind", ["api", "op"])
def test_an_error_passes_as_it_is_and_is_the_call_s(both: Both, kind: str) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        both.run(lambda: torch.mm(x, x) if kind == "api" else torch.ops.aten.mm.default(x, x))
    errors = [call.error for call in both.watched.calls]
    assert len(errors) >= 1 and all(error is not None and "mat1 and mat2" in error for error in errors)
    assert both.watched.recorder.step.here.state.stack == []


def test_an_interrupt_passes_too(both: Both) -> None:
    def interrupted(tensor: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        both.run(lambda: torch.ones(1, device="cpu").apply_(interrupted))
    assert any(call.error and "KeyboardInterrupt" in call.error for call in both.watched.calls)


def test_while_nothing_is_recorded_all_passes(both: Both) -> None:
    both.watched.watch.turn_off()
    assert both.run(lambda: torch.ones(2).exp().add_(1)) is not None
    assert both.watched.sink.records == []
    both.watched.watch.turn_on(both.watched.recorder)


def test_our_own_code_is_not_recorded(both: Both) -> None:
    state = both.watched.recorder.step.here.state

    def body() -> None:
        state.own.depth += 1
        torch.ones(2).exp()
        state.own.depth -= 1

    both.run(body)
    assert both.names() == []


def test_what_is_traced_is_counted_and_not_recorded(both: Both) -> None:
    def body() -> None:
        with FakeTensorMode():
            torch.ones(2).exp()

    both.run(body)
    assert both.names() == [] and both.watched.notes()["traced"] >= 2


def test_ops_on_fake_tensors_made_before_are_left_out(both: Both) -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    both.run(lambda: fake.exp())
    assert both.names() == []


def test_under_the_program_s_own_mode_calls_are_recorded(both: Both) -> None:
    """A mode that only looks is no tracer; ops reach ours when it has let them pass."""

    def body() -> None:
        with Passing() as passing:
            torch.ones(2).exp()
            assert passing.ops == ["aten::ones", "aten::exp"]

    both.run(body)
    assert both.names() == ["Aten.ones", "Torch.ones", "Aten.exp", "Tensor.exp"]


def test_a_call_whose_formula_differs_under_a_mode_runs_without_ours(both: Both) -> None:
    x = torch.randn(3, 2, dtype=torch.complex64)
    expected = torch.linalg.pinv(x)
    found = both.run(lambda: torch.linalg.pinv(x))
    assert torch.equal(found, expected)
    assert len(both.names()) == 1 and both.names()[0].endswith("pinv") and both.watched.notes() == {"own_formula": 1}


def test_a_function_that_writes_by_address_between_its_ops_is_one_op(both: Both) -> None:
    """Else the ops in it would read what the recorder does not know of; the numbers are those of the bare program."""
    expected = torch.quasirandom.SobolEngine(3, scramble=True, seed=1).draw(20)
    found = both.run(lambda: torch.quasirandom.SobolEngine(3, scramble=True, seed=1).draw(20))
    assert torch.equal(found, expected)
    of_sobol = [name.removeprefix("Aten.") for name in both.names() if name.startswith("Aten._sobol")]
    assert of_sobol == [f"_sobol_engine_{name}" for name in ("initialize_state_", "scramble_", "draw")]
    with Passing() as passing:
        torch.quasirandom.SobolEngine(3).fast_forward(2)
    bare = passing.ops
    with Passing() as passing:
        both.run(lambda: torch.quasirandom.SobolEngine(3).fast_forward(2))
    assert passing.ops == bare and "aten::pow.Scalar" in bare, "another mode sees the ops that it sees without ours"


def test_where_the_program_has_a_mode_too_the_formula_is_that_of_the_bare_program(both: Both) -> None:
    x = torch.randn(3, 2, dtype=torch.complex64)

    def body() -> None:
        with Passing():
            torch.linalg.pinv(x)

    both.run(body)
    assert len(both.names()) > 1 and both.watched.notes() == {}


def test_a_failure_of_ours_before_a_call_lets_it_run_unrecorded(both: Both) -> None:
    x = torch.ones(2)
    both.watched.recorder.step.next_id = lambda: 1 // 0
    y = both.run(lambda: x.add_(1))
    assert y is x and x.tolist() == [2, 2]
    assert {type(error) for error in both.watched.told.aloud} == {ZeroDivisionError}


def test_the_inner_ops_of_a_subclass_are_children_of_its_op(both: Both) -> None:
    x = Scaled(torch.ones(2))
    both.run(lambda: torch.ops.aten.exp.default(x))
    inner, outer = both.watched.calls
    assert both.names() == ["Aten.exp", "Aten.exp"] and inner.parent == outer.id
    assert (inner.n, outer.n) == (1, 0) and both.watched.recorder.step.here.state.delegated is None


def test_what_a_subclass_is_asked_for_its_shape_is_no_call(both: Both) -> None:
    x = Scaled(torch.ones(2))
    assert both.run(lambda: tuple(torch.ops.aten.sym_size.default(x))) == (2,)
    assert both.names() == []


def test_dynamo_is_told_what_was_decided() -> None:
    for answer in (True, False):
        assert OpMode(Watched().watch, lambda answer=answer: answer).ignore_compile_internals() is answer  # type: ignore[misc]


def test_the_stack_of_a_call_begins_at_the_program_s_line() -> None:
    both = Both(stacks=True)
    both.run(lambda: torch.ones(2))
    texts = {text.id: text.text for text in both.watched.sink.of(r.TEXT)}
    stacks = {stack.id: stack for stack in both.watched.sink.of(r.STACK)}
    frames = {frame.id: frame for frame in both.watched.sink.of(r.FRAME)}
    begun = [texts[frames[stacks[call.stack].frame].function] for call in both.watched.calls]
    assert begun and all(function.endswith("<lambda>") for function in begun)
    both.watched.recorder.close()


def test_what_python_writes_element_by_element_is_a_write(record: Callable[..., Any]) -> None:
    def body() -> None:
        x = torch.arange(3.0)
        x.apply_(lambda element: element + 1)
        x.exp()
        x.map_(torch.full((3,), 2.0), lambda one, other: one * other)
        x.exp()

    rank = record(body, data="tensor")
    given = [call.inputs[0][0].tensor().tolist() for call in rank.calls if call.op == "aten::exp"]
    assert given == [[1, 2, 3], [2, 4, 6]]
    assert [call.mutated for call in rank.calls if call.op in ("torch.Tensor.apply_", "torch.Tensor.map_")] == [
        ("0",),
        ("0",),
    ]
