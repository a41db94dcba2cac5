"""How the parts of a plain tensor fit together, by the whole tensor that they are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.part_arrangement import Settler
from aten_dump.dump import Value
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from aten_dump.store import records as r
from tests.dump.across_ranks.ranks_of_a_step import ranks_of, wholes
from tests.dump.building import Builder, value

WHOLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def parts(tmp_path: Path) -> Callable[..., AssembledValue]:
    """parts(tensors): a value of which each rank holds one of these."""
    count = iter(range(100))

    def make(tensors: Sequence[torch.Tensor], made: bool = True, **options: Any) -> AssembledValue:
        folder = tmp_path / f"parts{next(count)}"
        if not made:
            found = AssembledRank(wholes(ranks_of(folder, tensors, None, (), **options)), {}).value_by_id(1)
        else:
            ranks = {}
            for rank, tensor in enumerate(tensors):
                b = Builder(folder, 0, rank)
                number = b.value(tensor.contiguous(), **options)
                b.call(b.op("aten", "aten::exp", "Aten", "exp"), args=[], outputs=value(number))
                b.finish()
                ranks[rank] = open_dump(folder).rank(0, rank)
            found = AssembledRank(wholes(ranks), {}).value_by_id(1)
        assert isinstance(found, AssembledValue)
        return found

    return make


@pytest.fixture
def whole(tmp_path: Path) -> Callable[..., Value]:
    count = iter(range(100))

    def make(tensor: torch.Tensor, **options: Any) -> Value:
        b = Builder(tmp_path / f"whole{next(count)}")
        number = b.value(tensor, **options)
        return open_dump(b.finish()).rank(0, 0).value_by_id(number)

    return make


Parts, Whole = Callable[..., AssembledValue], Callable[..., Value]


def settled(target: Value, baseline: Value, settler: Settler | None = None, is_gradient: bool = False) -> Settler:
    settler = settler or Settler()
    settler.settle(target, baseline, is_gradient=is_gradient)
    settler.pair_off()
    settler.give_up_misfits()
    return settler


def test_another_counterpart_may_show_what_one_does_not(parts: Parts, whole: Whole) -> None:
    value, settler = parts(WHOLE.chunk(2)), Settler()
    settler.settle(value, whole(WHOLE.t().contiguous()), is_gradient=False)
    settler.settle(value, whole(-WHOLE), is_gradient=False)
    settler.settle(value, whole(WHOLE), is_gradient=False)
    settler.give_up_misfits()
    assert settler.unfitting == 0 and torch.equal(value.tensor(), WHOLE)


# -- shards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", ["even", "uneven"])
def test_shards_along_a_dimension(parts: Parts, whole: Whole, dim: int, sizes: str) -> None:
    size = WHOLE.shape[dim]
    pieces = WHOLE.split([size // 2, size // 2] if sizes == "even" else [size - 1, 1], dim)
    for swapped in (False, True):
        value = parts(pieces)
        sides = (whole(WHOLE), value) if swapped else (value, whole(WHOLE))
        settler = settled(*sides)
        assert torch.equal(value.tensor(), WHOLE) and not value.unsettled
        assert settler.unfitting == 0


def test_noise_is_no_other_arrangement(parts: Parts, whole: Whole) -> None:
    value = parts((WHOLE * 1.01).chunk(2))
    settled(value, whole(WHOLE))
    assert torch.equal(value.tensor(), WHOLE * 1.01)


def test_blocks_that_were_folded_into_a_dimension(parts: Parts, whole: Whole) -> None:
    """Each rank holds half of every head."""
    heads = WHOLE.view(4, 2, 6)
    value = parts([heads[:, n].contiguous() for n in range(2)])
    settled(value, whole(WHOLE))
    assert torch.equal(value.tensor(), WHOLE)


def test_gradients_of_a_divided_batch_are_scaled(parts: Parts, whole: Whole) -> None:
    value = parts((WHOLE * 2).chunk(2))
    settled(value, whole(WHOLE), is_gradient=True)
    assert torch.equal(value.tensor(), WHOLE)
    plain = parts((WHOLE * 2).chunk(2))
    settled(plain, whole(WHOLE))
    assert plain.unsettled, "only gradients are means over a rank's own samples"


def test_what_comes_near_in_no_order_is_not_compared(parts: Parts, whole: Whole) -> None:
    value = parts((-WHOLE).chunk(2))
    settler = settled(value, whole(WHOLE))
    assert settler.unfitting == 1 and value.unsettled
    assert value.assembly.reason == (
        "[4, 6] + [4, 6] stand against [8, 6], and in no order that was tried do they come near it"
    )
    assert tuple(value.shape) == (8, 6)


@pytest.mark.parametrize("shapes", [[(4, 6), (5, 6)], [(4, 6), (4, 5)], [(4,), (4,)], [(2, 3), (2, 3)]])
def test_shapes_that_do_not_add_up(parts: Parts, whole: Whole, shapes: list[tuple[int, ...]]) -> None:
    value = parts([torch.ones(shape) for shape in shapes])
    settled(value, whole(WHOLE))
    assert value.assembly.reason.endswith("and they do not add up to it")


def test_many_parts_are_not_all_named(parts: Parts, whole: Whole) -> None:
    value = parts((-WHOLE[:5]).split(1))
    settled(value, whole(WHOLE[:5].clone()))
    assert value.assembly.reason.startswith("[1, 6] + [1, 6] + [1, 6] + [1, 6] + ... stand against [5, 6]")


def test_the_user_is_believed_how_a_batch_is_divided(parts: Parts, whole: Whole) -> None:
    value = parts((-WHOLE).chunk(2))
    settler = settled(value, whole(WHOLE), Settler(batch_dim=0))
    assert settler.unfitting == 0 and torch.equal(value.tensor(), -WHOLE)
    other = parts((-WHOLE).chunk(2, 1))
    assert settled(other, whole(WHOLE), Settler(batch_dim=0)).unfitting == 1, "along another dimension"


def test_once_burnt_a_guess_must_come_nearer(parts: Parts, whole: Whole) -> None:
    settler = settled(parts((-WHOLE).chunk(2)), whole(WHOLE))
    value = parts((WHOLE * 1.1).chunk(2))
    settled(value, whole(WHOLE), settler)
    assert value.unsettled and settler.unfitting == 2
    close = parts((WHOLE * 1.001).chunk(2))
    settled(close, whole(WHOLE), settler)
    assert not close.unsettled
    fresh = parts((WHOLE * 1.1).chunk(2))
    settled(fresh, whole(WHOLE))
    assert not fresh.unsettled


def test_a_counterpart_that_is_not_known_helps_nobody(parts: Parts, whole: Whole) -> None:
    value = parts(WHOLE.chunk(2))
    settled(value, whole(WHOLE, flags=r.UNDEFINED))
    assert value.unsettled and value.assembly.reason == "the counterpart is not known as a whole"


# -- equal shapes --------------------------------------------------------------------------------------------------


def test_replicas_that_all_hold_the_same(parts: Parts, whole: Whole) -> None:
    value = parts([WHOLE, WHOLE.clone()])
    settler = settled(value, whole(WHOLE * 3))
    assert value.assembly.shared and torch.equal(value.tensor(), WHOLE) and settler.replicas == {}


@pytest.mark.parametrize(("kind", "factor"), [("sum", 1.0), ("avg", 2.0)])
def test_terms_of_a_sum_or_a_mean(parts: Parts, whole: Whole, kind: str, factor: float) -> None:
    noise = torch.randn(8, 6)
    value = parts([(WHOLE / 2 + noise) * factor, (WHOLE / 2 - noise) * factor])
    settled(value, whole(WHOLE))
    assert value.assembly.grid is not None and value.assembly.grid.placements[0].kind == kind
    torch.testing.assert_close(value.tensor(), WHOLE)


def test_how_many_samples_each_rank_has_is_no_replica(tmp_path: Path, whole: Whole) -> None:
    """Halves of a batch are equally many, and their number makes up the whole batch's."""
    ranks = {}
    for rank in range(2):
        b = Builder(tmp_path / "losses", 0, rank)
        loss, count = b.value(torch.tensor(1.0 + rank)), b.value(torch.tensor(3.0))
        b.call(
            b.op("aten", "aten::nll_loss_forward", "Aten", "nll_loss_forward"),
            args=[],
            outputs=[r.TREE_TUPLE, value(loss), value(count)],
        )
        b.finish()
        ranks[rank] = open_dump(tmp_path / "losses").rank(0, rank)
    assembled = AssembledRank(wholes(ranks), {})
    counted = assembled.value_by_id(count)
    settled(counted, whole(torch.tensor(6.0)))
    assert torch.equal(counted.tensor(), torch.tensor(6.0))
    loss_of_both = assembled.value_by_id(loss)
    settled(loss_of_both, whole(torch.tensor(1.5)))
    assert torch.equal(loss_of_both.tensor(), torch.tensor(1.5))


