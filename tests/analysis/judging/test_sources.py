"""Values from outside the step: equal, inherited from the step before, or another source."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.distance.value_distance import Closeness, closeness
from aten_dump.analysis.judging.sources import LeftContents, Sources, digest_of, digest_of_statistics, last_values
from aten_dump.dump import RankDump, Value
from aten_dump.store import records as r
from tests.analysis.by_hand import ROUNDOFF, apart
from tests.dump.building import STATISTICS, Builder

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., RankDump]:
    """ranks(*tensors, versions=...): what a rank recorded of some values."""
    count = iter(range(100))

    def make(*tensors: torch.Tensor, versions: tuple[int, ...] = (), **options: Any) -> RankDump:
        b = Builder(tmp_path / str(next(count)))
        for number, tensor in enumerate(tensors):
            b.value(tensor, version=versions[number] if versions else 0, **options)
        return open_dump(b.finish()).rank(0, 0)

    return make


def values(rank: RankDump) -> list[Value]:
    return list(rank.values)


def said_of(sources: Sources, target: Value, baseline: Value, close: Closeness | None = None) -> tuple[str, bool, str]:
    said, text = sources.judge(target, baseline, close or closeness(target, baseline))
    assert text == "it came from outside the step (a parameter, a buffer, data, numbers of Python) and differs already"
    return said.status, said.guilty, said.floor_from


def test_at_the_first_step_bits_must_be_equal(ranks: Callable[..., RankDump]) -> None:
    one, same, other = values(ranks(X, X.clone(), X * (1 + 2 * ROUNDOFF)))
    sources = Sources((0, 0), exact=True)
    assert said_of(sources, one, same) == ("same", False, "exact")
    assert said_of(sources, one, other) == ("different", True, "exact")
    assert sources.judge(one, other, closeness(one, other))[0].ratio == math.inf


def test_a_value_in_another_precision_is_equal_in_the_coarser(ranks: Callable[..., RankDump]) -> None:
    single, half = values(ranks(X / 3, (X / 3).half()))
    assert said_of(Sources((0, 0), exact=True), half, single) == ("same", False, "exact")


def test_shapes_and_what_is_not_known(ranks: Callable[..., RankDump]) -> None:
    one, shorter = values(ranks(X, X[:2].clone()))
    unknown = values(ranks(X, store=None))[0]
    for exact in (True, False):
        sources = Sources((0, 0), exact=exact)
        assert said_of(sources, one, shorter) == ("different", True, "exact")
        said, _ = sources.judge(one, unknown, closeness(one, unknown))
        assert (said.status, said.note) == ("unknown", "no data of the baseline's tensor was recorded")


def test_statistics_decide_where_there_is_nothing_better(ranks: Callable[..., RankDump]) -> None:
    one, other = values(ranks(X, X + 1))
    sources = Sources((0, 0), exact=True)
    assert said_of(sources, one, other, Closeness("statistic", error=0.0)) == ("within", False, "depth")
    assert said_of(sources, one, other, Closeness("statistic", error=1e-9)) == ("different", True, "exact")
    assert said_of(sources, one, other, Closeness("hash")) == ("different", True, "exact")


def with_statistics(path: Path, tensor: torch.Tensor, **changes: float | None) -> RankDump:
    """Return what a rank recorded that has the statistics of one value alone."""
    b = Builder(path)
    known = {"count": 4, "min": 1.0, "max": 4.0, "mean": 2.5, "l2norm": math.sqrt(30), **changes}
    number = b.value(tensor, store=None)
    b.emit(r.Statistics(r.STATISTICS, number, [known.get(name) for name in STATISTICS]))
    return open_dump(b.finish()).rank(0, 0)


def test_sums_in_another_order_are_of_the_same_weights(tmp_path: Path) -> None:
    """Statistics of many elements round as the number of threads, the device and the layout have it."""
    one, other = (values(with_statistics(tmp_path / n, X, mean=mean))[0] for n, mean in (("a", 2.5), ("b", 2.5 + 1e-9)))
    far = values(with_statistics(tmp_path / "c", X, mean=2.6))[0]
    end = values(with_statistics(tmp_path / "d", X, max=4.0 + 1e-9))[0]
    same, otherwise = Sources((0, 0), exact=True), Sources((0, 0), exact=True, summed_otherwise=True)
    assert said_of(same, one, other) == ("different", True, "exact")
    assert said_of(otherwise, one, other) == ("within", False, "depth")
    assert said_of(otherwise, one, far) == said_of(otherwise, one, end) == ("different", True, "exact")


def test_weights_that_lie_otherwise_are_the_same(tmp_path: Path) -> None:
    one = values(with_statistics(tmp_path / "a", X.reshape(2, 2)))[0]
    other = values(with_statistics(tmp_path / "b", X.reshape(2, 2).T, mean=2.5 + 1e-9))[0]
    assert said_of(Sources((0, 0), exact=True), one, other) == ("within", False, "depth")


def test_weights_in_another_precision_are_the_same_but_for_its_rounding(tmp_path: Path) -> None:
    """Rounding keeps the order: of a tensor's ends nothing is left but what rounding makes of them."""
    third = dict(zip(("min", "max", "mean", "l2norm"), (1 / 3, 4 / 3, 2.5 / 3, math.sqrt(30) / 3), strict=True))
    single = values(with_statistics(tmp_path / "single", X / 3, **third))[0]
    rounded = (X / 3).bfloat16()
    found = rounded.double()
    ends: dict[str, float | None] = {"min": found.min().item(), "max": found.max().item()}
    sums: dict[str, float | None] = {"mean": found.mean().item(), "l2norm": found.norm().item()}
    half, wrong, far = (
        values(with_statistics(tmp_path / name, rounded, **{**ends, **sums, **changes}))[0]
        for name, changes in (("half", {}), ("wrong", {"max": ends["max"] + 2**-7}), ("far", {"mean": 2.6 / 3}))
    )
    for pair in ((half, single), (single, half)):
        assert said_of(Sources((0, 0), exact=True), *pair) == ("within", False, "depth")
    for other in (wrong, far):
        assert said_of(Sources((0, 0), exact=True), other, single) == ("different", True, "exact")


