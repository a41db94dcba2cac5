"""Where tensors lie in their storage, against a count of every element."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from aten_dump.capture.memory.geometry import byte_extent, bytes_spanned, covers, has_no_gaps, is_a_row


def element_places(tensor: torch.Tensor) -> list[int]:
    """The storage offset of each element."""
    places = itertools.product(*map(range, tensor.shape))
    return [tensor.storage_offset() + sum(i * s for i, s in zip(p, tensor.stride(), strict=True)) for p in places]


def some_views(count: int) -> list[torch.Tensor]:
    chance, base = random.Random(3), torch.arange(4096, dtype=torch.int16)
    views = []
    for _ in range(count):
        shape = [chance.choice((1, 1, 2, 3, 5)) for _ in range(chance.randrange(4))]
        dense = torch.empty(shape).permute(*chance.sample(range(len(shape)), len(shape))) if shape else torch.empty(())
        stride = [s * chance.choice((1, 1, 1, 2, 0)) for s in dense.stride()]
        views.append(base.as_strided(dense.shape, stride, chance.randrange(9)))
    return views


def test_extent_and_cover_of_many_views() -> None:
    seen = set()
    for view in some_views(600):
        places = element_places(view)
        assert byte_extent(view) == (2 * min(places), 2 * max(places) + 2)
        is_dense = sorted(places) == list(range(min(places), max(places) + 1))
        assert covers(view) == is_dense, (view.shape, view.stride())
        layout = tuple(view.shape), view.stride()
        assert has_no_gaps(*layout) == is_dense, layout
        assert bytes_spanned((view.dtype, 0, 0, 0, layout)) == 2 * (max(places) + 1 - min(places))
        seen.add((is_dense, view.is_contiguous()))
    assert seen == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 1)])
def test_no_elements_touch_no_byte(shape: tuple[int, ...]) -> None:
    assert byte_extent(torch.zeros(9)[5:].new_empty(shape)) == (0, 0)
    assert byte_extent(torch.zeros(9)[9:]) == (0, 0)


def test_a_row_is_what_torch_calls_contiguous() -> None:
    none = [torch.empty(shape) for shape in ((0,), (2, 0, 3))] + [
        torch.empty(3, 0).T,
        torch.empty(4, 2, 0).permute(2, 0, 1),
    ]
    found = [(is_a_row(view.shape, view.stride()), view.is_contiguous()) for view in (*some_views(600), *none)]
    assert [ours for ours, _ in found] == [torchs for _, torchs in found]
    assert {ours for ours, _ in found} == {True, False}
