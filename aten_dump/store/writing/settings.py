"""How a rank's dump is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import StoreError
from ..threads.bell import Bell
from .arena import LEAST_QUEUE_BYTES, Allocate


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How a rank's dump is written.

    Args:
        queue_bytes: most bytes of host memory that wait for the disk.
        shard_bytes: size at which a new shard is begun; a longer blob gets a shard of its own.
        max_bytes: most bytes of blobs to keep in all steps together; None for no limit.
        overwrite: replace an earlier dump of this rank instead of refusing to start.
        recording: ranks of the run that record; the first answers for folders of others.
        allocate: makes the host memory (pinned, say) as a uint8 array of so many bytes.
        at_once: let no more than QUEUED_BYTES of what is `HostBytes` wait: `store` then returns when all is written.
        bell: makes what the storing thread waits with.
        to_disk: have files on the disk, not only with the system, when they are complete and when `flush` returns.
        on_beat: is called on the writer's thread some twenty times a second, for as long as that lives.
        on_steps: is called with steps, on the writer's thread, when their files are there, or up to a second later.
        on_file: is called with each finished shard, and with the index once it is complete, on the writer's
            thread.
        room: is asked for room for so many bytes before a step or shard is begun, and may wait there.

    Raises:
        StoreError: a size is too small.
    """

    queue_bytes: int
    shard_bytes: int
    max_bytes: int | None = None
    overwrite: bool = False
    recording: Sequence[int] = (0,)
    allocate: Allocate | None = None
    at_once: bool = False
    bell: Callable[[], Bell] = Bell
    to_disk: bool = False
    on_beat: Callable[[], None] | None = None
    on_steps: Callable[[list[int]], None] | None = None
    on_file: Callable[[Path], None] | None = None
    room: Callable[[int], None] | None = None

    def say_finished(self, path: Path) -> None:
        """Call `on_file` with a finished file."""
        if self.on_file is not None:
            self.on_file(path)

    def __post_init__(self) -> None:
        for name, least in (("queue_bytes", LEAST_QUEUE_BYTES), ("shard_bytes", 1)):
            if getattr(self, name) < least:
                raise StoreError(f"{name} is {getattr(self, name)}; it must be {least} or more")