def test_gradients_that_cancel_are_reduced_as_others_were(parts: Parts, whole: Whole) -> None:
    noise = torch.randn(8, 6)
    settler = settled(parts([WHOLE / 2 + noise, WHOLE / 2 - noise]), whole(WHOLE))
    lost = parts([noise, -noise * 1.5])
    settled(lost, whole(torch.full((8, 6), 1e-6)), settler, is_gradient=True)
    assert lost.assembly.grid is not None and lost.assembly.grid.placements[0].kind == "sum"
    given_up = parts([noise, -noise * 1.5])
    settled(given_up, whole(torch.full((8, 6), 1e-6)), settler)
    assert given_up.unsettled and "every rank has another tensor" in given_up.assembly.reason
    alone = parts([noise, -noise * 1.5])
    assert settled(alone, whole(torch.full((8, 6), 1e-6)), is_gradient=True).unfitting == 1


def test_replicas_that_drifted_are_told_and_the_farthest_is_compared(parts: Parts, whole: Whole) -> None:
    far = WHOLE.clone()
    far[3, 2] += 0.5
    value = parts([WHOLE, far])
    settler = settled(value, whole(WHOLE))
    assert torch.equal(value.tensor(), far)
    (found,) = settler.replicas.values()
    assert (found.value, found.ranks, found.at) == (value.id, (1,), (3, 2))
    assert found.max_abs == pytest.approx(0.5, rel=1e-5)
    assert found.error == pytest.approx(0.5 / float(WHOLE.norm()), rel=1e-4)
    baseline = parts([WHOLE, far])
    assert settled(whole(WHOLE), baseline).replicas == {}, "only of the target"


