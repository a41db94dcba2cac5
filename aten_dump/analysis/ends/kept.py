"""Finds out if one side keeps a result that the other side wrote to memory.

Theory of operation
    ``self.hidden.copy_(h)`` and ``self.hidden = h`` leave the same; a program that only computes ``h`` does not. The
    next step shows which: it reads the result, or the old contents of the memory. If it reads neither, or was not
    recorded, the step before decides: this step begins with its results, or does not. If that is open too, a result
    that no call of the step reads may have been kept, which is unknown. A result that calls of the step read was made
    for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

from ...dump import RankDump, Value
from ..evaluation.evaluation import Evaluation
from ..evaluation.memory import UNREADABLE
from ..flow.data_flow import DataFlow, once_per_flow
from ..flow.last_reads import LastReads
from ..signatures.signature import RECORDED, Signature, is_same, sign_value


class Before(Protocol):
    """Knows what the step before left."""

    def made(self, side: int, numel: int, contents: tuple[Any, ...]) -> bool:
        """Return True if the step before of a side made a tensor of these contents, in memory of its own."""
        ...


class Kept:
    """Decides whether the program of one side goes on with what it made."""

    def __init__(self, side: int, evaluation: Evaluation, before: Before | None) -> None:
        self._side = side
        self._evaluation = evaluation
        self._before = before

    def keeps(self, number: int, made: Signature | None, old: Value | None) -> bool | None:
        """Return True if the program keeps a value of this number instead of the memory; None if that is unknown.

        Args:
            number: the number of what the other side left.
            made: its signature.
            old: the signature of the memory at the start of the step, if this side has it.
        """
        rank = self._evaluation.flow.rank
        values = [rank.value_by_id(held) for held in self._evaluation.holders.get(number, ())]
        known = [contents for value in values if (contents := _contents(value)) is not None]
        then = None if old is None else _contents(old)
        if self._after is not None and made is not None:
            after = [one for one in self._after if one.numel == made.numel]
            if any(_distinguishes(one) and any(one.contents == each.contents for each in known) for one in after):
                return True
            if not values and any(is_same(one, made._replace(noise=RECORDED * made.norm)) for one in after):
                return True
            if then is not None and _distinguishes(then) and any(one.contents == then.contents for one in after):
                return False
        habit = then is not None and _distinguishes(then) and self._before is not None
        if habit and then and self._before and self._before.made(self._side, then.numel, then.contents):
            return True
        if any(value.storage and value.version and _by_optimizer(value) for value in values):
            return True  # the parameter, or its state, was moved there
        return None if not values or not all(self._reads.is_read(value) for value in values) else False

    def is_read_after(self, value: Value) -> bool:
        """Return True if the next step reads what memory was left as."""
        left = _contents(value)
        return left is not None and any(one.contents == left.contents for one in self._after or ())

    @cached_property
    def _reads(self) -> LastReads:
        return LastReads(self._evaluation.flow)

    @property
    def _after(self) -> list[Signature] | None:
        return _read_after(self._evaluation.flow)


@once_per_flow
def _read_after(flow: DataFlow) -> list[Signature] | None:
    """Return what the next step reads from outside; None if there is no such step."""
    rank = flow.rank
    directory = rank.directory.parent.with_name(f"step{rank.step + 1}") / rank.directory.name
    if not directory.is_dir():
        return None
    return list(_read(RankDump(directory, rank.step + 1, rank.rank)))


def _read(rank: RankDump) -> Iterator[Signature]:
    for value in rank.values:
        if not value.record.version and value.from_outside and (found := _contents(value)) is not None:
            yield found


def _contents(value: Value) -> Signature | None:
    try:
        return sign_value(value)
    except UNREADABLE:
        return None


def _by_optimizer(value: Value) -> bool:
    return value.producer is not None and value.producer[0].phase == "optimizer" and not value.from_outside


def _distinguishes(signature: Signature) -> bool:
    """Return True if contents can be recognized: they are not zeros or a single number."""
    return signature.numel > 1 and signature.norm > 0
