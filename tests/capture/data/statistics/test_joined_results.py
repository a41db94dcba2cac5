"""Reduced values are joined for one copy and told apart again."""

from __future__ import annotations

import torch

from aten_dump.capture.data.host_memory import as_array
from aten_dump.capture.data.statistics.joined_results import JoinedResults, join
from aten_dump.capture.data.statistics.on_device import Reduced, reduce_floats
from aten_dump.capture.torch_internals.quiet import quiet


def separated(
    entries: list[tuple[int, list[int], Reduced]],
) -> list[tuple[int, list[int], dict[str, list[float]]]]:
    together, separate = join(entries)
    assert together.dtype == torch.uint8
    return [
        (value, rows, {k: a.tolist() for k, a in found.items()})
        for value, rows, found in separate(as_array(together.cpu()))
    ]


def test_results_of_several_dtypes_come_back_each_to_its_value() -> None:
    """An odd number of float32 comes before the others: cut without care, 8-byte numbers would not be aligned."""
    entries = [
        (7, [3], {"low": torch.tensor(1.5), "nan": torch.tensor(2)}),
        (9, [5], {"sum": torch.tensor([0.25, 0.5], dtype=torch.float64), "low": torch.tensor(-1.5)}),
        (
            8,
            [1],
            {"low": torch.tensor([[3.5]]), "nan": torch.tensor(-1), "sum": torch.tensor(4.0, dtype=torch.float64)},
        ),
    ]
    assert separated(entries) == [
        (7, [3], {"low": [1.5], "nan": [2]}),
        (9, [5], {"sum": [0.25, 0.5], "low": [-1.5]}),
        (8, [1], {"low": [3.5], "nan": [-1], "sum": [4.0]}),
    ]


def test_results_of_one_dtype() -> None:
    assert separated([(1, [2], {"low": torch.tensor(2.0)}), (2, [2], {"low": torch.tensor(3.0)})]) == [
        (1, [2], {"low": [2.0]}),
        (2, [2], {"low": [3.0]}),
    ]


def test_they_are_full_by_values_and_by_bytes() -> None:
    for most_values, most_bytes, fit in ((3, 1 << 20, 3), (100, 40, 2)):
        results = JoinedResults(("low",), most_values, most_bytes)
        for value in range(fit):
            assert not results.is_full()
            results.add((value, [3], {"low": torch.zeros(3, dtype=torch.float64)}))
        assert results.is_full()


def test_statistics_come_with_their_values_by_either_way() -> None:
    for way in ("together", "together_on_host"):
        results = JoinedResults(("count", "max"), 10, 1 << 20)
        for value in (7, 9):
            with quiet():
                results.add((value, [2], reduce_floats(torch.tensor([1.0, float(value)]), ("max",))))
        with quiet():
            memory = as_array(getattr(results, way)().cpu())
        assert list(results.statistics(memory)) == [(7, [2, 7.0]), (9, [2, 9.0])]
