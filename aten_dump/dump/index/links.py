"""Links: who made and who read a value, who ran in whom, who belongs to whom; each index is built at first use.

Links hold positions and ids only; slots are found again by walking the one call that is asked about.

Theory of operation
    A million names would take seconds and a hundred megabytes. So calls are sorted by what their names are rendered
    from: prefix and api, n, phase, repeat. A name is looked up under all that it may have been rendered from: there are
    two readings at most, as prefix and api may hold dots and numbers, and nothing but a known one is found. A module's
    call is also found by the name that msprobe gives it, ``Module.fc1.Linear.forward.0``.

    Capture only labels recomputed calls. Here they are matched by data flow: a recomputed call has the same op and the
    same argument trees as its original, once values made by recomputed calls are replaced by those of their
    originals. What is equal (dropout twice on one input, ``torch.rand``) is taken in order, never before the original
    matched last in the same region: the calls that one autograd node ran again. The first call of a region has
    no such bound; of equal candidates it takes the one whose following ops agree longest, and of those the last before
    the forward call whose backward needed the region.

    Two things break exact equality. A tensor written meanwhile (running statistics of a batch norm) is another value of
    the same storage: the second table has storages and geometries instead of values. Inputs that were copied (saved on
    the host) or literals that differ (a function that is not deterministic) leave the op and the shapes: the third
    table, in which every value with a known original must still agree. What is found in none has no original.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...store import records
from ...store.argument_trees import input_ids, result_ids, with_leaves
from ...store.index_reader import paused_gc
from .tables import Tables
from .typed_rows import Groups

_FORWARD: Final = records.PHASES.index("forward")
_RECOMPUTE: Final = records.PHASES.index("recompute")
_MODULE: Final = records.CALL_KINDS.index("module")
_BACKWARD: Final = records.PHASES.index("backward")
_FOLLOWING: Final = 64  # calls compared to choose between equal candidates
_LEAST_AGREEMENT: Final = 3  # calls that must follow alike where no input decides
_TRIED: Final = 256  # candidates of the third table that are looked at

Key = tuple[Any, ...]

_MSPROBE_PHASES: Final = {  # it knows two
    "forward": [records.PHASES.index(phase) for phase in ("forward", "recompute", "optimizer")],
    "backward": [records.PHASES.index("backward")],
}
_PHASES: Final = {phase: code for code, phase in enumerate(records.PHASES)}

# Kinds from the innermost outwards: of all calls that return a value, the innermost made it.
_INNERMOST_FIRST: Final = {"aten": 0, "node": 1, "api": 2, "module": 3}


class Links:
    """The relations between the calls and values of one index."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @cached_property
    def names(self) -> CallNames:
        """Position of a call by its name."""
        return CallNames(self._tables)

    @cached_property
    def children(self) -> Groups:
        """Positions of the calls that ran in a call, by its id; those of the roots under 0.

        A call whose parent was cut short before it was recorded counts as a root.
        """
        calls = self._tables.calls
        parents = calls.column("parent")
        return Groups(np.where(np.isin(parents, calls.column("id")), parents, 0))

    @cached_property
    def belonging(self) -> Groups:
        """Positions of the backward and recomputed calls of a forward call, by its id."""
        calls = self._tables.calls
        forward = calls.column("forward").copy()
        for id, original in self.originals.items():
            at = calls.places[id]
            forward[at] = forward[at] or original
        return Groups(forward)

    @cached_property
    def originals(self) -> dict[int, int]:
        """Id of the call that a recomputed call runs again, by its id."""
        return originals_of(self._tables)

    @property
    def producers(self) -> dict[int, int]:
        """Position of the call that made a value, by value id."""
        return self._uses[0]

    @property
    def consumers(self) -> dict[int, list[int]]:
        """Positions of the calls that read a value, by value id."""
        return self._uses[1]

    @cached_property
    def _uses(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Producers and consumers, in one pass over the argument trees.

        The producer is the innermost, then earliest call that has the value among its outputs or written
        arguments and not among its inputs. A value that an op read before any call made it came from outside: a
        later op that returns it (a parameter transposed twice) only passed it on.
        """
        depths = {op.id: _INNERMOST_FIRST[records.CALL_KINDS[op.call_kind]] for op in self._tables.ops.records()}
        producers: dict[int, int] = {}
        producer_depths: dict[int, int] = {}
        consumers: dict[int, list[int]] = {}
        from_outside: set[int] = set()
        with paused_gc():
            for position, call in enumerate(self._tables.calls):
                read = dict.fromkeys(input_ids(call))
                for value in read:
                    consumers.setdefault(value, []).append(position)
                depth = depths.get(call.op, len(_INNERMOST_FIRST))
                if depth == 0:  # only ops run at one moment; what others read may have come while they ran
                    from_outside.update(value for value in read if value not in producers)
                for value in result_ids(call):
                    if value in read or value in from_outside:
                        continue
                    if depth < producer_depths.get(value, 99):
                        producers[value] = position
                        producer_depths[value] = depth
        return producers, consumers

    def first_value(self, storage: int, value: int) -> int:
        """Return the value that a storage was first seen as; `value` where it is unknown."""
        positions = self._by_storage.get(storage, ()) if storage else ()
        return min((self._tables.values.rows[position][1] for position in positions), default=value)

    @cached_property
    def _by_storage(self) -> Groups:
        """Positions of the values of a storage, by its id."""
        return Groups(self._tables.values.rows.column(2))


class CallNames(Mapping[str, int]):
    """Position of a call by its name; of equal names the last counts."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        calls = tables.calls
        ops, places = np.unique(calls.column("op"), return_inverse=True)
        heads = [tables.call_head(op) for op in ops.tolist()]
        self._heads = {head: number for number, head in enumerate(dict.fromkeys(heads))}
        head = np.array([self._heads[head] for head in heads], np.int64)[places]
        columns = [head, *(calls.column(name) for name in ("n", "phase", "repeat"))]
        self._order = np.lexsort(columns[::-1])
        self._columns = [column[self._order] for column in columns]

    def __getitem__(self, name: str) -> int:
        for kind, head, *numbers in _readings(name) if isinstance(name, str) else ():
            start, stop = 0, len(self._order)
            for column, wanted in zip(self._columns, (self._heads.get(head, -1), *numbers), strict=True):
                part = column[start:stop]
                start, stop = (start + int(part.searchsorted(wanted, side)) for side in ("left", "right"))
            if start < stop:
                position = int(self._order[stop - 1])
                if not kind or self._ends_in(position, kind):
                    return position
        raise KeyError(name)

    def _ends_in(self, position: int, kind: str) -> bool:
        """Return True if what a call calls has this last name, as a module has that of its class."""
        record = self._tables.ops.get(int(self._tables.calls.column("op")[position]))
        return record is not None and record.op.rpartition(".")[2] == kind

    def __iter__(self) -> Iterator[str]:
        calls = self._tables.calls
        return map(self._tables.render, *(calls.column(name).tolist() for name in ("op", "n", "phase", "repeat")))

    def __len__(self) -> int:
        return len(self._order)


def _readings(name: str) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield what a name may have been rendered from: class in msprobe's names, prefix and api, n, phase, repeat."""
    shorter, _, last = name.rpartition(".")
    for text, repeat in ((name, "0"), (shorter, last if last != "0" else "")):
        text, _, phase = text.rpartition(".")
        head, _, n = text.rpartition(".")
        if phase in _PHASES and _is_number(n) and _is_number(repeat):
            yield "", head, int(n), _PHASES[phase], int(repeat)
    head, _, phase = shorter.rpartition(".")
    head, _, kind = head.rpartition(".")
    if head.startswith("Module.") and _is_number(last):
        for code in _MSPROBE_PHASES.get(phase, ()):
            yield kind, head, int(last), code, 0


def _is_number(text: str) -> bool:
    """Return True if a text is an integer as names have it: of 64 bits, without leading zeros."""
    return text.isdecimal() and len(text) < 19 and text == str(int(text))


def originals_of(tables: Tables) -> dict[int, int]:
    """Return the id of the original of each recomputed call, by id; a call without one is left out."""
    again = np.flatnonzero(tables.calls.column("phase") == _RECOMPUTE).tolist()
    if not again:
        return {}
    with paused_gc():
        return _Matcher(tables).match([tables.calls[position] for position in again])


class _Originals:
    """The forward calls of one index, by what they have in common with a recomputed call."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.calls = [call for call in tables.calls if call.phase == _FORWARD]
        self.by_arguments: dict[Key, list[int]] = {}
        self.by_storage: dict[Key, list[int]] = {}
        self.by_shape: dict[Key, list[int]] = {}
        self.ids = [call.id for call in self.calls]
        self.values = {value for call in self.calls for value in (*input_ids(call), *result_ids(call))}
        for place, call in enumerate(self.calls):
            for table, token in (
                (self.by_arguments, int),
                (self.by_storage, self.place_of),
                (self.by_shape, self.shape_of),
            ):
                table.setdefault(key_of(call, token, table is not self.by_shape), []).append(place)

    def place_of(self, value: int) -> Key:
        """Return where a value lies, whatever is written there."""
        record = self._tables.values.get(value)
        return record.place if record is not None and record.storage else (value,)

    def shape_of(self, value: int) -> Key:
        """Return what a copy of a value would have in common with it."""
        record = self._tables.values.get(value)
        return (value,) if record is None else (record.dtype, tuple(record.shape))


class _Region:
    """Calls that one autograd node runs again, one after the other."""

    __slots__ = ("calls", "last", "needed_by", "past", "used")

    def __init__(self, needed_by: records.Call | None, past: int) -> None:
        self.calls: list[records.Call] = []
        self.needed_by = needed_by  # the forward call whose backward needs the region; None unknown
        self.past = past  # originals are at places before this: they ran before the region
        self.last = -1  # place of the original matched last
        self.used: set[int] = set()


class _Matcher:
    """One pass over the recomputed calls, in execution order."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._originals = _Originals(tables)
        self._values: dict[int, int] = {}  # value made again -> value of the original

    def match(self, again: list[records.Call]) -> dict[int, int]:
        """Return original ids by id of the recomputed call."""
        found: dict[int, int] = {}
        for region in self._regions(again):
            for number, call in enumerate(region.calls):
                place = self._place(region, number, call)
                if place is not None:
                    original = self._originals.calls[place]
                    found[call.id] = original.id
                    if not set(result_ids(call)) <= set(input_ids(call)):  # detach() of one value runs anywhere
                        region.last = place
                    region.used.add(place)
                    self._learn(call, original)
        return found

    def _regions(self, again: list[records.Call]) -> list[_Region]:
        """Cut the recomputed calls where the node they run under changes, or where other calls lie between."""
        regions: list[_Region] = []
        node_before, position_before = -1, -2
        for call in again:
            node = self._backward_above(call)
            position = self._tables.positions[call.id]
            if position != position_before + 1 or (node.id if node else 0) != node_before:
                regions.append(self._new_region(call, node))
            regions[-1].calls.append(call)
            node_before, position_before = node.id if node else 0, position
        return regions

    def _new_region(self, call: records.Call, node: records.Call | None) -> _Region:
        position = self._tables.positions.get(node.forward) if node is not None else None
        needed_by = None if position is None else self._tables.calls[position]
        return _Region(needed_by, bisect_left(self._originals.ids, call.id))

    def _backward_above(self, call: records.Call) -> records.Call | None:
        """Return the innermost backward call that a call ran in: its forward is what needs the region."""
        parent: records.Call | None = call
        while parent is not None:
            position = self._tables.positions.get(parent.parent)
            parent = None if position is None else self._tables.calls[position]
            if parent is not None and parent.phase == _BACKWARD and parent.forward:
                return parent
        return None

    def _mapped(self, value: int) -> int:
        return self._values.get(value, value)

    def _place(self, region: _Region, number: int, call: records.Call) -> int | None:
        known = self._originals
        exact = known.by_arguments.get(key_of(call, self._mapped))
        place = self._choose(exact, region, number)
        if place is None:
            stored = known.by_storage.get(key_of(call, lambda value: known.place_of(self._mapped(value))))
            place = self._choose(stored, region, number)
        if place is None:
            alike = known.by_shape.get(key_of(call, known.shape_of, literals=False), [])
            first = bisect_right(alike, region.last) if region.needed_by is not None else 0
            alike = [p for p in alike[first : first + _TRIED] if self._may_be(call, p, region, number)]
            place = self._choose(alike, region, number)
        return place

    def _may_be(self, call: records.Call, place: int, region: _Region, number: int) -> bool:
        """Return True if the inputs of `call` that the originals know are those of the original at `place`.

        Where they know none, what follows must agree.
        """
        inputs = [self._mapped(new) for new in input_ids(call)]
        pairs = list(zip(inputs, input_ids(self._originals.calls[place]), strict=False))
        pairs = [(new, old) for new, old in pairs if new in self._originals.values]
        place_of = self._originals.place_of
        if any(place_of(new) != place_of(old) for new, old in pairs):
            return False
        is_module = self._tables.op(call.op).call_kind == _MODULE  # its op is its path: no other is alike
        least = 1 if is_module else min(_LEAST_AGREEMENT, len(region.calls) - number)
        return bool(pairs) or (bool(inputs) and self._agreement(place, region, number) >= least)

    def _choose(self, places: list[int] | None, region: _Region, number: int) -> int | None:
        """Choose one of equal candidates; `places` are in execution order."""
        places = places[: bisect_left(places, region.past)] if places else []
        if region.last >= 0:
            later = bisect_right(places, region.last)
            found = next((p for p in places[later : later + _TRIED] if p not in region.used), None)
            if found is not None or region.needed_by is not None:
                return found  # else several regions may look like one: backward calls were not selected
            places = [p for p in places[-_TRIED:] if p not in region.used]
        if len(places) < 2:
            return places[0] if places else None
        return max(places, key=lambda place: self._rank(place, region, number))

    def _rank(self, place: int, region: _Region, number: int) -> tuple[bool, bool, int, int]:
        """Rank a candidate: it ran in or before what needs the region, ops after it agree, it is late."""
        within = before = True
        if region.needed_by is not None:
            start, end = region.needed_by.start_ns, region.needed_by.start_ns + region.needed_by.duration_ns
            within = start <= self._originals.calls[place].start_ns <= end
            before = self._originals.calls[place].id <= region.needed_by.id
        return within, before, self._agreement(place, region, number), place

    def _agreement(self, place: int, region: _Region, number: int) -> int:
        """Count how many calls from here on have the ops of the originals from `place` on."""
        following = zip(
            region.calls[number : number + _FOLLOWING], self._originals.calls[place : place + _FOLLOWING], strict=False
        )
        agree = 0
        for new, old in following:
            if new.op != old.op:
                break
            agree += 1
        return agree

    def _learn(self, call: records.Call, original: records.Call) -> None:
        """Tie what a recomputed call made to what its original made; the innermost call, which ends first, is right."""
        new, old = result_ids(call), result_ids(original)
        if len(new) == len(old):
            self._values.update((n, o) for n, o in zip(new, old, strict=True) if n != o)


def key_of(call: records.Call, token: Callable[[int], Any], literals: bool = True) -> Key:
    """Return a call's op and arguments as a key, with `token(value id)` for values."""
    arguments = tuple(_key_of_tree(tree, token, literals) for tree in call.args)
    if not call.kwargs:
        return call.op, arguments
    return call.op, arguments, tuple((k, _key_of_tree(v, token, literals)) for k, v in sorted(call.kwargs.items()))


def _key_of_tree(tree: Any, token: Callable[[int], Any], literals: bool) -> Any:
    def leaf(tree: Any) -> Any:
        if type(tree) is not tuple:
            if not literals:
                return None
            return "nan" if tree != tree else tree
        if tree[0] == records.TREE_VALUE:
            return records.TREE_VALUE, token(tree[1])
        return tree if literals else tree[0]

    return with_leaves(tree, leaf)
