"""How elements are cut into rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aten_dump.capture.data.statistics.rows import row_lengths, rows_and_columns, rows_of


def test_rows_have_one_length_and_are_few() -> None:
    for count in (1, 7, 1023, 1024, 2000, 2048, 100_003, 1 << 20):
        rows = rows_of(count)
        assert count % rows == 0 and 1 <= rows <= 256
        assert rows == 1 or count // rows >= 1024, "rows that are too short cost more than they save"
        assert row_lengths(count) == [count // rows] * rows
    assert rows_of(1 << 20) == 256


def test_a_few_long_rows_that_no_number_divides_are_left_to_others() -> None:
    assert rows_and_columns((10_000_019,), (2,)) is None
    assert rows_and_columns((10_000_019, 3), (4, 1)) == (1, 0, 10_000_019, 4, 3, 1)


def places(shape: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """Return where each element of a tensor lies, in order."""
    indices = itertools.product(*map(range, shape))
    return sorted(sum(i * step for i, step in zip(index, stride, strict=True)) for index in indices)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 2, 3, 4, 5, 12, 20, 60])), max_size=5))
@settings(max_examples=300, deadline=None)
def test_rows_and_columns_hold_each_element_as_often_as_the_tensor(dims: list[tuple[int, int]]) -> None:
    shape, stride = tuple(size for size, _ in dims), tuple(step for _, step in dims)
    found = rows_and_columns(shape, stride)
    if found is None:
        assert sum(size > 1 for size in shape) > 3
        return
    assert places(found[::2], found[1::2]) == places(shape, stride)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.empty(4, 64, 300)[..., 100:200].view(4, 64, 4, 25).transpose(1, 2), (1, 0, 256, 300, 100, 1)),
        (lambda: torch.empty(1, 512).expand(128, 512), (1, 0, 128, 0, 512, 1)),
        (lambda: torch.empty(1 << 20)[::2], (1, 0, 256, 4096, 2048, 2)),
        (lambda: torch.empty(3, 2 << 20)[:, 5 : 5 + (1 << 20)], (3, 2 << 20, 256, 4096, 4096, 1)),
        (lambda: torch.empty(()), (1, 0, 1, 0, 1, 0)),
    ],
    ids=["queries", "expanded", "every second", "few long rows", "one element"],
)
def test_dimensions_that_go_on_are_merged(make, expected) -> None:  # type: ignore[no-untyped-def]
    tensor = make()
    assert rows_and_columns(tuple(tensor.shape), tensor.stride()) == expected
