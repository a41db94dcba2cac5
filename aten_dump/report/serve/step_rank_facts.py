"""What the outline says of a step-rank before its index is read: the two ends of the index tell it."""

from __future__ import annotations

import time
from typing import Any, Final

from ...dump import RankDump
from ...store.writing.index_writer import INDEX_FILE

_STILL_SECONDS: Final = 5.0  # an index without an end that has not grown for so long is that of an interrupted step
_CONFIG: Final = ("level", "data", "io", "stacks", "sample", "trigger")


def early_facts(rank: RankDump) -> dict[str, Any]:
    """Return the facts of a step-rank; of one that is being written there are none yet, and it is not shown.

    Raises:
        StoreError: its files cannot be read.
    """
    summary = rank.summary()
    commit, header = summary.commit, summary.header
    config = {} if header is None else header.config
    known = {} if commit is None else {"calls": commit.calls, "values": commit.values, "seconds": dict(commit.seconds)}
    return {
        **_NOTHING_KNOWN,
        "step": rank.step,
        "rank": rank.rank,
        "complete": commit is not None,
        "shown": commit is not None or not _grows(rank),
        "statistics": list(config.get("statistics") or ()),
        "config": {name: config.get(name) for name in _CONFIG},
        "index_bytes": summary.index_bytes,
        "shard_bytes": summary.shard_bytes,
        **known,
    }


def unreadable(rank: RankDump, why: str) -> dict[str, Any]:
    """Return the facts of a step-rank that cannot be read."""
    return {**_NOTHING_KNOWN, "step": rank.step, "rank": rank.rank, "complete": False, "shown": False, "missing": [why]}


# "early": there is more to say when the index has been read.
_NOTHING_KNOWN: Final[dict[str, Any]] = {
    "early": True, "calls": 0, "values": 0, "statistics": [], "index_bytes": 0, "shard_bytes": 0, "seconds": {},
    "config": {}, "missing": [], "notes": [], "loss_scales": [], "saved_bytes": None,
}  # fmt: skip


def _grows(rank: RankDump) -> bool:
    try:
        changed = (rank.directory / INDEX_FILE).lstat().st_mtime
    except OSError:
        return False
    return time.time() - changed < _STILL_SECONDS
