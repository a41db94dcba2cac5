"""What storages held when they were last looked at, where kernels write that no mode sees.

Theory of operation
    While compiled code runs, the recorder sees some of its ops and none of the kernels between them. These write to any
    memory of theirs: to fresh memory, to what was saved for backward, in place. So an op in compiled code looks at the
    bytes of what it is given: unless they are those that were there when an op was last seen to write or read them, a
    new version of the storage begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from .storages import StorageState, digest_of


class SeenBytes:
    """Digests of storages, as they were last seen."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by id of the storage: a version, and the digest of its bytes

    def doubt(self, states: Iterable[StorageState]) -> None:
        """Begin new versions of storages that do not hold what was last seen in them.

        Memory of a device is not read for this: there a new version begins each time.
        """
        for state in states:
            digest = digest_of(state)
            if digest is None or self._seen.get(state.id) != (state.version, digest):
                state.bump()
                state.written = None
            if digest is not None:
                self._seen[state.id] = state.version, digest

    def believe(self, states: Iterable[StorageState]) -> None:
        """Remember what storages hold: an op that was seen has just written them."""
        for state in states:
            digest = digest_of(state)
            if digest is not None:
                self._seen[state.id] = state.version, digest

    def are_in(self, state: StorageState) -> bool:
        """Return True if a storage holds what was last seen in it; False if it was not looked at since a write."""
        seen = self._seen.get(state.id)
        return seen is not None and seen == (state.version, digest_of(state))

    def forget(self, state: StorageState) -> None:
        """Forget a storage that was freed."""
        self._seen.pop(state.id, None)
