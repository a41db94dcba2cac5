"""Which arguments a call reads: what it only writes to may be garbage."""

from __future__ import annotations

import pytest

from aten_dump.store import records as r
from aten_dump.store.op_names import read_inputs
from tests.store.recording import call

X, Y, OUT = (0, 1), (0, 2), (0, 3)


def op(name: str, api: str, arguments: tuple[str, ...] = ()) -> r.Op:
    return r.Op(r.OP, 1, 0, name, "Aten", api, list(arguments))


@pytest.mark.parametrize(
    "api", ["copy_", "zero_", "fill_", "normal_", "log_normal_", "_foreach_copy_", "_foreach_zero_"]
)
def test_an_overwriting_op_does_not_read_its_first_argument(api: str) -> None:
    one = call(1, args=[X, Y], written=["self", X])
    assert read_inputs(op(f"aten::{api}", api), one) == [Y]


@pytest.mark.parametrize("api", ["add_", "relu_", "_foreach_fill_", "copy"])
def test_others_read_what_they_write(api: str) -> None:
    one = call(1, args=[X, Y], written=["self", X])
    assert read_inputs(op(f"aten::{api}", api), one) == [X, Y]


def test_out_is_written_only() -> None:
    one = call(1, args=[X], kwargs={"out": OUT, "alpha": 2}, written=["out", OUT])
    assert read_inputs(op("aten::exp.out", "exp"), one) == [X, 2]


def test_of_an_aten_op_every_written_keyword_of_another_op_out_alone() -> None:
    one = call(1, args=[X], kwargs={"values": Y, "out": OUT}, written=["values", Y, "out", OUT])
    assert read_inputs(op("aten::sort.values", "sort"), one) == [X]
    assert read_inputs(op("mine::sort", "sort"), one) == [X, Y]


def test_a_call_that_wrote_nothing_has_read_all() -> None:
    one = call(1, args=[X, Y], kwargs={"out": OUT}, error="RuntimeError: no")
    assert read_inputs(op("aten::copy_", "copy_"), one) == [X, Y, OUT]


GROUP = (r.TREE_DICT, "group", "0", "ranks", (r.TREE_LIST, 4, 9))


def broadcast(group: object, root: object, rank: int | None) -> list[object]:
    """What a rank reads of a broadcast of X."""
    names = ["tensors", "process_group", "root_rank"]
    sends = r.Op(r.OP, 1, 0, "c10d::broadcast_", "Distributed", "broadcast_", names)
    return read_inputs(sends, call(1, args=[X, group, root], written=["tensors", X]), rank)


@pytest.mark.parametrize(("rank", "reads"), [(4, True), (9, False), (None, True)])
def test_of_a_broadcast_only_the_root_reads(rank: int | None, reads: bool) -> None:
    assert (X in broadcast(GROUP, 0, rank)) == reads


@pytest.mark.parametrize(
    ("group", "root"),
    [(3, 0), ((r.TREE_DICT, "ranks"), 0), ((r.TREE_DICT, "ranks", 5), 0), (GROUP, 7), (GROUP, "0")],
)
def test_a_broadcast_of_which_nothing_is_known_has_read_all(group: object, root: object) -> None:
    assert X in broadcast(group, root, 9)


def test_where_a_gather_of_fsdp_writes_is_not_read() -> None:
    one = call(1, args=[X, OUT, 5], written=None)
    arguments = ("all_gather_inputs", "all_gather_output", "inp_split_sizes")
    assert read_inputs(op("fsdp::all_gather_copy_in", "all_gather_copy_in", arguments), one) == [X, 5]


def test_a_gather_of_fsdp_that_makes_its_own_memory_reads_all() -> None:
    one = call(1, args=[X, 5, 4], written=None)
    arguments = ("all_gather_inputs", "inp_split_sizes", "world_size")
    assert read_inputs(op("fsdp::all_gather_copy_in", "all_gather_copy_in", arguments), one) == [X, 5, 4]


@pytest.mark.parametrize(("is_first", "read"), [(True, [X]), (False, [X, Y])])
def test_a_fused_sgd_reads_its_momentum_from_the_second_step_on(is_first: bool, read: list[object]) -> None:
    one = call(1, args=[X, Y], kwargs={"is_first_step": is_first}, written=["self", X, "momentum_buffer_list", Y])
    sgd = op("aten::_fused_sgd_", "_fused_sgd_", ("self", "momentum_buffer_list"))
    assert read_inputs(sgd, one) == [*read, is_first]
