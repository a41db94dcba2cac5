"""Recomputed calls are tied to those that they run again, by data flow alone."""

from __future__ import annotations

from typing import Any

import torch

from aten_dump.dump import open_dump
from aten_dump.dump.index.links import key_of, originals_of
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.store.recording import call

SMALL = torch.zeros(2)


class Program:
    """Calls of a program with checkpoints: `run` gives a call its output and returns it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def op(self, name: str, kind: str = "aten") -> int:
        return self.builder.op(kind, f"aten::{name}" if kind == "aten" else name, kind.capitalize(), name)

    def make(self, tensor: torch.Tensor | None = None, **options: Any) -> list[int]:
        return value(self.builder.value(torch.zeros(2) if tensor is None else tensor, **options))

    def run(self, name: str, *args: Any, out: list[int] | None = None, **fields: Any) -> list[int]:
        out = self.make() if out is None else out
        self.builder.call(self.op(name), args=list(args), outputs=out, **fields)
        return out

    def again(self, name: str, *args: Any, **fields: Any) -> list[int]:
        return self.run(name, *args, phase="recompute", **fields)

    def node(self, forward: int) -> int:
        op = self.op("Backward0", "node")
        return self.builder.call(op, phase="backward", forward=forward)

    def originals(self) -> dict[int, int]:
        return originals_of(open_dump(self.builder.finish()).rank(0, 0).tables)


def test_nothing_recomputed(builder: Builder) -> None:
    program = Program(builder)
    program.run("exp", program.make())
    assert program.originals() == {}


def test_a_chain_is_followed_through_values_made_again(builder: Builder) -> None:
    program = Program(builder)
    x = program.make()
    program.run("exp", program.run("sin", x))  # 1, 2
    program.run("exp", program.run("sin", program.make()))  # 3, 4: another input
    program.again("exp", program.again("sin", x))  # 5, 6
    assert program.originals() == {5: 1, 6: 2}


def test_literals_tell_equal_ops_apart(builder: Builder) -> None:
    program = Program(builder)
    x = program.make()
    program.run("add", x, 1)
    program.run("add", x, 2)
    program.again("add", x, 2)
    assert program.originals() == {3: 2}


def test_nan_as_a_literal_is_equal_to_itself(builder: Builder) -> None:
    program = Program(builder)
    x = program.make()
    program.run("add", x, 1.0)
    program.run("add", x, float("nan"))
    program.again("add", x, float("nan"))
    assert program.originals() == {3: 2}


def test_equal_calls_are_taken_in_order(builder: Builder) -> None:
    """Two dropouts of one input: within a region, never before the one matched last."""
    program = Program(builder)
    x = program.make()
    program.run("dropout", x)
    program.run("dropout", x)
    program.again("dropout", x)
    program.again("dropout", x)
    assert program.originals() == {3: 1, 4: 2}


def test_regions_that_look_like_one_are_found_from_the_last_to_the_first(builder: Builder) -> None:
    """Backward calls were not selected: nothing lies between what two layers run again."""
    program = Program(builder)
    layers = [program.make(), program.make()]
    for x in layers:
        program.run("cos", program.run("sin", x))
    for x in reversed(layers):
        program.again("cos", program.again("sin", x))
    assert program.originals() == {5: 3, 6: 4, 7: 1, 8: 2}


def test_of_equal_candidates_it_is_the_one_that_what_follows_agrees_with(builder: Builder) -> None:
    program = Program(builder)
    for name in ("sin", "cos"):
        program.run("rand", 2)
        program.run(name, program.make())
    program.again("rand", 2)
    program.again("sin", program.make())
    assert program.originals()[5] == 1


def test_a_region_is_needed_by_a_forward_call_and_lies_before_it(builder: Builder) -> None:
    """Two equal layers: the region that the first one's backward needs is the first."""
    program = Program(builder)
    module = program.op("m", "module")
    for _ in range(2):
        layer = builder.next("call")
        program.run("rand", 2, parent=layer)
        builder.call(module, id=layer, start_ns=layer * 10_000, duration_ns=20_000)
    for forward in (3, 1):  # backward runs from the last to the first
        node = program.node(forward)
        program.again("rand", 2, parent=node)
    assert program.originals() == {6: 4, 8: 2}


def test_written_meanwhile_it_is_found_by_its_storage(builder: Builder) -> None:
    """Running statistics: the same memory at another version."""
    program = Program(builder)
    stats = torch.zeros(3)
    x = program.make()
    program.run("norm", x, program.make(stats))
    program.run("norm", x, program.make(torch.ones(3)))
    program.again("norm", x, program.make(stats, version=1))
    assert program.originals() == {3: 1}


def test_a_copied_input_is_found_by_its_shape_where_what_follows_agrees(builder: Builder) -> None:
    program = Program(builder)
    for size in (2, 5):
        y = program.run("sin", program.make(torch.zeros(size)))
        program.run("tanh", program.run("cos", y))
    y = program.again("sin", program.make(torch.zeros(5)))
    program.again("tanh", program.again("cos", y))
    assert program.originals() == {7: 4, 8: 5, 9: 6}


def test_a_short_likeness_in_shape_is_no_proof(builder: Builder) -> None:
    program = Program(builder)
    program.run("sin", program.make(torch.zeros(5)))
    program.run("cos", program.make(torch.zeros(5)))
    program.run("exp", program.make(torch.zeros(5)))
    program.again("sin", program.make(torch.zeros(5)))
    program.again("tanh", program.make(torch.zeros(4)))
    program.again("sigmoid", program.make(torch.zeros(4)))
    assert program.originals() == {}


def test_what_runs_after_the_region_is_no_original(builder: Builder) -> None:
    program = Program(builder)
    x = program.make()
    program.again("sin", x)
    program.run("sin", x)
    assert program.originals() == {}


def test_other_dtype_or_op_is_no_original(builder: Builder) -> None:
    program = Program(builder)
    program.run("sin", program.make(torch.zeros(2, dtype=torch.float64)))
    program.run("cos", program.make())
    program.again("sin", program.make())
    assert program.originals() == {}


def test_keys() -> None:
    one = call(1, op=4, args=[(r.TREE_VALUE, 7), 2, (r.TREE_DTYPE, "float32")], kwargs={"b": 1, "a": (r.TREE_VALUE, 8)})
    assert key_of(one, lambda v: v + 10) == (
        4, ((r.TREE_VALUE, 17), 2, (r.TREE_DTYPE, "float32")), (("a", (r.TREE_VALUE, 18)), ("b", 1)),
    )  # fmt: skip
    assert key_of(one, str, literals=False) == (
        4, ((r.TREE_VALUE, "7"), None, r.TREE_DTYPE), (("a", (r.TREE_VALUE, "8")), ("b", None)),
    )  # fmt: skip
    assert key_of(call(1, op=4), int) == (4, ())
