"""Where the checkout lies: programs that tests start run from there."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