def test_what_the_step_before_left_is_told_by_statistics_where_there_is_nothing_better(tmp_path: Path) -> None:
    left = LeftContents(with_statistics(tmp_path / "a", X))
    assert left.has(values(with_statistics(tmp_path / "b", X))[0])
    assert not left.has(values(with_statistics(tmp_path / "c", X, mean=2.5 + 1e-9))[0])
    assert not left.has(values(with_statistics(tmp_path / "d", X[:2]))[0])  # of another number of elements
    assert digest_of_statistics(values(with_statistics(tmp_path / "e", X, mean=None))[0]) is None


@pytest.mark.parametrize("steps", [(0, 0), (3, 0), (0, 8)])
def test_after_steps_that_nobody_compared_noise_of_as_many_is_allowed(
    ranks: Callable[..., RankDump], steps: tuple[int, int]
) -> None:
    one, other = values(ranks(X, X + 1))
    sources = Sources(steps, exact=False)
    limit = 5.5 * ROUNDOFF * 8 * math.sqrt(1 + max(steps))
    said, _ = sources.judge(one, other, apart(limit * 0.999))
    assert (said.status, said.guilty, said.floor_from, said.ratio) == ("within", False, "depth", pytest.approx(0.999))
    assert said.floor == pytest.approx(limit)
    assert said_of(sources, one, other, apart(limit * 1.001)) == ("different", True, "depth")
    assert said_of(sources, one, other, apart(0.0, nonfinite=1)) == ("different", True, "depth")
    assert said_of(sources, one, other, Closeness("tensor", error=None)) == ("within", False, "depth")