def test_data_from_outside_are_replicas(parts: Parts, whole: Whole) -> None:
    noise = torch.randn(8, 6)
    value = parts([WHOLE + noise, WHOLE - noise], made=False)
    settled(value, whole(WHOLE))
    assert value.assembly.grid is not None and value.assembly.grid.placements[0].kind == "replica"


# -- both in parts -------------------------------------------------------------------------------------------------


def test_of_two_open_values_the_shared_one_is_the_whole(parts: Parts) -> None:
    for swapped in (False, True):
        shards, replicas = parts(WHOLE.chunk(2)), parts([WHOLE, WHOLE.clone()])
        settled(*((replicas, shards) if swapped else (shards, replicas)))
        assert torch.equal(shards.tensor(), WHOLE) and replicas.assembly.shared
    one, other = parts(WHOLE.chunk(2)), parts(WHOLE.chunk(4))
    settled(one, other)
    assert one.unsettled and other.unsettled, "nobody knows the whole"


def test_what_is_settled_stays_so(parts: Parts, whole: Whole) -> None:
    value = parts(WHOLE.chunk(2))
    settler = settled(value, whole(WHOLE))
    settled(value, whole(-WHOLE), settler)
    assert torch.equal(value.tensor(), WHOLE) and settler.unfitting == 0


def test_without_bytes_statistics_decide_nothing(parts: Parts, whole: Whole) -> None:
    value = parts(WHOLE.chunk(2), store=None)
    assert settled(value, whole(WHOLE, store=None)).unfitting == 1
    blind = parts(WHOLE.chunk(2))
    assert settled(blind, whole(WHOLE), Settler(read_data=False)).unfitting == 1


def test_integers_have_no_mean(parts: Parts, whole: Whole) -> None:
    """Of tokens that go to experts each rank counts its own; their places on a rank are none of the whole batch's."""
    counted = [torch.tensor([3, 5, 1]), torch.tensor([4, 0, 3])]
    sums = parts(counted)
    assert settled(sums, whole(counted[0] + counted[1])).unfitting == 0
    assert torch.equal(sums.tensor(), torch.tensor([7, 5, 4]))
    places = parts([torch.tensor([0, 9, 0, 9]), torch.tensor([9, 0, 9, 1])])
    assert settled(places, whole(torch.tensor([0, 0, 1, 2]))).unfitting == 1
