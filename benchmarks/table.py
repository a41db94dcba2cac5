"""Renders what was measured as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .measure import Mode

Found = Mapping[str, Any]

COSTS = (
    "workload",
    "mode",
    "wall x",
    "on file x",
    "CPU x",
    "us/op above bare",
    "MB per step",
    "files per step",
    "peak MB above bare",
    "x limit",
)
INDEX = (
    "workload",
    "mode",
    "index bytes per aten call",
    "of them stacks",
    "MB index",
    "ms per step, by the commit record",
)
OPS = ("ops per step", "mode", "us/op above bare", "bytes of index per op", "peak bytes above bare per op")
BYTES = ("bytes per step", "mode", "ms per step", "on file GB/s", "peak MB above bare")
STEPS = ("steps", "mode", "ms per step above bare, since the row before", "resident MB above bare")


def header(columns: Iterable[str]) -> str:
    """Return the first two lines of a table."""
    names = list(columns)
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _error_row(columns: tuple[str, ...], first: str, mode: str, error: str) -> str:
    return _row(first, mode, error, *[""] * (len(columns) - 3))


def limit_of(mode: Mode, found: Mapping[str, Found]) -> float | None:
    """Return the ratio to bare of the limits of a mode together; None where they were not measured."""
    limits = [found.get(name, {"error": ""}) for name in mode.limit]
    if not limits or any("error" in limit for limit in limits):
        return None
    return 1 + sum(float(limit["on_file_ratio"]) - 1 for limit in limits)


def costs_row(workload: str, mode: Mode, found: Found, others: Mapping[str, Found]) -> str:
    """Return a row of the first table; `others` are the rows of the same workload, by mode."""
    if "error" in found:
        return _error_row(COSTS, workload, mode.name, found["error"])
    limit = limit_of(mode, others)
    has_peak = mode.group != "limits" and found["peak_bytes"] is not None  # a limit holds what it copies from
    return _row(
        f"{workload} ({found['ops']} ops)",
        mode.name,
        f"{found['wall_ratio']:.3f} ±{found['wall_spread']:.3f}",
        f"{found['on_file_ratio']:.2f}" if found["written_bytes"] else "",
        f"{found['cpu_ratio']:.2f}",
        f"{found['above_s'] / found['ops'] * 1e6:.1f}",
        f"{found['written_bytes'] / 1e6:.2f}" if found["written_bytes"] else "",
        str(found["files"] or ""),
        f"{found['peak_bytes'] / 1e6:.0f}" if has_peak else "",
        f"{found['on_file_ratio'] / limit:.2f}" if limit else "",
    )


def index_row(workload: str, mode: Mode, found: Found) -> str | None:
    """Return a row of the second table; None for a mode without an index."""
    index = found.get("index")
    if not index:
        return None
    aten = max(1, index["calls"].get("aten", 0))
    seconds = ", ".join(f"{name} {value * 1e3:.1f}" for name, value in index["seconds"].items())
    return _row(
        workload,
        mode.name,
        f"{index['index_bytes'] / aten:.0f}",
        f"{index['stack_bytes'] / aten:.0f}",
        f"{index['index_bytes'] / 1e6:.2f}",
        seconds,
    )


def ops_row(workload: str, mode: Mode, found: Found) -> str:
    """Return a row of the curve of ops."""
    if "error" in found:
        return _error_row(OPS, workload, mode.name, found["error"])
    ops = found["ops"]
    return _row(
        str(ops),
        mode.name,
        f"{found['above_s'] / ops * 1e6:.1f}",
        f"{found['index'].get('index_bytes', 0) / ops:.0f}",
        "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / ops:.0f}",
    )


def bytes_row(workload: str, mode: Mode, found: Found) -> str:
    """Return a row of the curve of bytes."""
    size = workload.partition("-")[2]
    if "error" in found:
        return _error_row(BYTES, size, mode.name, found["error"])
    has_peak = mode.group != "limits" and found["peak_bytes"] is not None
    return _row(
        size,
        mode.name,
        f"{found['bare_s'] * found['on_file_ratio'] * 1e3:.1f} (bare {found['bare_s'] * 1e3:.1f})",
        f"{found['written_bytes'] / found['on_file_above_s'] / 1e9:.2f}",
        f"{found['peak_bytes'] / 1e6:.0f}" if has_peak else "",
    )


def steps_rows(mode: Mode, found: Found) -> list[str]:
    """Return the rows of the curve of steps."""
    if "error" in found:
        return [_error_row(STEPS, "", mode.name, found["error"])]
    return [
        _row(
            str(point["steps"]),
            mode.name,
            f"{point['above_s'] * 1e3:.2f}",
            "" if point["resident_bytes"] is None else f"{point['resident_bytes'] / 1e6:.1f}",
        )
        for point in found["curve"]
    ]