def test_indices_have_no_noise(ranks: Callable[..., RankDump]) -> None:
    one, other = values(ranks(torch.arange(4), torch.arange(4) + 1))
    sources = Sources((5, 5), exact=False)
    assert said_of(sources, one, other) == ("different", True, "depth")
    assert sources.judge(one, other, closeness(one, other))[0].ratio == math.inf
    assert said_of(sources, one, other, Closeness("statistic", error=0.0)) == ("within", False, "depth")


# -- what the step before left behind --------------------------------------------------------------------------------


def test_what_both_inherited_is_the_affair_of_the_step_before(ranks: Callable[..., RankDump]) -> None:
    ours, theirs = ranks(X, X * 2), ranks(X + 0.5, X * 2)
    now = values(ranks(X)), values(ranks(X + 0.5))
    sources = Sources((1, 1), exact=False, before=(LeftContents(ours), LeftContents(theirs)))
    said, _ = sources.judge(now[0][0], now[1][0], closeness(now[0][0], now[1][0]))
    assert (said.status, said.guilty, said.note) == ("within", False, "inherited from the step before")
    new = values(ranks(X + 9))[0]
    assert said_of(sources, new, now[1][0])[:2] == ("different", True), "the target's is new"
    assert said_of(sources, now[0][0], new)[:2] == ("different", True), "the baseline's is new"


def _moments(path: Path, change: str) -> Path:
    """Three steps with two moments of a weight; at the second step the change takes effect."""
    torch.manual_seed(0)
    weight, one, two = torch.randn(5, 5), torch.zeros(5, 5), torch.zeros(5, 5)
    older = weight
    batches = torch.randn(3, 4, 5)
    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump:
        for number, x in enumerate(batches):
            is_wrong = number == 1
            read = older if is_wrong and change == "an older copy" else weight
            first, second = (two, one) if is_wrong and change == "swapped" else (one, two)
            gradient = x.t() @ (x @ read).tanh()
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient * gradient, 0.1)
            older = weight.clone() if change in ("an older copy", "a copy that nobody reads") else weight
            weight.sub_(first / (second.abs().sqrt() + 0.1))
            dump.step()
    return path


@pytest.mark.parametrize(
    ("change", "slot"), [("swapped", "Aten.lerp_.0.forward input.0"), ("an older copy", "Aten.mm.0.forward input.1")]
)
def test_what_was_inherited_has_to_be_the_counterpart(change: str, slot: str, tmp_path: Path) -> None:
    paths = _moments(tmp_path / "changed", change), _moments(tmp_path / "plain", "")
    for target, baseline in (paths, paths[::-1]):
        found = compare(target, baseline)
        assert found.cause is not None, found.answer()
        row = found.cause.row
        assert (found.cause.kind, row.place.step, f"{row.place.call} {row.slot}") == ("source", 1, slot)
        assert "but it is another tensor than in the baseline" in found.cause.text


def test_copies_that_nobody_reads_are_none_of_it(tmp_path: Path) -> None:
    found = compare(_moments(tmp_path / "copied", "a copy that nobody reads"), _moments(tmp_path / "plain", ""))
    assert found.exit_code == 0, found.answer()


def test_nearer_is_told_of_what_holds_many_numbers(ranks: Callable[..., RankDump]) -> None:
    torch.manual_seed(0)
    mine, other = torch.randn(4, 5), torch.randn(4, 5)
    left = LeftContents(ranks(other, mine * (1 + ROUNDOFF)))
    near, far = values(ranks(mine, other))
    assert left.has_nearer(near, far) and not left.has_nearer(far, far)
    assert not LeftContents(ranks(other)).has_nearer(near, far)
    signs = torch.sign(mine) * 1e-3
    few, many = values(ranks(signs, other))
    assert not LeftContents(ranks(other, signs)).has_nearer(few, many), "two numbers may be like any others"
    noise, coarse = values(ranks(mine * 1e-9, other * 1e-3))
    assert not LeftContents(ranks(other * 1e-3, mine.square() * 1e-8)).has_nearer(noise, coarse), (
        "both are as good as 0"
    )
    unknown = values(ranks(mine, store=None))[0]
    assert not left.has_nearer(unknown, far) and not left.has_nearer(near, unknown)
    turned = values(ranks(torch.complex(mine, other), torch.complex(other, mine)))
    assert LeftContents(ranks(*(value.tensor() for value in turned))).has_nearer(*turned)


