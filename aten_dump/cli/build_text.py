"""How the package was built: compiled or not, and why something was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from .. import IS_COMPILED

_REPORT: Final = "_not_compiled.json"  # hatch_build.py puts it into a wheel of which something could not be compiled
_PACKAGE: Final = Path(__file__).parents[1]


def build_text() -> str:
    """Return the build in words: compiled, pure Python, and what could not be compiled, with the reason."""
    build = "compiled" if IS_COMPILED else "pure Python"
    report = _PACKAGE / _REPORT
    try:
        failed: dict[str, str] = json.loads(report.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return build
    return f"{build}; not compiled: " + "; ".join(f"{name} ({why})" for name, why in failed.items())
