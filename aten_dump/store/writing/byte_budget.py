"""How many bytes of blobs may be kept, in all steps together."""

from __future__ import annotations

from ..records import NOTE, Note


class ByteBudget:
    """Counts what is kept against `max_bytes`; once spent, it stays spent."""

    def __init__(self, max_bytes: int | None) -> None:
        """Begin with nothing kept; None is no limit."""
        self._max_bytes = max_bytes
        self._kept = 0
        self._skipped = [0, 0]  # blobs and bytes of this step beyond the budget

    def begin_step(self) -> None:
        """Forget what was left out of the step before."""
        self._skipped = [0, 0]

    def take(self, nbytes: int) -> bool:
        """Count a blob; False when it is not to be kept."""
        if self._max_bytes is not None and (self._skipped[0] or self._kept + nbytes > self._max_bytes):
            self._kept = max(self._kept, self._max_bytes)
            self._skipped[0] += 1
            self._skipped[1] += nbytes
            return False
        self._kept += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Uncount a blob that was not kept after all."""
        self._kept -= nbytes

    def take_notes(self) -> list[Note]:
        """Return what is to be said of blobs that were left out since the step began."""
        blobs, nbytes = self._skipped
        if not blobs:
            return []
        self._skipped = [0, 0]
        message = f"max_bytes={self._max_bytes} was spent: {blobs} blobs of {nbytes} bytes in this step were not kept"
        return [Note(NOTE, "max_bytes", message, blobs)]
