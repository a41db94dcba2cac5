"""What cannot run with ``--device npu|cuda``, and why. Everything else is expected to."""

from __future__ import annotations

from typing import Final

# Beginnings of test ids.
REASONS: Final[dict[str, str]] = {
}


def reason_of(test: str) -> str | None:
    """Return why a test runs on the CPU alone; None where it does not."""
    return next((reason for name, reason in REASONS.items() if test.startswith(name)), None)
