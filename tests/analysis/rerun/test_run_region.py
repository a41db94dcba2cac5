"""Recorded calls run again, one after the other, in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import compare
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.rerun import run_region as module
from aten_dump.analysis.rerun.run_region import Piece, laid, run_region, start_tensors
from aten_dump.dump import RankDump, Value
from aten_dump.errors import MissingDataError, ReplayError

X, Y = torch.linspace(0.1, 3.0, 16), torch.linspace(-1.0, 2.0, 16)
Body = Callable[[], object]


def pieces_of(rank: RankDump, **items: tuple[int, ...]) -> list[Piece]:
    ops = [call for call in rank.calls if call.kind == "aten"]
    return [Piece(call, items.get(call.api.removeprefix("Aten."))) for call in ops]


def outside(rank: RankDump) -> list[Value]:
    flow = DataFlow(rank, "aten")
    return [value for value in rank.values if flow.maker(value) is None and not value.undefined]


def last(rank: RankDump) -> Value:
    call = [call for call in rank.calls if call.kind == "aten"][-1]
    return next(value for _, value in call.result_values())


def run(rank: RankDump, change: Callable[[torch.Tensor], torch.Tensor] = lambda t: t, **items: Any) -> torch.Tensor:
    """Run all ops of a recording from changed data and return what the last one made."""
    starts = {value: start_tensors([value])[value.id] for value in outside(rank)}
    starts = {value: change(tensor) for value, tensor in starts.items()}
    (found,) = run_region(pieces_of(rank, **items), starts, [last(rank)])
    return found


def in_place() -> torch.Tensor:
    made = X.exp()
    made.view(4, 4)[1:3].mul_(3).add_(made[:4])
    return made.view(4, 4).t().sum(0)


def through_an_old_view() -> torch.Tensor:
    made = X.exp()
    first = made[:8]
    made.mul_(2)
    return first.sin()


def part_of_what_was_written() -> torch.Tensor:
    made = X.exp()
    made[4:12].mul_(2)
    return made[6:10].clone()


Program = Callable[[], torch.Tensor]
# name: (what is recorded, the same as float64 has it where that is another program)
PROGRAMS: dict[str, tuple[Program, Program | None]] = {
    "one after the other": (lambda: X.exp().mul(Y).relu(), None),
    "in place": (in_place, None),
    "through an old view": (through_an_old_view, None),
    "a part of what was written": (part_of_what_was_written, None),
    "into memory that was not there": (lambda: torch.empty(16).copy_(X).mul_(2), lambda: X * 2),
    "several results": (lambda: X.view(4, 4).max(1)[1] + X.view(4, 4).topk(2).indices.sum(), None),
    "out=": (lambda: torch.exp(X, out=torch.empty(16)).add(1), lambda: X.exp() + 1),
    "a cast": (lambda: X.bfloat16().float().mul(3), lambda: X * 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_region_gives_what_the_program_gives_in_float64(
    record: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, in_float64 = PROGRAMS[name]
    found = run(record(program))
    for variable in ("X", "Y"):
        monkeypatch.setitem(globals(), variable, globals()[variable].double())
    torch.testing.assert_close(found, (in_float64 or program)(), rtol=1e-13, atol=0)


def test_it_starts_from_what_it_is_given(record: Callable[..., Any]) -> None:
    rank = record(lambda: X.exp().mul(2))
    found = run(rank, lambda t: t * 0)
    assert found.tolist() == [2.0] * 16 and found.dtype == torch.float64


def test_results_between_and_starts_can_be_asked_for(record: Callable[..., Any]) -> None:
    rank = record(lambda: X.exp().mul(2))
    (value,) = outside(rank)
    made = rank["Aten.exp.0.forward"].outputs
    start = torch.zeros(16, dtype=torch.float64)
    found = run_region(pieces_of(rank), {value: start}, [made, value])
    assert found[0].tolist() == [1.0] * 16 and found[1] is start


def test_of_a_list_only_the_items_that_are_needed_run(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch._foreach_mul([X, Y, X], 2.0))
    values = rank["Aten._foreach_mul.0.forward"].outputs
    starts = {value: start_tensors([value])[value.id] for value in outside(rank)}
    (piece,) = pieces_of(rank, _foreach_mul=(1,))
    (found,) = run_region([piece], starts, [values[1]])
    torch.testing.assert_close(found, Y.double() * 2)
    with pytest.raises(ReplayError, match="neither at the start of the region nor made in it"):
        run_region([piece], starts, [values[0]])
    found = run_region([Piece(piece.call, (0, 2))], starts, [values[2], values[0]])[0]
    torch.testing.assert_close(found, X.double() * 2)


def test_undefined_memory_gives_itself_away(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.empty(4).add(1))
    (found,) = run_region(pieces_of(rank), {}, [last(rank)])
    assert found.isnan().all()
    rank = record(lambda: torch.empty(4, dtype=torch.int64).add(1))
    (found,) = run_region(pieces_of(rank), {}, [last(rank)])
    assert found.tolist() == [1] * 4, "an integer cannot say so"


def sums_into_zeros() -> torch.Tensor:
    return torch.zeros(4).index_add(0, torch.tensor([0, 1, 2, 3] * 4), X)


def scattered_into_limits() -> torch.Tensor:
    return torch.full((4,), -math.inf).scatter_reduce(0, torch.tensor([0, 1, 2, 3] * 4), X, "amax")


def weighted_by_an_arange() -> torch.Tensor:
    return torch.arange(0.0, 1.6, 0.1)[None] @ X[:, None]


def integers_times_a_number() -> torch.Tensor:
    return torch.arange(16)[None].mul(0.1) @ X[:, None]


def integers_over_one_another() -> torch.Tensor:
    return (torch.arange(16) / torch.arange(1, 17))[None] @ X[:, None]


def chosen_by_a_mask() -> torch.Tensor:
    return torch.cat([torch.where(torch.arange(4) > 2, 0.5, 0.25), (torch.arange(4) > 2) * 0.5, X])


def of_one_number() -> torch.Tensor:
    return torch.cat([X, torch.scalar_tensor(0.1).view(1), torch.ones(2), torch.eye(2).view(-1)])


@pytest.mark.parametrize(
    "body",
    [
        sums_into_zeros,
        scattered_into_limits,
        weighted_by_an_arange,
        integers_times_a_number,
        integers_over_one_another,
        chosen_by_a_mask,
        of_one_number,
    ],
)
def test_what_factories_make_without_a_dtype_is_wide_too(body: Body, record: Callable[..., Any]) -> None:
    """Else ops that want one dtype raise, and numbers are rounded to torch's default."""
    found = run(record(body))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, body().double(), rtol=1e-6, atol=1e-6)


