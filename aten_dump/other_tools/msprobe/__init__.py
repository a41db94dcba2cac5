"""msprobe: its dumps and config are read, its dumps written, its PrecisionDebugger and seed_all are here."""

from typing import Final

from ...export.targets import Target

TARGET: Final = Target(
    "aten_dump.other_tools.msprobe.to_msprobe:write",
    "dump.json, stack.json, construct.json and .pt files as msprobe writes them",
    False,
    ("api", "module"),
)
