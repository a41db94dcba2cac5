"""Differences in the settings of two runs that affect the results of ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_NAMED: Final = 8


def set_otherwise(target: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence about the settings in which two runs differ, if they are known and do.

    Args:
        target: what run.json of the target says; a setting that one side does not name is left out.
        baseline: the same of the baseline.
    """
    ours, theirs = _settings(target), _settings(baseline)
    found = [
        f"{name} {_shown(ours[name])}, in the baseline {_shown(theirs[name])}"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]
    if not found:
        return ()
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (f"the runs were set otherwise: {'; '.join(found[:_MOST_NAMED])}{more}",)


def ran_as_written(target: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence if compiled functions ran uncompiled while a run was recorded; none if none did.

    Args:
        target: what run.json of the target says.
        baseline: the same of the baseline.
    """
    sides = [name for name, run in (("target", target), ("baseline", baseline)) if _has_note(run, "compile_eager")]
    if not sides:
        return ()
    where = "both dumps" if len(sides) == 2 else f"the {sides[0]}"
    return (
        f"compiled functions ran as written in {where}, so a bug of the compiler cannot show here; to see what they "
        'compute compiled, record with compile="opaque" (aten-dump run --compile opaque)',
    )


def _has_note(run: Mapping[str, Any], code: str) -> bool:
    coverage = run.get("coverage")
    notes = coverage.get("notes") if isinstance(coverage, dict) else None
    return isinstance(notes, dict) and bool(notes.get(code))


def summed_otherwise(target: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    """Return True if two runs may sum the statistics of a tensor in different orders."""
    return any(target.get(name) != baseline.get(name) for name in ("threads", "devices", "recorder"))


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name: versions and devices, threads, switches that torch or a device has."""
    packages, computing = (
        {} if not isinstance(found := run.get(name), dict) else found for name in ("packages", "computing")
    )
    named = {name: packages.get(name) for name in ("torch", "torch_npu", "torch-npu")}
    named |= {"devices": run.get("devices"), "threads": run.get("threads"), **computing}
    return {name: setting for name, setting in named.items() if setting is not None}


def _shown(setting: Any) -> str:
    if isinstance(setting, bool):
        return "on" if setting else "off"
    return ", ".join(map(str, setting)) if isinstance(setting, list) else str(setting)
