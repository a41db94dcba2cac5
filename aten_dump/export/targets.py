"""The table of export targets: adding one is a row here and a file in `formats`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """What ``--to`` may be. The code is ``write`` of aten_dump.export.formats.<module>, imported when it is used."""

    module: str
    says: str
    is_file: bool  # False: a folder
    kinds: tuple[str, ...]  # of calls that go in unless the user names one
    extra: str = ""  # of the package, for what else must be installed


_ALL: Final = ("aten", "api", "module", "node")

TARGETS: Final = {
    "msprobe": Target(
        "to_msprobe",
        "dump.json, stack.json, construct.json and .pt files as msprobe writes them",
        False,
        ("api", "module"),
    ),
    "hdf5": Target("to_hdf5", "one HDF5 file, a group for each call", True, _ALL, "hdf5"),
    "apex": Target(
        "to_apex",
        "one HDF5 file as apex's HookerAndDumper writes it: 018_BatchNorm2d/grad_input0",
        True,
        ("module",),
        "hdf5",
    ),
    "npy": Target(
        "to_npy",
        ".npy files, statistic.csv, mapping.csv and execution order in MindSpore's naming",
        False,
        ("aten", "node"),
    ),
    "torch": Target("to_torch", "a .pt file for each tensor, to be read with torch.load", False, _ALL),
    "parquet": Target("to_parquet", "calls, uses, values and statistics as Parquet tables", False, _ALL, "parquet"),
    "graph": Target(
        "to_graph", "the graph as text like MindSpore's .ir, as DOT and as Model Explorer JSON", False, ("aten", "node")
    ),
    "perfetto": Target("to_perfetto", "a timeline for ui.perfetto.dev, forward tied to backward", True, _ALL),
    "tensorboard": Target(
        "to_tensorboard", "statistics over steps as TensorBoard scalars", False, ("module",), "tensorboard"
    ),
}
