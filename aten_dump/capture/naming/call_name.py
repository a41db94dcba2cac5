"""What a call is called: its kind, its phase and its name."""

from __future__ import annotations

from typing import Final, NamedTuple

from ...store.records import CALL_KINDS, PHASES

ATEN: Final = CALL_KINDS.index("aten")
API: Final = CALL_KINDS.index("api")
MODULE: Final = CALL_KINDS.index("module")
NODE: Final = CALL_KINDS.index("node")

FORWARD: Final = PHASES.index("forward")
RECOMPUTE: Final = PHASES.index("recompute")
BACKWARD: Final = PHASES.index("backward")
OPTIMIZER: Final = PHASES.index("optimizer")

SCOPE: Final = "Scope"
REMARKS: Final = frozenset(("Saved", "Mark", SCOPE))  # prefixes of what the program itself adds


class CallName(NamedTuple):
    """What a call calls: the full name, and the parts that the call's name is rendered from."""

    op: str
    prefix: str
    api: str
