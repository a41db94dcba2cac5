"""Statistics are a mapping and attributes, and say what was not recorded."""

from __future__ import annotations

import copy

import pytest

from aten_dump.dump.value_statistics import Stats
from aten_dump.errors import MissingDataError


def test_a_mapping_and_attributes() -> None:
    stats = Stats({"count": 2, "mean": complex(1, 2), "min": None})
    assert dict(stats) == {"count": 2, "mean": complex(1, 2), "min": None}
    assert (stats.count, stats["mean"], stats.min, len(stats)) == (2, complex(1, 2), None, 3)
    assert "min" in stats and "max" not in stats
    assert stats.get("max", 5) == 5
    assert repr(stats) == "Stats(count=2, mean=(1+2j), min=None)"


def test_what_was_not_recorded() -> None:
    stats = Stats({"count": 2, "min": 1.0})
    said = "statistic 'median' was not recorded; recorded are count, min: add it to DumpConfig.statistics"
    with pytest.raises(MissingDataError, match=said):
        stats["median"]
    with pytest.raises(AttributeError, match=said):
        stats.median


def test_it_can_be_copied() -> None:
    """copy asks for private attributes before there are any numbers."""
    assert dict(copy.copy(Stats({"count": 1}))) == {"count": 1}
