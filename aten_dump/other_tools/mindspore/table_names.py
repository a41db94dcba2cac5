"""Names in the tables of MindSpore's dump."""

from __future__ import annotations

from typing import Final

HEADING: Final = "NodeExecutionOrder-FullNameWithScope"  # of the execution order
# Column of statistic.csv -> our statistic.
COLUMNS: Final = {
    "Max Value": "max",
    "Min Value": "min",
    "Avg Value": "mean",
    "Count": "count",
    "Negative Zero Count": "negative",  # MindSpore's name for the count of elements below zero
    "Positive Zero Count": "positive",
    "NaN Count": "nan",
    "Negative Inf Count": "neginf",
    "Positive Inf Count": "posinf",
    "Zero Count": "zero",
    "L2Norm Value": "l2norm",
}
