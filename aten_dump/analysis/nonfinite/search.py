"""Where NaN and Inf came from.

Theory of operation
    Calls are walked in execution order. One whose inputs are finite and whose results are not is a *producer*.
    One that was given non-finite elements and passes some on is a *propagator*. Infinities that the program put
    there on purpose are a *mask*: written as a literal (masked_fill, full, where with -inf), or -inf alone that
    came from outside, and what moves or adds to such values without making NaN of them. An op that makes NaN of
    a mask (softmax of a row that is masked entirely, 0 * -inf) is a producer again, and so is one that is given NaN
    as a literal: no mask is made of it, and the trigger of the recorder fires there too. -inf that the logarithm of a
    mask of zeros and ones makes is a mask too (see `masks`). What is known of a value follows its memory, so that a
    view that was made before a masked_fill_ is known to be masked after it. Gradients that overflow under the loss
    scale of a gradient scaler are *scaled* if nothing of them is written to memory that is left: the scaler has
    skipped the optimizer's step. A producer whose NaN or Inf reaches no loss, no gradient and nothing that is left is
    *contained* (`reach.py`). What memory held that a call only writes to is nothing to it, and what workspaces hold is
    nobody's number.
    Statistics are enough; bytes are read only where there are none. Most steps of a long run are finite throughout:
    that is seen at once (`all_are_finite`), and of steps that say the same one is walked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from ...choices import NEAR
from ...dump import Call, RankDump, Value
from ...dump.known_tables import once_for_alike
from ...dump.wholeness import lacks_with
from ...errors import MissingDataError
from ...store.damage_seen import damage_seen
from ...store.op_names import LIFT_FRESH, is_workspace, read_op_name
from ..flow.data_flow import DataFlow, Moment, moment_of_record
from ..flow.undefined_memory import UndefinedMemory
from ..host_default import made_on_the_host
from ..rerun.undefined_elements import DEPENDS
from .explanations import Slot, Why, explain, explain_scaled, numbers_given
from .reach import End, Origin, Reach
from .value_range import ContentsTable, all_are_finite, greatest_of

MASK_FILL: Final = 0.45  # a share of the lowest number from which on a negative value is a mask, or half of one
_FACTORIES: Final = frozenset(("ones", "zeros", "eye", "ones_like", "zeros_like", "new_ones", "new_zeros"))
_KEEP_FLAGS: Final = frozenset(
    ("_to_copy", "copy", "clone", "detach", "tril", "triu", "rsub", "mul", "view", "_unsafe_view", "expand", "alias")
) | frozenset(("unsqueeze", "squeeze", "transpose", "t", "permute", "slice", "select", "cat", "stack", "repeat"))
_DEPTH: Final = 16  # calls that a mask is followed back through

Kind = Literal["producer", "propagator", "mask", "outside", "scaled", "contained"]


@dataclass(frozen=True, slots=True)
class Event:
    """A call that made, passed on or placed non-finite elements; plain values, so that it travels."""

    kind: Kind
    name: str
    call_id: int
    op: str
    phase: str
    module: str
    source: str
    forward: str  # name of the forward call that it belongs to
    results: tuple[Slot, ...]  # those that are not finite
    inputs: tuple[Slot, ...]
    why: str  # what the numbers suggest; "" where nothing does
    reaches: tuple[End, ...] = ()  # what depends on its NaN or Inf


@dataclass(frozen=True, slots=True)
class NearOverflow:
    """A value that is close to the greatest number of its dtype."""

    name: str
    call_id: int
    op: str
    dtype: str
    greatest: float
    share: float  # of the dtype's greatest number


@dataclass(frozen=True, slots=True)
class NonFinite:
    """What was found in one step and rank, in execution order."""

    path: str
    step: int
    rank: int
    producers: tuple[Event, ...]
    propagators: tuple[Event, ...]
    masks: tuple[Event, ...]
    outside: tuple[Event, ...]  # non-finite values that no recorded call made: first call that read each
    near_overflow: tuple[NearOverflow, ...]
    calls: int  # looked at
    unknown: int  # floating results that nothing is known of, or the first elements alone, which are finite
    scaled: tuple[Event, ...] = ()  # gradients that overflowed under a loss scale, which the gradient scaler found
    has_scaler: bool = False  # a gradient scaler was at work, as far as the dump shows
    judged: int = 0  # results that something is known of
    contained: tuple[Event, ...] = ()  # NaN or Inf that reached no loss, no gradient and nothing that is left
    lacks: str = ""  # what the recording lacks, which may have made NaN too; "" for a whole one

    @property
    def first(self) -> Event | None:
        """The first cause: a producer, or a call that was given non-finite values from outside."""
        return min((*self.producers, *self.outside), key=lambda event: event.call_id, default=None)


@made_on_the_host
def find_nonfinite(rank: RankDump, near: float = NEAR) -> NonFinite:
    """Find what made elements of one step and rank NaN or infinite.

    Args:
        rank: the step and rank; recorded with statistics or bytes.
        near: share of a dtype's greatest number beyond which a value counts as near overflow.

    Raises:
        MissingDataError: neither statistics nor bytes were recorded.
    """
    if rank.config.get("data") in ("structure", "hash"):
        raise MissingDataError(
            f'{rank.where} was recorded with DumpConfig.data="{rank.config["data"]}", which says nothing about the '
            'elements; record again with data="statistic"'
        )
    with damage_seen() as damage:
        found = _of_finite_step(rank) if all_are_finite(rank, near) else _Search(rank, near).run()
    path = str(rank.directory.parent.parent)
    return replace(found, path=path, step=rank.step, rank=rank.rank, lacks=lacks_with(rank.lacks, damage))


@once_for_alike
def _of_finite_step(rank: RankDump) -> NonFinite:
    """Return what is found where nothing is: counts alone."""
    return _Search(rank, NEAR).run()


class _Search:
    def __init__(self, rank: RankDump, near: float) -> None:
        self._rank = rank
        self._near = near
        self._contents = ContentsTable(rank)
        self._masks: set[Moment] = set()
        self._made: set[Moment] = set()  # of everything non-finite that a call made
        self._storages: set[int] = set()  # of those
        self._workspaces: set[Moment] = set()
        self._events: dict[Kind, list[Event]] = {"producer": [], "propagator": [], "mask": [], "outside": []}
        self._origins: list[tuple[Event, Origin]] = []  # of producers, and of what came from outside
        self._near_overflow: list[NearOverflow] = []
        self._seen: set[Moment] = set()
        self._unknown = self._judged = 0

    def run(self) -> NonFinite:
        calls = _innermost(self._rank)
        for call in calls:
            self._look(call)
        self._follow(calls)
        found = {kind: tuple(events) for kind, events in self._events.items()}
        return NonFinite(
            "",
            self._rank.step,
            self._rank.rank,
            found["producer"],
            found["propagator"],
            found["mask"],
            found["outside"],
            tuple(self._near_overflow),
            len(calls),
            self._unknown,
            found["scaled"],
            any(note.code == "gradient_scaler" for note in self._rank.notes),
            self._judged,
            found["contained"],
        )

    def _follow(self, calls: Sequence[Call]) -> None:
        """Sort the events by what they lead to: findings, the doing of a gradient scaler, and what reaches nothing."""
        self._origins.sort(key=lambda item: item[1].call)
        reach = Reach(self._rank, self._contents, calls, [origin for _, origin in self._origins])
        events: dict[Kind, list[Event]] = {"producer": [], "outside": [], "scaled": [], "contained": []}
        for number, (event, _) in enumerate(self._origins):
            ends = reach.of(number)
            followed = replace(event, reaches=tuple(ends))
            why = self._word_of_scaler(event, ends.get("kept", "")) if event.phase == "backward" else None
            if not ends:
                followed = replace(followed, kind="contained")
            elif why is not None:
                followed = replace(followed, kind=event.kind if "kept" in ends else "scaled", why=why)
            events[followed.kind].append(followed)
        self._events |= events

    def _word_of_scaler(self, event: Event, written_by: str) -> str | None:
        said = (
            explain_scaled(event.why, event.results, event.inputs, update, written_by)
            for update in self._rank.loss_scales
        )
        return next((why for why in said if why is not None), None)

    def _look(self, call: Call) -> None:
        given_values = call.input_values()
        inputs, undefined = self._slots(given_values)
        inputs = [slot for slot in inputs if self._key(slot.value) not in self._workspaces]
        values: list[tuple[str, Value]] = []
        for name, value in call.result_values():
            if is_workspace(call.op, name):
                self._workspaces.add(self._key(value.id))
            else:
                values.append((name, value))
        results, _ = self._slots(values)
        unknown_here = sum(map(self._is_unknown, values))
        self._unknown += unknown_here
        self._judged += sum(value.is_floating for _, value in values) - unknown_here
        self._note_near(call, results)
        bad = [slot for slot in results if not slot.contents.finite]
        given = [slot for slot in inputs if not slot.contents.finite]
        if given:
            read = call.read_value_ids()
            given = [slot for slot in given if slot.value in read]
        given_keys = {slot.value: self._key(slot.value) for slot in given}
        self._note_outside(call, given, inputs)
        if not bad:
            return
        only_masks = all(key in self._masks for key in given_keys.values())
        if only_masks and (given or places(call)):
            kind: Kind = "producer" if any(slot.contents.nan for slot in bad) else "mask"
        elif given:
            kind = "propagator"
        elif adds_masks(inputs, bad) or makes_mask_of_flags(call, inputs, bad):
            kind = "mask"
        else:
            kind = "producer"
        for slot in bad:
            key = self._key(slot.value)
            self._note_made(key)
            (self._masks.add if kind == "mask" else self._masks.discard)(key)
        if kind != "producer":
            self._events[kind].append(_event(kind, call, bad, inputs, ""))
            return
        why = explain(call, inputs, bad, given, undefined or self._is_of_unwritten(bad))
        unknown = next((slot for slot in given_values if self._is_unknown(slot)), None)
        if unknown is not None:
            text = f"it may only have passed it on, as nothing is known of all of {unknown[0]}; if not: {why.text}"
            why = Why(text)
        self._note_origin(_event(kind, call, bad, inputs, why.text), bad, why.is_exact)

    def _is_of_unwritten(self, bad: list[Slot]) -> bool:
        """Return True if all elements that are not finite depend on memory that nothing had written."""
        for slot in bad:
            value = self._rank.value_by_id(slot.value)
            undefined = self._undefined.elements(value) if value.has_data else None
            if undefined is None or self._undefined.is_guessed(value):
                return False
            if not bool((value.tensor().isfinite() | (undefined == DEPENDS)).all()):
                return False
        return bool(bad)

    @cached_property
    def _undefined(self) -> UndefinedMemory:
        return UndefinedMemory(DataFlow(self._rank, "aten"), runs=True)

    def _note_origin(self, event: Event, bad: list[Slot], is_exact: bool) -> None:
        moments = tuple(self._key(slot.value) for slot in bad)
        self._origins.append((event, Origin(event.call_id, moments, is_exact)))

    def _slots(self, values: list[tuple[str, Value]]) -> tuple[list[Slot], bool]:
        """Return what is known of the floating tensors among values, and whether one is undefined memory."""
        found = []
        undefined = False
        for name, value in values:
            contents = self._contents.of(value)
            undefined = undefined or (value.undefined and value.numel > 0)
            if contents is not None:
                found.append(Slot(name, value.id, value.dtype_name, contents))
        return found, undefined

    def _is_unknown(self, slot: tuple[str, Value]) -> bool:
        """Return True if a tensor may hold anything."""
        return self._contents.of(slot[1]) is None and not slot[1].undefined

    def _key(self, value: int) -> Moment:
        return moment_of_record(self._rank.tables.values[value])

    def _note_made(self, key: Moment) -> None:
        self._made.add(key)
        self._storages.add(key[0] or key[1])

    def _note_outside(self, call: Call, given: list[Slot], inputs: list[Slot]) -> None:
        """Note non-finite inputs that no call looked at has made: -inf alone is taken as a mask."""
        strange = []
        for slot in given:
            key = self._key(slot.value)
            if key in self._made:
                continue
            was_bad = (key[0] or key[1]) in self._storages  # and then something else in it was written
            self._note_made(key)
            if is_constant(call, slot) or not (slot.contents.nan or slot.contents.posinf):
                self._masks.add(key)
            elif not was_bad:
                strange.append(slot)
        if strange:
            why = "the values came from outside of what was recorded: a parameter, a buffer, an input, an unseen write"
            if self._rank.config.get("trigger"):
                why += ", or a call before those that the trigger had written"
            self._note_origin(_event("outside", call, strange, inputs, why), strange, is_exact=False)

    def _note_near(self, call: Call, results: list[Slot]) -> None:
        for slot in results:
            greatest = greatest_of(slot.dtype)
            moment = self._key(slot.value)
            if moment in self._seen or greatest is math.inf:
                continue
            self._seen.add(moment)
            low, high = slot.contents.low or 0.0, slot.contents.high or 0.0
            is_fill = low <= -MASK_FILL * greatest and high < self._near * greatest
            size = max(abs(low), abs(high))
            if size >= self._near * greatest and not is_fill:
                share = size / greatest
                self._near_overflow.append(
                    NearOverflow(f"{call.name}.{slot.name}", call.id, call.op, slot.dtype, size, share)
                )


def _innermost(rank: RankDump) -> list[Call]:
    """Return the aten calls, or, where none were recorded, the calls that no other recorded call ran in."""
    kinds = Counter(call.kind for call in rank.calls)
    if kinds["aten"]:
        return [call for call in rank.calls if call.kind == "aten"]
    parents = {call.parent_id for call in rank.calls}
    return [call for call in rank.calls if call.id not in parents]


def _event(kind: Kind, call: Call, bad: list[Slot], inputs: list[Slot], why: str) -> Event:
    forward = call.forward
    return Event(
        kind,
        call.name,
        call.id,
        call.op,
        call.phase,
        call.module,
        call.where,
        "" if forward is None else forward.name,
        tuple(bad),
        tuple(inputs),
        why,
    )


def places(call: Call) -> bool:
    """Return True if a call was given an infinity or NaN as a literal: it puts it there on purpose."""
    return any(_odd(number) for number in numbers_given(call))


def is_constant(call: Call, slot: Slot) -> bool:
    """Return True if the program wrote an infinity as a tensor of its own: ``best = torch.tensor(float("inf"))``."""
    return call.op == LIFT_FRESH and slot.contents.count == 1 and not slot.contents.nan


def adds_masks(inputs: list[Slot], bad: list[Slot]) -> bool:
    """Return True if -inf is what became of values that were filled with a dtype's lowest number to mask."""
    if any(slot.contents.nan or slot.contents.posinf for slot in bad):
        return False
    return any(
        slot.contents.low is not None and slot.contents.low <= -MASK_FILL * greatest_of(slot.dtype) for slot in inputs
    )


def makes_mask_of_flags(call: Call, inputs: list[Slot], bad: list[Slot]) -> bool:
    """Return True if -inf was made of the zeros of a mask of zeros and ones: ``mask.float().log()``.

    That they are flags is seen by how they came about: of what is true or whole, of ones and zeros, by nothing that
    computes. Zeros that were computed, as of a softmax that is saturated, are an error.
    """
    if any(slot.contents.nan or slot.contents.posinf for slot in bad):
        return False
    if not inputs or any((slot.contents.low, slot.contents.high) != (0.0, 1.0) for slot in inputs):
        return False
    return all(_are_flags(value, _DEPTH) for _, value in call.input_values())


def _are_flags(value: Value, depth: int) -> bool:
    if not value.is_floating:
        return True
    found = value.producer
    if found is None or not depth:
        return False
    call = found[0]
    base = read_op_name(call.op).name.rstrip("_")
    if base in _FACTORIES:
        return True
    given = call.input_values()
    return base in _KEEP_FLAGS and bool(given) and all(_are_flags(one, depth - 1) for _, one in given)


def _odd(number: float | complex) -> bool:
    parts = (number.real, number.imag) if isinstance(number, complex) else (number,)
    return not all(math.isfinite(part) for part in parts)
