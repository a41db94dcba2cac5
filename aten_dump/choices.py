"""Choices and defaults that the API and the command line share.

They lie here, below all that imports torch, so that `--help` can show them at once (`cli.late_imports`).
"""

from __future__ import annotations

from typing import Final, Literal

# Modes of a call that a user may ask for: which fact of the call, and what it must be.
MODES: Final = {"training": ("training", 1), "evaluation": ("training", 0), "grad": ("grad", 1), "no_grad": ("grad", 0)}

Status = Literal["same", "within", "different", "unmatched", "unknown"]  # of a compared value
STATUS_TEXTS: Final[dict[Status, str]] = {
    "same": "bitwise equal",
    "within": "equal within the noise floor",
    "different": "different",
    "unmatched": "without a counterpart",
    "unknown": "not compared",
}

NEAR: Final = 0.1  # a value beyond this share of its dtype's greatest number is near overflow
PATIENCE_S: Final = 30.0  # how long a rank may let others wait before it is stuck
MOST_SHOWN_CALLS: Final = 200_000  # of all that a report shows call by call