def test_inherited_is_what_a_step_had_at_its_end(ranks: Callable[..., RankDump]) -> None:
    memory = torch.zeros(4)
    rank = ranks(memory, memory, versions=(0, 1))
    assert [value.id for value in last_values(rank)] == [2]
    parts = ranks(memory, memory[:2], memory[2:])
    assert [value.id for value in last_values(parts)] == [1, 2, 3], "each geometry is a place of its own"
    left = LeftContents(ranks(X, X * 2))
    assert left.has(values(ranks(X.clone()))[0])
    assert not left.has(values(ranks(X * 3))[0])
    assert not left.has(values(ranks(X.double()))[0]), "of another dtype"
    assert left.has(values(ranks(X.view(2, 2).clone()))[0]), "another view of it"
    assert not left.has(values(ranks(X[:2].clone()))[0]), "of another size"
    assert not left.has(values(ranks(X, store=None))[0]), "nothing is known of it"


def test_memory_that_was_written_in_pieces_is_put_together(tmp_path: Path) -> None:
    flat = torch.arange(8.0)
    b = Builder(tmp_path)
    b.value(flat[:6], raw=torch.zeros(6)), b.value(flat[6:], version=3)  # beside it
    b.value(flat[:3], version=1), b.value(flat[3:6].view(3, 1), version=2)
    left = LeftContents(open_dump(b.finish()).rank(0, 0))
    now = Builder(tmp_path / "now")
    for tensor in (torch.arange(6.0), torch.arange(6.0).flip(0), torch.arange(6), torch.arange(7.0)):
        now.value(tensor)
    held = [left.has(value) for value in open_dump(now.finish()).rank(0, 0).values]
    assert held == [True, False, False, False]


def test_tensors_without_memory_of_their_own_are_places_too(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    for number in (1, 2):
        b.emit(r.Value(r.VALUE, number, 0, 0, 0, b.text("float32"), [2], [1], 0))
    assert [value.id for value in last_values(open_dump(b.finish()).rank(0, 0))] == [1, 2]


def test_digests_are_of_elements_not_of_memory(ranks: Callable[..., RankDump]) -> None:
    table = torch.arange(6.0).view(2, 3)
    turned, plain = values(ranks(table.t(), table.t().contiguous()))
    assert digest_of(turned) == digest_of(plain) is not None
    assert digest_of(values(ranks(X + 1j))[0]) != digest_of(values(ranks(X - 1j))[0])
    assert digest_of(values(ranks(torch.empty(0)))[0]) == ""
    unsaid = values(ranks(X, store=None))[0]
    assert digest_of(unsaid) is None
    undefined = values(ranks(X, flags=r.UNDEFINED))[0]
    assert undefined.undefined and digest_of(undefined) is None


def test_a_recorded_hash_is_the_digest(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(X)
    b.emit(r.Hash(r.HASH, number, bytes(range(8))))
    value = open_dump(b.finish()).rank(0, 0).value_by_id(number)
    assert digest_of(value) == value.hash == bytes(range(8)).hex()


def test_bytes_that_were_lost_have_no_digest(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(X)
    rank = open_dump(b.finish(commit=False, lose_bytes=8)).rank(0, 0)
    assert digest_of(rank.value_by_id(number)) is None
