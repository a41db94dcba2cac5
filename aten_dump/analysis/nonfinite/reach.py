"""What NaN and Inf lead to: a loss, a gradient, memory that is left, a number the program reads; or nothing.

Theory of operation
    Calls are walked once more, from the first that made NaN or Inf. Each moment of memory (a storage at a version) has
    three sets of origins, as bits of one number each:

    - *exact*: infinities that are the right result, as of log(0). What is computed from them and finite is right, too.
    - *wrong*: NaN, and Inf that stands for a number too large for its dtype.
    - *derived*: finite numbers that were computed from wrong ones: an overflow that was clamped.

    An op that only moves elements and whose result is finite has left the wrong ones behind: they end there. So they
    do in a test for them (isnan, nan_to_num). An origin whose sets reach no end is contained: nothing depends on it.
    Ends are what is seen last of memory that was there before the step or that nobody read, what the program read as a
    number or sent, gradients, and losses. What cannot be seen counts as reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from ...dump import Call, RankDump, Value
from ...store import records
from ...store.op_names import UNSCALE_GRADIENTS, is_workspace, read_op_name
from ..flow.data_flow import Moment, moment_of_record
from ..flow.moving_ops import moves_elements
from .explanations import numbers_given
from .value_range import Contents, ContentsTable

# What depends on it: kept is memory that was there before the step, left is what nobody read, read is by the program.
End = Literal["loss", "gradient", "kept", "read", "left"]

_BACKWARD: Final = frozenset(("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))
_TESTS: Final = frozenset(("isnan", "isinf", "isfinite", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmean"))
_EQUALITIES: Final = frozenset(("eq", "ne"))


class Origin(NamedTuple):
    """Where NaN or Inf appeared."""

    call: int  # id
    moments: tuple[Moment, ...]  # what holds it: results of the call, or what it was given
    exact: bool  # infinities that are the right result


class _Held(NamedTuple):
    """Origins of what a moment of memory holds, a bit each."""

    exact: int = 0
    wrong: int = 0
    derived: int = 0

    def with_all(self, other: _Held) -> _Held:
        return _Held(self.exact | other.exact, self.wrong | other.wrong, self.derived | other.derived)

    @property
    def any(self) -> int:
        return self.exact | self.wrong | self.derived


_NOTHING: Final = _Held()


class Reach:
    """Follows origins of NaN and Inf through one step and rank.

    Args:
        rank: the step and rank.
        contents: what is known of its values.
        calls: those that are followed, in execution order.
        origins: in execution order.
    """

    def __init__(
        self, rank: RankDump, contents: ContentsTable, calls: Sequence[Call], origins: Sequence[Origin]
    ) -> None:
        self._rank = rank
        self._contents = contents
        self._held: dict[Moment, _Held] = {}
        self._by: dict[Moment, str] = {}  # name of the call that made a moment
        self._read: set[Moment] = set()
        self._at: dict[int, list[tuple[int, Origin]]] = {}
        for number, origin in enumerate(origins):
            self._at.setdefault(origin.call, []).append((1 << number, origin))
        self._reached: list[dict[End, str]] = [{} for _ in origins]
        if origins:
            first = min(self._at)
            for call in calls:
                if call.id >= first:
                    self._follow(call)
            self._note_ends()

    def of(self, number: int) -> dict[End, str]:
        """Return the ends that an origin leads to, by its position, each with the call that wrote or read the first."""
        return self._reached[number]

    def _moment(self, value: int) -> Moment:
        return moment_of_record(self._rank.tables.values[value])

    def _follow(self, call: Call) -> None:
        given = [(number, self._moment(number)) for _, number in call.input_slots()]
        results = [
            (slot, number, self._moment(number))
            for slot, number in (*call.output_slots(), *call.written_slots())
            if not is_workspace(call.op, slot)
        ]
        before = {moment for _, moment in given}
        made = [(number, moment) for _, number, moment in results if moment not in before]
        new: dict[Moment, _Held] = {}
        for bit, origin in self._at.get(call.id, ()):
            for moment in origin.moments:
                held = _Held(exact=bit) if origin.exact else _Held(wrong=bit)
                into = self._held if moment in before else new
                into[moment] = into.get(moment, _NOTHING).with_all(held)
        if not new and not any(moment in self._held for moment in before):
            return
        if not made and results:
            return  # a view
        read = call.read_value_ids()
        taken = _NOTHING
        for number, moment in given:
            if number in read and moment in self._held:
                seen = self._seen_in(number, moment)
                taken = taken.with_all(seen)
                if seen == self._held[moment]:  # else a finite part: the rest is left as it is
                    self._read.add(moment)
        if not results:
            self._note(taken.any, "read", call.name)
        elif not _skips_itself(call, self._contents):
            self._hand_on(call, taken, made, new)
        self._carry(call, given, made)

    def _seen_in(self, number: int, moment: Moment) -> _Held:
        """Return the origins of what a value shows of a moment: if it is finite, it shows no wrong elements."""
        held = self._held[moment]
        contents = self._of(number)
        return held if contents is None or not contents.finite else _Held(derived=held.derived)

    def _of(self, number: int) -> Contents | None:
        return self._contents.of(self._rank.value_by_id(number))

    def _hand_on(
        self, call: Call, taken: _Held, made: Iterable[tuple[int, Moment]], new: Mapping[Moment, _Held]
    ) -> None:
        is_test = _tests_for_nonfinite(call)
        moves = moves_elements(call.op)
        for number, moment in made:
            value, contents = self._rank.value_by_id(number), self._of(number)
            own = new.get(moment, _NOTHING)
            if not value.is_floating or (contents is not None and contents.finite):
                wrong = 0 if is_test or (moves and value.is_floating) else taken.wrong
                found = _Held(derived=(0 if is_test else taken.derived) | wrong)
            elif contents is not None and not contents.nan:
                found = taken.with_all(own)
            else:
                exact = taken.exact | own.exact
                found = _Held(wrong=exact | taken.wrong | own.wrong, derived=taken.derived)
            self._keep(call, moment, found)

    def _carry(self, call: Call, given: Sequence[tuple[int, Moment]], made: Sequence[tuple[int, Moment]]) -> None:
        """Keep what is in the rest of memory of which a call has written a part."""
        older = {moment[0]: moment for _, moment in given if moment[0] and moment in self._held}
        for number, moment in made:
            before = older.get(moment[0])
            value = self._rank.value_by_id(number)
            if before is not None and value.nbytes < value.storage_nbytes:
                self._keep(call, moment, self._held[before])

    def _keep(self, call: Call, moment: Moment, held: _Held) -> None:
        if held.any:
            self._held[moment] = self._held.get(moment, _NOTHING).with_all(held)
            self._by[moment] = call.name

    # -- ends

    def _note_ends(self) -> None:
        gradients = self._note_gradients()
        for call in self._rank.calls.filter(kind="api"):
            if call.op in _BACKWARD and call.forward is None:
                for _, number in call.input_slots():
                    self._note_value(number, "loss", call.name)
        storages = {moment[0] for moment in self._held if moment[0]}
        latest: dict[int, int] = {}
        first: dict[int, records.Value] = {}
        for record in self._rank.tables.values.records():
            if record.storage in storages:
                latest[record.storage] = max(record.version, latest.get(record.storage, 0))
                first.setdefault(record.storage, record)
        producers = self._rank.links.producers
        for moment, held in self._held.items():
            storage, version = moment
            if (storage and version < latest[storage]) or storage in gradients:
                continue
            if storage and version > first[storage].version and producers.get(first[storage].id) is None:
                self._note(held.any, "kept", self._by.get(moment, ""))
            elif moment not in self._read:
                self._note(held.any, "left", self._by.get(moment, ""))

    def _note_gradients(self) -> set[int]:
        """Note what is a gradient of a leaf, and return the storages of all of those."""
        found: set[int] = set()
        numbers = [(record.value, f"the gradient of {record.name}") for record in self._rank.tables.gradients]
        for call in self._rank.calls.filter(kind="node"):
            if call.op.endswith("AccumulateGrad"):
                numbers += [(number, call.name) for _, number in call.input_slots()]
        for call in self._rank.calls.filter(kind="aten"):
            if call.op.startswith(UNSCALE_GRADIENTS):
                slots = [*call.input_slots(), *call.written_slots()]
                numbers += [(n, call.name) for slot, n in slots if slot.startswith(("input.0.", "mutated.self."))]
        for number, name in numbers:
            found.add(self._moment(number)[0])
            self._note_value(number, "gradient", name)
        return found - {0}

    def _note_value(self, number: int, end: End, name: str) -> None:
        moment = self._moment(number)
        if moment in self._held:
            self._note(self._seen_in(number, moment).any, end, name)

    def _note(self, bits: int, end: End, name: str) -> None:
        while bits:
            number = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            self._reached[number].setdefault(end, name)


def _tests_for_nonfinite(call: Call) -> bool:
    """True for an op that asks which elements are NaN or Inf, or replaces them on purpose."""
    name = read_op_name(call.op).name
    if name in _TESTS or call.op.startswith(UNSCALE_GRADIENTS):
        return True
    if name not in _EQUALITIES:
        return False
    ids = [number for _, number in call.input_slots()]
    is_own = len(ids) == 2 and ids[0] == ids[1]
    return is_own or any(isinstance(n, float) and not math.isfinite(n) for n in numbers_given(call))


def _skips_itself(call: Call, contents: ContentsTable) -> bool:
    """True for a fused optimizer's op whose gradient scaler found Inf: it changes nothing."""
    args, kwargs = call.inputs
    found: Any = {**dict(zip(call.arguments, args, strict=False)), **kwargs}.get("found_inf")
    if not isinstance(found, Value) or not read_op_name(call.op).name.startswith("_fused_"):
        return False
    known = contents.of(found)
    return known is not None and known.high is not None and known.high > 0
