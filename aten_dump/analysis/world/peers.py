"""What one rank does otherwise than its peers: two chains of calls that end in the same gradient, of two ranks.

Theory of operation
    The ranks of a side run one program. From the gradient of a rank that is wrong, and that of a rank whose is right,
    both chains are walked back side by side. Views and copies are passed through. Where the calls are of unlike ops,
    one rank does what the other does not. Behind a transfer that both took part in, both have the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ...store.op_names import WAIT_TENSOR
from ..flow.data_flow import DataFlow
from .joined_rank import JoinedRank

_COPIES: Final = frozenset({"aten::copy_", "aten::clone", "aten::_to_copy", WAIT_TENSOR})
Made = tuple[Call, str]  # with the slot of its result
_MOST: Final = 64  # pairs of calls that are looked at: what reduces gradients is near to them


@dataclass(frozen=True, slots=True)
class Parted:
    """Where two ranks part: the call of the rank that is wrong, and what is said of it."""

    call: Call
    text: str


def parted(flow: DataFlow, wrong: Value, right: Value) -> Parted | None:
    """Return where the chains behind two values of two ranks part; None if they are alike."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    ranks = rank.rank_of_value(wrong.id), rank.rank_of_value(right.id)
    waiting = [(wrong, right)]
    for _ in range(_MOST):
        if not waiting:
            break
        one, other = waiting.pop(0)
        ours, theirs = _writer(flow, one), _writer(flow, other)
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None or ours[0].op != theirs[0].op:
            return _told(ranks, flow, ours, theirs)
        if ours[0].id not in _met(flow, theirs[0]):
            behind = flow.behind(*ours), flow.behind(*theirs)
            waiting += [(a, b) for (_, a), (_, b) in zip(*behind, strict=False)]
    return None


def _told(ranks: tuple[int, int], flow: DataFlow, ours: Made | None, theirs: Made | None) -> Parted | None:
    """Return what one rank does and the other does not, of calls of unlike ops."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    peer = f"rank {ranks[1]}"
    if ours is not None and theirs is not None and _lies_behind(flow, ours, theirs[0].op):
        return Parted(ours[0], f"{peer} has no such call there: {ours[0].op}")
    met = () if theirs is None else _met(flow, theirs[0])
    own = next((rank.call(id) for id in met if rank.number_of(id) == ranks[0]), None)
    if own is not None:
        text = f"{peer} goes on with what it brings, this rank with its own, a term of the sum over ranks"
        return Parted(own, f"{text}, which nothing has reduced")
    if ours is None or theirs is None:
        return None
    if _lies_behind(flow, theirs, ours[0].op):
        line = theirs[0].where or theirs[0].name
        return Parted(ours[0], f"{peer} goes on with {theirs[0].op} of what it makes, this rank does not ({line})")
    return Parted(ours[0], f"it computes {ours[0].op}, {peer} {theirs[0].op}")


def _met(flow: DataFlow, call: Call) -> tuple[int, ...]:
    """Return the calls of one transfer, this one among them."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    return rank.meetings.get(call.id, ())


def _lies_behind(flow: DataFlow, call: Made, op: str) -> bool:
    behind = (_writer(flow, value) for _, value in flow.behind(*call))
    return any(found is not None and found[0].op == op for found in behind)


def _writer(flow: DataFlow, value: Value) -> Made | None:
    """Return the call that computed a value, with the slot: what only shows or moves it is passed through."""
    for _ in range(_MOST):
        maker = flow.maker(value)
        if maker is not None and flow.is_view(maker):
            value = flow.reads(maker)[0][1]
            continue
        writer = flow.writer(value)
        if writer is None:
            return None
        behind = flow.behind(writer[0], writer[1])
        if writer[0].op not in _COPIES or not behind:
            return writer[0], writer[1]
        value = behind[-1][1]
    return None
