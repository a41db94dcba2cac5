"""What the sweep leaves out, by name, and why; and the ops that every sample of it must hold."""

from __future__ import annotations

EXCLUDED: dict[str, str] = {}

SPECIAL: frozenset[str] = frozenset()
