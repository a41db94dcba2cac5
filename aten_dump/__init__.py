"""Record every op of a PyTorch program, and find the one that is wrong.

>>> with DumpMode(DumpConfig(path="dump", data="full"), model=model) as dump:
...     loss = model(batch); loss.backward(); optimizer.step(); dump.step()
>>> open_dump("dump").step(0).rank(0)["Aten.addmm.0.forward"].outputs.tensor().shape
torch.Size([3, 4])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .capture import IS_COMPILED
from .capture.devices import keep_torch_importable
from .config import DumpConfig
from .errors import AtenDumpError, CaptureError, ConfigError, FormatError, MissingDataError, ReplayError, StoreError

if TYPE_CHECKING:
    from .analysis.check import check
    from .analysis.compare import compare
    from .analysis.compare_at import compare_at
    from .analysis.hang import hang
    from .analysis.replay import replay
    from .analysis.weights import weights
    from .capture.mode import DumpMode, stop_all
    from .dump import Call, Dump, RankDump, Step, Value, open_dump
    from .watch.run_watch import Watch

keep_torch_importable()

__version__ = "0.1.0"
__all__ = [
    "IS_COMPILED",
    "AtenDumpError",
    "Call",
    "CaptureError",
    "ConfigError",
    "Dump",
    "DumpConfig",
    "DumpMode",
    "FormatError",
    "MissingDataError",
    "RankDump",
    "ReplayError",
    "Step",
    "StoreError",
    "Value",
    "Watch",
    "check",
    "compare",
    "compare_at",
    "hang",
    "open_dump",
    "replay",
    "stop_all",
    "weights",
]

# Imported when first asked for: the configuration and the command line's help need no torch.
_LAZY = dict.fromkeys(("Call", "Dump", "RankDump", "Step", "Value", "open_dump"), "dump") | dict.fromkeys(
    ("DumpMode", "stop_all"), "capture.mode"
)
_LAZY["check"] = "analysis.check"
_LAZY["replay"] = "analysis.replay"
_LAZY["compare"] = "analysis.compare"
_LAZY["compare_at"] = "analysis.compare_at"
_LAZY["hang"] = "analysis.hang"
_LAZY["weights"] = "analysis.weights"
_LAZY["Watch"] = "watch.run_watch"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
