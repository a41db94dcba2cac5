"""apex for Ascend: its HookerAndDumper is here, and the HDF5 file that it makes is written."""

from typing import Final

from ...export.targets import Target

TARGET: Final = Target(
    "aten_dump.other_tools.apex.to_apex:write",
    "one HDF5 file as apex's HookerAndDumper writes it: 018_BatchNorm2d/grad_input0",
    True,
    ("module",),
    "hdf5",
)
