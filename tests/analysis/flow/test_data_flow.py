"""Who made what a call reads: results, views, writes in place, memory from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from aten_dump import open_dump
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.dump import Call, Value
from tests.dump.building import Builder, value

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])


@pytest.fixture
def flow(record: Callable[..., Any]) -> Callable[..., DataFlow]:
    def make(body: Callable[[], object], kind: str = "aten") -> DataFlow:
        return DataFlow(record(body), kind)

    return make


Flows = Callable[..., DataFlow]


def call(flow: DataFlow, name: str, n: int = 0) -> Call:
    found: Call = flow.rank[f"Aten.{name}.{n}.forward"]
    return found


def api(value: tuple[Call, str, Value] | Call | None) -> str | None:
    found = value[0] if isinstance(value, tuple) else value
    return None if found is None else found.name


# -- makers and writers --------------------------------------------------------------------------------------------


def test_a_result_has_a_maker_and_data_have_none(flow: Flows) -> None:
    found = flow(lambda: X.exp().add(Y))
    add = call(found, "add")
    made, outside = add.inputs[0]
    assert api(found.maker(made)) == "Aten.exp.0.forward"
    assert found.writer(made) == (call(found, "exp"), "output.0", made)
    assert found.maker(outside) is None and found.writer(outside) is None


def test_a_view_is_shown_by_one_call_and_written_by_another(flow: Flows) -> None:
    found = flow(lambda: X.exp().view(2, 2).t().relu())
    seen = call(found, "relu").inputs[0][0]
    assert api(found.maker(seen)) == "Aten.t.0.forward"
    writer = found.writer(seen)
    assert writer is not None
    assert (api(writer), writer[1], tuple(writer[2].shape)) == ("Aten.exp.0.forward", "output.0", (4,))
    assert found.is_view(call(found, "t")) and found.is_view(call(found, "view"))
    assert not found.is_view(call(found, "exp")) and not found.is_view(call(found, "relu"))


def test_views_of_data_from_outside_have_no_writer(flow: Flows) -> None:
    found = flow(lambda: X.view(2, 2).relu())
    seen = call(found, "relu").inputs[0][0]
    assert api(found.maker(seen)) == "Aten.view.0.forward" and found.writer(seen) is None


def test_who_wrote_in_place_made_it(flow: Flows) -> None:
    found = flow(lambda: X.exp().add_(1).relu())
    seen = call(found, "relu").inputs[0][0]
    assert api(found.maker(seen)) == api(found.writer(seen)) == "Aten.add_.0.forward"
    assert found.writer(seen)[1] == "output.0"  # type: ignore[index]
    add = call(found, "add_")
    assert api(found.maker(add.inputs[0][0])) == "Aten.exp.0.forward", "what it was before"
    assert not found.is_view(add)


def test_a_write_through_a_view_is_seen_through_others(flow: Flows) -> None:
    def body() -> None:
        made = X.exp()
        made[:2].zero_()
        made.relu()

    found = flow(body)
    seen = call(found, "relu").inputs[0][0]
    assert api(found.writer(seen)) == "Aten.zero_.0.forward"
    assert api(found.maker(seen)) == "Aten.zero_.0.forward", "it made the memory what it is"
    zero = call(found, "zero_")
    before = [(tuple(v.shape), v.version) for v in found.before(zero, seen)]
    assert sorted(before) == [((2,), 0), ((4,), 0)], "what it wrote to, and what the reader sees there"


def test_a_result_that_is_what_was_given_is_no_result(flow: Flows) -> None:
    found = flow(lambda: X.exp().contiguous().relu_())
    assert found.results(call(found, "relu_")) != []
    relu = call(found, "relu_")
    assert [slot for slot, _ in found.results(relu)] == ["output.0"], "once, as output"


def test_out_is_written_and_not_read(flow: Flows) -> None:
    buffer = torch.zeros(4)
    found = flow(lambda: torch.exp(X, out=buffer).relu())
    exp = call(found, "exp")
    assert [slot for slot, _ in found.reads(exp)] == ["input.0"]
    assert api(found.writer(call(found, "relu").inputs[0][0])) == "Aten.exp.0.forward"


def test_several_results(flow: Flows) -> None:
    found = flow(lambda: X.view(2, 2).max(1)[1].neg())
    made = call(found, "max")
    assert [slot for slot, _ in found.results(made)] == ["output.0", "output.1"]
    writer = found.writer(call(found, "neg").inputs[0][0])
    assert writer is not None and writer[1] == "output.1"
    parts = flow(lambda: [part.neg() for part in X.exp().chunk(2)])
    split = call(parts, "split")
    assert parts.is_view(split) and parts.results(split) == []


def test_memory_that_was_written_where_nobody_saw_it(tmp_path: Path) -> None:
    """A call is given memory at a version that no call made, and only looks at it."""
    b = Builder(tmp_path / "dump")
    memory = torch.zeros(4)
    first = b.value(memory)
    op = b.op("aten", "aten::relu", "Aten", "relu", ("self",))
    b.call(op, args=[value(first)], outputs=value(b.value(torch.zeros(4))))
    unseen = b.value(memory, version=1)
    b.call(op, n=1, args=[value(unseen)], outputs=value(b.value(torch.zeros(4))))
    rank = open_dump(b.finish()).rank(0, 0)
    found = DataFlow(rank, "aten")
    assert found.maker(rank.value_by_id(unseen)) is None and found.writer(rank.value_by_id(unseen)) is None


def test_sparse_results_are_made_with_their_parts(flow: Flows) -> None:
    found = flow(lambda: X.view(2, 2).to_sparse().values().neg())
    neg = call(found, "neg")
    assert api(found.maker(neg.inputs[0][0])) is not None


# -- what takes part -----------------------------------------------------------------------------------------------


def test_only_calls_of_the_kind_take_part(flow: Flows) -> None:
    for kind, name in (("aten", "Aten.exp.0.forward"), ("api", "Tensor.exp.0.forward")):
        found = flow(lambda: X.exp().relu(), kind)
        assert [c.kind for c in found.calls()] == [kind, kind]
        assert next(found.calls()).name == name
        assert found.takes_part(found.rank[name])
        assert not found.takes_part(found.rank["Aten.relu.0.forward" if kind == "api" else "Tensor.relu.0.forward"])


def test_transport_and_placing_are_no_part_of_the_flow(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    memory, other = torch.zeros(4), torch.zeros(4)
    given, after = b.value(memory), b.value(memory, version=1)
    reduce = b.op("aten", "c10d::allreduce_", "Distributed", "allreduce_", ("tensors",))
    copy = b.op("aten", "aten::copy_", "Aten", "copy_", ("self", "src"))
    placing = b.op("aten", "aten::set_.source_Storage", "Aten", "set_", ("self", "source"))
    relu = b.op("aten", "aten::relu", "Aten", "relu", ("self",))
    b.call(copy, id=2, parent=1, args=[value(given)], outputs=value(after), written=["self", value(after)])
    b.call(copy, id=3, parent=2, args=[value(given)], outputs=value(after), written=["self", value(after)])
    b.call(reduce, id=1, args=[value(given)], outputs=value(after), written=["tensors", value(after)])
    placed = b.value(other)
    b.call(placing, id=4, args=[value(given)], outputs=value(placed), written=["self", value(placed)])
    b.call(relu, id=5, args=[value(placed)], outputs=value(b.value(torch.zeros(4))))
    rank = open_dump(b.finish()).rank(0, 0)
    found = DataFlow(rank, "aten")
    assert [c.id for c in found.calls()] == [1, 5]
    assert [found.takes_part(rank.call(number)) for number in (1, 2, 3, 4, 5)] == [True, False, False, False, True]
    assert api(found.maker(rank.value_by_id(after))) == rank.call(1).name, "the collective, not its transport"
    assert found.maker(rank.value_by_id(placed)) is None, "it is from outside"


# -- readers -------------------------------------------------------------------------------------------------------


def test_who_reads_a_result_also_through_views(flow: Flows) -> None:
    found = flow(lambda: (lambda made: (made.view(2, 2).t().neg(), made.relu(), Y.sin()))(X.exp()))
    assert [c.name for c in found.readers(call(found, "exp"))] == ["Aten.neg.0.forward", "Aten.relu.0.forward"]
    assert found.readers(call(found, "sin")) == []
    twice = flow(lambda: (lambda made: made.mul(made))(X.exp()))
    assert [c.name for c in twice.readers(call(twice, "exp"))] == ["Aten.mul.0.forward"], "once"


def test_memory_that_a_collective_is_writing_has_it_for_its_last_writer(flow: Flows) -> None:
    def body() -> None:
        total = X.exp()
        work = dist.all_reduce(total, async_op=True)
        seen = total.view(2, 2)
        work.wait()
        seen.relu()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = flow(body)
    finally:
        dist.destroy_process_group()
    flying = call(found, "view").inputs[0][0]
    assert flying.undefined and api(found.last_writer(flying)) == "Distributed.allreduce_.0.forward"
    waited = call(found, "relu").inputs[0][0]
    assert api(found.last_writer(waited)) == "Distributed.allreduce_.0.forward"
    assert found.last_writer(call(found, "exp").inputs[0][0]) is None


# -- ops on lists --------------------------------------------------------------------------------------------------


def test_a_result_of_a_list_depends_on_its_own_items(flow: Flows) -> None:
    found = flow(lambda: torch._foreach_mul([X, Y], [Y, X]))
    made = call(found, "_foreach_mul")
    assert [slot for slot, _ in found.behind(made, "output.1")] == ["input.0.1", "input.1.1"]
    assert len(found.behind(made, "output")) == 4
    plain = flow(lambda: torch.stack([X, Y]))
    assert len(plain.behind(call(plain, "stack"), "output.0")) == 2


def test_other_looks_at_the_same_moment(flow: Flows) -> None:
    def body() -> None:
        made = X.exp()
        made[:2].neg()
        made[3:].neg()
        made.add_(1)

    found = flow(body)
    whole = call(found, "exp").outputs
    assert [tuple(v.shape) for v in found.of_moment(whole)] == [(2,), (1,)], "the largest first, itself not"
    later = call(found, "add_").outputs
    assert found.of_moment(later) == [], "of another version"