def test_integers_are_not_rounded_to_float32_on_the_way(record: Callable[..., Any]) -> None:
    expected = torch.arange(16).double() * 0.1
    assert torch.equal(run(record(lambda: torch.arange(16) * 0.1)), expected)


def test_factories_keep_dtypes_that_are_not_floating(record: Callable[..., Any]) -> None:
    assert run(record(lambda: torch.arange(4))).dtype == torch.int64
    assert run(record(lambda: torch.full((2,), True))).dtype == torch.bool
    assert run(record(lambda: torch.ones(2, dtype=torch.complex64))).dtype == torch.complex128


def test_what_is_missing_is_told(record: Callable[..., Any]) -> None:
    rank = record(lambda: X.exp().mul(Y))
    with pytest.raises(ReplayError, match="neither at the start of the region nor made in it"):
        run_region(pieces_of(rank), {}, [last(rank)])
    with pytest.raises(MissingDataError):
        start_tensors(record(lambda: X.exp(), data="structure").values)


def test_what_draws_cannot_be_run(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.bernoulli(X / 4).mul(2))
    with pytest.raises(ReplayError, match="random"):
        run(rank)


def test_too_much_memory_is_refused(record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rank = record(lambda: X.exp().mul(2))
    monkeypatch.setattr(module, "MOST_ELEMENTS", 48)
    assert run(rank).numel() == 16, "one start and two results"
    monkeypatch.setattr(module, "MOST_ELEMENTS", 47)
    with pytest.raises(ReplayError, match="takes 48 elements, too many"):
        run(rank)


def test_starts_of_one_memory_share_it(record: Callable[..., Any]) -> None:
    whole = X.clone()
    part = whole[4:8]
    rank = record(lambda: (whole.exp(), part.mul_(2)))
    values = {tuple(v.shape): v for v in outside(rank)}
    tensors = start_tensors(values.values())
    tensors[values[4,].id].fill_(7)
    assert tensors[values[16,].id][4:8].tolist() == [7.0] * 4


def test_contents_are_laid_into_expanded_tensors() -> None:
    target = torch.zeros(1, 3, dtype=torch.float64).expand(4, 3)
    laid(torch.arange(3.0).expand(4, 3), target)
    assert target.tolist() == [[0.0, 1.0, 2.0]] * 4
    plain = torch.zeros(2, 2)
    laid(torch.ones(2, 2), plain)
    assert plain.tolist() == [[1.0, 1.0]] * 2
    laid(torch.arange(4.0), plain)
    assert plain.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert laid(torch.eye(2).to_sparse(), plain) is plain and torch.equal(plain, torch.eye(2))
    with pytest.raises(ReplayError, match=r"a tensor \[3\] stands for one of shape \[2, 2\]"):
        laid(torch.ones(3), plain)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_tensor_gets_the_contents_in_its_layout(layout: torch.layout) -> None:
    target = torch.eye(3).to_sparse(layout=layout)
    for contents in (torch.ones(3, 3), torch.ones(3, 3).to_sparse(), torch.ones(3, 3).to_sparse_csr()):
        found = laid(contents, target)
        assert found.layout is layout and torch.equal(found.to_dense(), torch.ones(3, 3))
        assert found is not contents


def test_what_a_region_starts_from_is_not_made_again(record: Callable[..., RankDump]) -> None:
    """A call that wrote one part of some memory runs for the sake of the others."""

    def body() -> torch.Tensor:
        left, right = (X * 2).split(8)
        left.tanh_()
        right.sigmoid_()
        return left * right

    rank = record(body)
    given = rank["Aten.tanh_.0.forward"].outputs
    starts = {value: start_tensors([value])[value.id] for value in outside(rank)}
    kept = torch.full((8,), 5.0, dtype=torch.float64)
    (found,) = run_region(pieces_of(rank), {**starts, given: kept}, [last(rank)])
    assert torch.equal(found, 5 * (X.double() * 2)[8:].sigmoid()), found


@pytest.mark.parametrize(
    ("change", "guilty"),
    [
        ("", ""),
        ("wraps", r"Aten\.(sub|_to_copy)\.0"),
        ("loses digits", r"Aten\.(_to_copy|clamp)\."),
        ("exact cast", ""),
    ],
)
def test_integers_are_no_floats(record: Callable[..., RankDump], change: str, guilty: str) -> None:
    """Differences of bytes wrap around; indices that go through bfloat16 come back as others; float64 holds them."""
    torch.manual_seed(0)
    table = torch.randn(5000, 3)
    one, other = torch.randint(0, 256, (2, 40), dtype=torch.uint8)
    index = torch.randint(0, 5000, (20,))

    def dump(kind: str) -> RankDump:
        def body() -> None:
            apart = (one - other).float() if kind == "wraps" else one.float() - other.float()
            through = {"loses digits": torch.bfloat16, "exact cast": torch.float64}.get(kind)
            at = index if through is None else index.to(through).long().clamp(max=4999)
            table[at].sin().sum().add(apart.square().mean())

        return record(body, data="tensor")

    found = compare(dump(change), dump(""))
    named = "" if found.cause is None else found.cause.row.place.call
    assert found.exit_code == bool(guilty), found.answer()
    assert bool(re.match(guilty, named)) if guilty else not named
