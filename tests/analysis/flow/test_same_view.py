"""Do two views see the same elements of two results? Geometry alone, on values made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.flow.same_view import ViewComparer, covers, elements_seen
from aten_dump.dump import Value
from aten_dump.store import records as r
from tests.dump.building import Builder

Pair = tuple[Value, Value]


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., Pair]:
    """pair(view, made): the values of a view and of the tensor that it is a view of."""
    count = iter(range(100))

    def make(view: torch.Tensor, made: torch.Tensor, **options: Any) -> Pair:
        b = Builder(tmp_path / str(next(count)))
        whole, part = b.value(made, store=None), b.value(view, store=None, **options)
        rank = open_dump(b.finish()).rank(0, 0)
        return rank.value_by_id(part), rank.value_by_id(whole)

    return make


Pairs = Callable[..., Pair]


def same(target: Pair, baseline: Pair) -> bool:
    comparer = ViewComparer()
    found = comparer.same(target, baseline)
    assert comparer.same(target, baseline) == found, "as it is remembered"
    return found


def table(*order: int) -> torch.Tensor:
    """Return 24 elements of shape (2, 3, 4), laid out with its dimensions in an order."""
    return torch.empty_strided((2, 3, 4), strides(order or (0, 1, 2)))


def strides(order: tuple[int, ...]) -> tuple[int, ...]:
    shape, found, step = (2, 3, 4), [0, 0, 0], 1
    for dim in reversed(order):
        found[dim], step = step, step * shape[dim]
    return tuple(found)


def test_the_results_themselves(pair: Pairs) -> None:
    one, other = table(), table(2, 1, 0)
    whole = [pair(t, t)[1] for t in (one, other, torch.empty(24))]
    assert same((whole[0], whole[0]), (whole[1], whole[1])), "in any memory format"
    assert not same((whole[0], whole[0]), (whole[2], whole[2])), "of another shape"
    square = torch.empty(4, 4)
    itself, turned = pair(square, square)[1], pair(square.t(), square)
    assert not same((itself, itself), turned) and not same(turned, (itself, itself)), "a view of one is not the other"


VIEWS = {
    "a row": (lambda x: x[0], lambda x: x[1]),
    "transposed": (lambda x: x.transpose(0, 1), None),
    "a column": (lambda x: x[:, :, 1], lambda x: x[:, :, 2]),
    "every other": (lambda x: x[..., ::2], lambda x: x[..., :2]),
    "one element": (lambda x: x[0, 0, 0], lambda x: x[1, 2, 3]),
    "expanded": (lambda x: x[:1].expand(5, 3, 4), lambda x: x[1:].expand(5, 3, 4)),
    "nothing": (lambda x: x[:0], None),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_views_of_results_in_any_memory_format(pair: Pairs, name: str, order: tuple[int, ...]) -> None:
    view, other = VIEWS[name]
    one, two = table(), table(*order)
    assert same(pair(view(one), one), pair(view(two), two))
    if other is not None:
        assert not same(pair(view(one), one), pair(other(two), two))


def test_the_order_of_elements_counts(pair: Pairs) -> None:
    one, two = torch.empty(4, 4), torch.empty(4, 4)
    assert not same(pair(one.t(), one), pair(two.view(4, 4), two))
    assert same(pair(one.t(), one), pair(two.t(), two))
    turned = torch.empty(4, 4).t()
    assert same(pair(one.t(), one), pair(turned.t(), turned))
    assert not same(pair(one.t(), one), pair(turned.as_strided((4, 4), (1, 4)), turned))


def test_a_view_of_another_shape_is_another(pair: Pairs) -> None:
    one = torch.empty(4, 4)
    assert not same(pair(one.view(16), one), pair(one.view(8, 2), one))
    flat = torch.empty(16)
    assert not same(pair(one[0], one), pair(flat[:4], flat)), "results of other shapes"


def test_the_place_in_the_storage_does_not_matter(pair: Pairs) -> None:
    buffer = torch.empty(40)
    late, early = buffer[20:36].view(4, 4), torch.empty(4, 4)
    assert same(pair(late[1], late), pair(early[1], early))
    assert not same(pair(late[1], late), pair(early[2], early))


def test_elements_beside_the_result_are_not_known(pair: Pairs) -> None:
    buffer, other = torch.empty(40), torch.empty(2, 40)[1]
    assert not same(pair(buffer[:20], buffer[4:24]), pair(other[:20], other[2:22])), "it begins before"
    assert elements_seen(*pair(buffer[2:6], buffer[:4])) is None, "it goes on behind"
    assert elements_seen(*pair(buffer[:4], buffer[2:6])) is None
    assert elements_seen(*pair(buffer[:4], buffer[:8:2])) is None, "between the elements of the result"
    seen = elements_seen(*pair(buffer[2:6], buffer[2:6]))
    assert seen is not None and seen.tolist() == [0, 1, 2, 3]
    last = elements_seen(*pair(buffer[5:6], buffer[2:6]))
    assert last is not None and last.tolist() == [3]


def test_a_view_as_another_dtype(pair: Pairs) -> None:
    one, two, turned = torch.empty(4, 4), torch.empty(4, 4), torch.empty(4, 4).t()
    assert same(pair(one.view(torch.int32), one), pair(two.view(torch.int32), two))
    assert not same(pair(one.view(torch.int32), one), pair(two.view(torch.int32)[:, [0, 1, 2, 3]].t(), two))
    halves = one.view(torch.int16), two.view(torch.int16)
    assert same(pair(halves[0][:, 2:4], one), pair(halves[1][:, 2:4], two))
    assert not same(pair(halves[0][:, 2:4], one), pair(halves[1][:, 4:6], two))
    assert not same(pair(one.view(torch.int32), one), pair(turned.view(torch.int32), turned)), "cannot be counted"


def test_conj_and_neg_bits_must_be_alike(pair: Pairs) -> None:
    one, two = torch.empty(4, dtype=torch.complex64), torch.empty(4, dtype=torch.complex64)
    assert not same(pair(one.conj(), one, flags=r.CONJUGATE), pair(two[:], two))
    assert same(pair(one.conj(), one, flags=r.CONJUGATE), pair(two.conj(), two, flags=r.CONJUGATE))
    real = torch.empty(4), torch.empty(4)
    assert not same(pair(real[0], real[0], flags=r.NEGATIVE), pair(real[1][:], real[1]))


def test_sparse_tensors_have_no_geometry(pair: Pairs) -> None:
    one = torch.empty(4)
    assert not same(
        pair(one[:], one, extra={"layout": "sparse_coo"}), pair(one[:], one, extra={"layout": "sparse_coo"})
    )


def test_what_covers_a_view(pair: Pairs) -> None:
    buffer = torch.empty(40)
    view, made = pair(buffer[2:6], buffer[:8])
    assert covers(made, view) and covers(made, made)
    view, made = pair(buffer[2:10], buffer[:8])
    assert not covers(made, view)
    view, made = pair(buffer[2:6].view(2, 2), buffer[2:6].view(2, 2))
    assert covers(made, view), "the same place"
    view, made = pair(torch.empty(0), buffer)
    assert covers(made, view), "nothing is covered by anything"
