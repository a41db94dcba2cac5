"""MindSpore's dump: its files and its data_dump.json are read, and its layout of .npy files and tables is written."""

from typing import Final

from ...export.targets import Target

TARGET: Final = Target(
    "aten_dump.other_tools.mindspore.to_npy:write",
    ".npy files, statistic.csv, mapping.csv and execution order in MindSpore's naming",
    False,
    ("aten", "node"),
)
