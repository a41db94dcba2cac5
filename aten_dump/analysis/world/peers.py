"""What one rank does otherwise than its peers: two chains of calls that end in the same gradient, of two ranks.

Theory of operation
    The ranks of a side run one program. From the gradient of a rank that is wrong, and that of a rank whose is right,
    both chains are walked back side by side. Views and copies are passed through. Where the calls are of unlike ops,
    one rank does what the other does not. Behind a transfer that both took part in, both have the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ...store.op_names import WAIT_TENSOR
from ..flow.data_flow import DataFlow
from .joined_rank import JoinedRank

_COPIES: Final = frozenset({"aten::copy_", "aten::clone", "aten::_to_copy", WAIT_TENSOR})
Made = tuple[Call, str]  # with the slot of its result
_FAR: Final = 8  # calls that one rank alone has
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
    brought = _transfer(flow, theirs, ours)
    own = next((id for id in brought if rank.number_of(id) == ranks[0]), None)
    if own is not None and own not in _transfer(flow, ours, None):
        text = f"{peer} goes on with what it brings, this rank with its own, a term of the sum over ranks"
        return Parted(rank.call(own), f"{text}, which nothing has reduced")
    if ours is None or theirs is None:
        return None
    more = [_steps(flow, one, other[0].op) for one, other in ((ours, theirs), (theirs, ours))]
    if more[0] and not 0 < more[1] < more[0]:
        return Parted(ours[0], f"{peer} has no such call there: {ours[0].op}")
    if more[1]:
        line = theirs[0].where or theirs[0].name
        return Parted(ours[0], f"{peer} goes on with {theirs[0].op} of what it makes, this rank does not ({line})")
    return Parted(ours[0], f"it computes {ours[0].op}, {peer} {theirs[0].op}")


def _near(flow: DataFlow, made: Made) -> Iterator[Call]:
    """Yield a call and those near behind it, as far as transfers."""
    waiting, count = [made], 0
    while waiting and count < _FAR:
        call, slot = waiting.pop(0)
        count += 1
        yield call
        if not _met(flow, call):
            makers = (_writer(flow, value) for _, value in flow.behind(call, slot))
            waiting += [maker for maker in makers if maker is not None]


def _steps(flow: DataFlow, made: Made, op: str) -> int:
    """Return how many calls back from one there is one of an op; 0 if there is none."""
    return next((steps for steps, call in enumerate(_near(flow, made)) if call.op == op), 0)


def _transfer(flow: DataFlow, made: Made | None, until: Made | None) -> tuple[int, ...]:
    """Return the calls of the transfer near behind one, unless a call of the op of `until` comes before it."""
    for call in () if made is None else _near(flow, made):
        if until is not None and call.op == until[0].op:
            break
        if _met(flow, call):
            return _met(flow, call)
    return ()


def _met(flow: DataFlow, call: Call) -> tuple[int, ...]:
    """Return the calls of one transfer, this one among them."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    return rank.meetings.get(call.id, ())


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
