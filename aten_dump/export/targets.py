"""Export targets: a built-in one is a row here and a file in `formats`; those of other tools are extensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..extensions import EXPORTS, extensions


@dataclass(frozen=True, slots=True)
class Target:
    """What ``--to`` may be.

    Args:
        write: ``module:function``, imported when it is used; it is given the `ChosenCalls` and the path to write.
        says: what is written, in a line.
        is_file: one file; a folder if False.
        kinds: of calls that go in unless the user names one.
        extra: of the package, for what else must be installed.
    """

    write: str
    says: str
    is_file: bool
    kinds: tuple[str, ...]
    extra: str = ""


_HERE: Final = "aten_dump.export.formats."
_ALL: Final = ("aten", "api", "module", "node")

_OWN: Final = {
    "hdf5": Target(_HERE + "to_hdf5:write", "one HDF5 file, a group for each call", True, _ALL, "hdf5"),
    "torch": Target(_HERE + "to_torch:write", "a .pt file for each tensor, to be read with torch.load", False, _ALL),
    "parquet": Target(
        _HERE + "to_parquet:write", "calls, uses, values and statistics as Parquet tables", False, _ALL, "parquet"
    ),
    "graph": Target(
        _HERE + "to_graph:write",
        "the graph as text like MindSpore's .ir, as DOT and as Model Explorer JSON",
        False,
        ("aten", "node"),
    ),
    "perfetto": Target(
        _HERE + "to_perfetto:write", "a timeline for ui.perfetto.dev, forward tied to backward", True, _ALL
    ),
    "tensorboard": Target(
        _HERE + "to_tensorboard:write",
        "statistics over steps as TensorBoard scalars",
        False,
        ("module",),
        "tensorboard",
    ),
}


def targets() -> dict[str, Target]:
    """Return what ``--to`` may be, by name: ours, those of other tools, those that other packages add."""
    return {**dict(extensions(EXPORTS)), **_OWN}
