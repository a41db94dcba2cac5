"""What ranks have measured, as one.

Theory of operation
    Tallies are sent to rank 0, which adds them up: of replicas that is their mean, of shards the whole (`Tally.norm`).
    What rank 0 then decides, all ranks are sent. This goes over a group of its own on gloo, so that neither the order
    nor the streams of the program's collectives change. Whatever goes wrong there ends the watching, not the program.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import torch.distributed as dist

from ..capture.torch_internals.quiet import quiet
from .measurements import Key, Tally

_MOST_SECONDS: Final = 300  # ranks may be so far apart, while one writes a checkpoint


class Ranks:
    """The ranks that watch; there is one where torch.distributed is not in use.

    Args:
        together: False: each rank is watched for itself.
    """

    def __init__(self, together: bool) -> None:
        self._together = together
        self._group: Any = None

    def writes(self, rank: int) -> bool:
        """Return True on a rank that writes: before there is a process group, the launcher's variables say which."""
        return not self._together or rank == 0

    def own_name(self, rank: int) -> int | None:
        """Return the number that the files of a rank bear; None if one rank writes for all."""
        return None if self._together else rank

    def _is_several(self) -> bool:
        return self._together and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def added_up(self, tallies: dict[Key, Tally]) -> dict[Key, Tally]:
        """Return the tallies of all ranks as one, on rank 0; those of this rank on others. All ranks call it."""
        if not self._is_several():
            return tallies
        world = dist.get_world_size()
        found: list[Any] | None = [None] * world if dist.get_rank() == 0 else None
        with quiet():
            dist.gather_object(tallies, found, dst=0, group=self._of_all())
        for other in (found or [])[1:]:
            for key, tally in other.items():
                tallies.setdefault(key, Tally()).add(tally)
        return tallies

    def from_first(self, decision: bool) -> bool:
        """Return what rank 0 has decided. All ranks call it."""
        if not self._is_several():
            return decision
        shared = [decision]
        with quiet():
            dist.broadcast_object_list(shared, src=0, group=self._of_all())
        return shared[0]

    def _of_all(self) -> Any:
        if self._group is None:
            limit = datetime.timedelta(seconds=_MOST_SECONDS)
            self._group = dist.new_group(backend="gloo", timeout=limit)
        return self._group
