"""One recorded op run again: which can be, in which dtype, with which random numbers, and how results are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.rerun.run_op import (
    Run,
    find_op,
    leaves,
    recorded_slots,
    result_slots,
    run_call,
    run_on,
    same_bits,
)
from aten_dump.dump import Call
from aten_dump.errors import ReplayError
from aten_dump.store import records as r
from tests.analysis.by_hand import one_call
from tests.dump.building import Builder, value

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Call]:
    count = iter(range(100))

    def call(op: str, given: Any = (X,), *results: torch.Tensor, **options: Any) -> Call:
        return one_call(tmp_path / str(next(count)), op, given, results or (X,), **options)

    return call


Make = Callable[..., Call]


# -- which op ------------------------------------------------------------------------------------------------------


def test_an_op_is_found_by_its_name(make: Make) -> None:
    assert find_op(make("aten::add.Tensor")) is torch.ops.aten.add.Tensor
    assert find_op(make("aten::relu")) is torch.ops.aten.relu.default


@pytest.mark.parametrize(
    ("op", "kind", "message"),
    [
        ("torch.add", "api", "is a call of kind api; replay the aten ops inside it"),
        ("c10d::allreduce_", "aten", "a collective: it needs the other ranks"),
        ("_c10d_functional::all_reduce", "aten", "a collective"),
        ("profiler::_record_function_enter_new", "aten", "profiler ops compute nothing that is recorded"),
        ("prim::device", "aten", "prim ops compute nothing"),
        ("aten::empty.memory_format", "aten", "it returns undefined memory"),
        ("aten::empty_like", "aten", "it returns undefined memory"),
        ("aten::no_such_op", "aten", "no_such_op"),
        ("aten::add.NoSuchOverload", "aten", "NoSuchOverload"),
    ],
)
def test_what_is_no_op_that_can_run(make: Make, op: str, kind: str, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        find_op(make(op, kind=kind))


def test_a_call_that_raised_is_not_run(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    op = b.op("aten", "aten::relu", "Aten", "relu", ("self",))
    id = b.call(op, args=[value(b.value(X))], error="RuntimeError: no")
    with pytest.raises(ReplayError, match="it raised in the program: RuntimeError: no"):
        run_call(open_dump(b.finish()).rank(0, 0).call(id))


# -- dtypes --------------------------------------------------------------------------------------------------------


def test_as_recorded_or_in_float64(make: Make) -> None:
    call = make("aten::add.Tensor", (X, Y), X + Y)
    plain, wide = run_call(call), run_call(call, cast=True)
    assert torch.equal(plain.outputs, X + Y)
    assert torch.equal(wide.outputs, X.double() + Y.double())
    assert plain.mutated == {} and not plain.drew


def test_dtype_arguments_follow(make: Make) -> None:
    call = make("aten::sum", (X,), X.sum(), keywords={"dtype": [r.TREE_DTYPE, "bfloat16"]})
    assert run_call(call).outputs.dtype == torch.bfloat16
    assert run_call(call, cast=True).outputs.dtype == torch.float64
    softmax = make("aten::_softmax", (X.half(), 0, True), X)
    assert run_call(softmax, cast=True).outputs.dtype == torch.float64, "half_to_float is about half"


@pytest.mark.parametrize("op", ["aten::view.dtype", "aten::frexp.Tensor", "aten::nextafter"])
def test_what_is_about_bits_has_no_float64_form(make: Make, op: str) -> None:
    with pytest.raises(ReplayError, match="about the bits of its dtype"):
        run_call(make(op), cast=True)


def test_what_it_raises_is_told(make: Make) -> None:
    with pytest.raises(ReplayError, match="it raised when replayed: RuntimeError"):
        run_call(make("aten::mm", (X, Y)))


# -- writes --------------------------------------------------------------------------------------------------------


def test_what_it_writes_is_what_was_made_anew(record: Callable[..., Any]) -> None:
    memory = X.clone()
    rank = record(lambda: (memory.add_(Y), torch.exp(X, out=memory)))
    added, exp = rank["Aten.add_.0.forward"], rank["Aten.exp.0.forward"]
    run = run_call(added)
    assert torch.equal(run.mutated["self"], X + Y) and run.mutated["self"].data_ptr() == run.outputs.data_ptr()
    assert torch.equal(run_call(added).outputs, X + Y), "the recording is as it was"
    assert torch.equal(run_call(exp).mutated["out"], X.exp())


# -- undefined memory ----------------------------------------------------------------------------------------------


def test_reading_undefined_memory_gives_itself_away(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.empty(4).add(1))
    with pytest.raises(ReplayError, match="reads memory that was undefined"):
        run_call(rank["Aten.add.0.forward"])
    rank = record(lambda: torch.empty(4).copy_(X))
    assert torch.equal(run_call(rank["Aten.copy_.0.forward"]).outputs, X), "it only wrote there"


# -- random numbers ------------------------------------------------------------------------------------------------


def test_random_numbers_are_drawn_again(record: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    rank = record(lambda: torch.bernoulli(torch.full((64,), 0.5)))
    call = rank["Aten.bernoulli.0.forward"]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    run = run_call(call)
    assert run.drew and torch.equal(run.outputs, call.outputs.tensor())
    assert torch.equal(torch.get_rng_state(), before), "the program's generator is as it was"
    with pytest.raises(ReplayError, match="depend on the dtype"):
        run_call(call, cast=True)


def test_a_random_op_that_draws_nothing_may_be_cast(record: Callable[..., Any]) -> None:
    q = torch.ones(1, 1, 2, 4)
    rank = record(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    call = next(c for c in rank.calls if c.kind == "aten" and "attention" in c.op)
    run = run_call(call, cast=True)
    assert not run.drew


def test_without_its_state_nothing_can_be_drawn_again(make: Make) -> None:
    with pytest.raises(ReplayError, match="the state of the generator was not recorded"):
        run_call(make("aten::bernoulli", (X / 4,)))


# -- on other tensors ----------------------------------------------------------------------------------------------


def test_on_other_tensors_than_were_recorded(make: Make) -> None:
    call = make("aten::add.Tensor", (X, Y), X + Y)
    given = {v.id: t for (_, v), t in zip(call.input_values(), (X.double() * 2, Y.double()), strict=True)}
    assert torch.equal(run_on(call, lambda v: given[v.id]).outputs, X.double() * 2 + Y.double())


# -- names of results ----------------------------------------------------------------------------------------------


def test_results_are_named_as_in_a_dump() -> None:
    one = Run(X, {"self": Y})
    assert [slot for slot, _ in result_slots(one)] == ["output.0", "mutated.self"]
    many = Run((X, [Y, None]), {"out": [X, Y]})
    assert [slot for slot, _ in result_slots(many)] == [
        "output.0",
        "output.1.0",
        "output.1.1",
        "mutated.out.0",
        "mutated.out.1",
    ]
    assert [slot for slot, _ in result_slots(Run((), {}))] == []


def test_what_was_recorded_has_the_same_names(record: Callable[..., Any]) -> None:
    rank = record(lambda: (X.view(2, 2).max(1), X.clone().add_(1), X.chunk(2)))
    for name in ("max", "add_", "split"):
        call = rank[f"Aten.{name}.0.forward"]
        assert [slot for slot, _ in recorded_slots(call)] == [slot for slot, _ in result_slots(run_call(call))]


def test_leaves_of_trees() -> None:
    tree = {"a": [1, (2,)], "b": None}
    assert list(leaves(tree, "x")) == [("x.a.0", 1), ("x.a.1.0", 2), ("x.b", None)]
    assert list(leaves([], "x")) == [] and list(leaves(3, "x")) == [("x", 3)]


# -- bits ----------------------------------------------------------------------------------------------------------

NAN = torch.tensor([math.nan])
OTHER_NAN = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (X, X.clone(), True),
        (X, Y, False),
        (X, X.double(), False),
        (X, X.view(2, 2), False),
        (X, X.to_sparse(), False),
        (NAN, NAN.clone(), True),
        (NAN, OTHER_NAN, False),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.empty(0), torch.empty(0), True),
        (torch.ones(1).expand(1), torch.ones(1), True),
        (torch.ones(1, 1).expand(1, 3)[:, :1], torch.ones(1, 1), True),
        (X.view(2, 2).t(), X.view(2, 2).t().contiguous(), True),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (X.to_sparse(), X.to_sparse(), True),
        (X.to_sparse(), Y.to_sparse(), False),
        (X, 3, False),
        (torch.tensor(3), 3, False),
        (3, 3, True),
        (3, 4, False),
        (math.nan, math.nan, True),
        (None, None, True),
    ],
)
def test_bit_by_bit(one: Any, other: Any, same: bool) -> None:
    assert same_bits(one, other) == same_bits(other, one) == same


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_by_their_integers() -> None:
    made = [torch.quantize_per_tensor(x, 0.1, 0, torch.qint8) for x in (X, X.clone(), Y)]
    assert same_bits(made[0], made[1]) and not same_bits(made[0], made[2])


def test_a_device_that_this_torch_does_not_know_is_where_it_runs(tmp_path: Path) -> None:
    """As of a dump from another device, read where its package is not installed."""
    keywords = {"device": [r.TREE_DEVICE, "warp:0"]}
    call = one_call(tmp_path / "dump", "aten::zeros_like", [torch.ones(3)], [torch.zeros(3)], keywords=keywords)
    assert call.inputs[1] == {"device": "warp:0"}
    assert torch.equal(run_call(call).outputs, torch.zeros(3))
