"""Finds the maker of what a call reads, in one recording.

Theory of operation
    Data flows through memory: a storage at a version. A call *makes* a result if the memory was not among its inputs,
    or if it wrote there. Any other result is a view, which is geometry and computes nothing. So a value has two calls:
    the one that showed it first (a view, or its maker), and the one that *wrote* its memory, which is the same for all
    views. The order in which values are first seen distinguishes a result from a later view of older memory. Ids rise
    in that order, except that a value of joined ranks may have another's id.

    Not part of the flow (`calls_apart`):

    - Transport: what gloo runs inside a collective.
    - Placing: ``set_``, which only places memory from outside (a batch of a DataLoader's worker, the new storage of a
      ``copy.deepcopy``).
    - Pickles: what ``all_gather_object`` and its like send. These sizes and padded bytes hold file names, process ids
      and times. The stack shows them.
    - Buckets: the messages of DDP's ranks about the layout of gradients in buckets.
    - Wrappers: ops on DTensors whose ops on this rank's parts were recorded, and waits, as the result of a collective
      is the collective's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from typing import Any, Final, TypeVar

from ...dump import Call, RankDump, Value
from ...store import records
from ...store.argument_trees import collect
from ...store.op_names import UNSCALE_GRADIENTS, WAIT_TENSOR, is_collective, read_op_name

_PREFIXES: Final = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")

_PLACES_MEMORY: Final = "aten::set_"
_WAITS: Final = frozenset((WAIT_TENSOR, "_c10d_functional::_wrap_tensor_autograd"))
# Files of torch's, and what is in the names of functions there.
_OBJECTS: Final = "torch/distributed/distributed_c10d.py", "object"
_BUCKETS: Final = "torch/nn/parallel/distributed.py", "_pre_forward"  # whose C++ makes them anew
_ATEN: Final = records.CALL_KINDS.index("aten")

Found = TypeVar("Found")
Slots = list[tuple[str, Value]]
Moment = tuple[int, int]  # a storage at a version; (0, -value) of what has none


class DataFlow:
    """The calls of one kind in one recording, and what they read and make.

    It has more than twenty methods, one for each question about makers and readers.
    """

    def __init__(self, rank: RankDump, kind: str, *, wrapped: bool = True) -> None:
        """Follow a recording. With `wrapped`, ops on DTensors count, and not those that they run on local tensors."""
        self.rank = rank
        self._kind = kind
        self._wrapped = wrapped
        self.facts: dict[Any, Any] = {}  # what `once_per_flow` keeps
        self._reads: dict[int, Slots] = {}
        self._by_item: dict[int, dict[int, Slots]] = {}
        self._results: dict[int, Slots] = {}
        self._made_by: dict[int, Call | None] = {}

    def takes_part(self, call: Call) -> bool:
        """Return True if a call is one of the program's that computes or shows something."""
        return call.kind == self._kind and call.id not in self._apart

    def is_apart(self, call: Call) -> bool:
        """Return True if a call of any kind is not part of the flow."""
        return call.id in self._apart

    @cached_property
    def _apart(self) -> frozenset[int]:
        return calls_apart(self.rank, wrappers=not self._wrapped)

    def calls(self) -> Iterator[Call]:
        """Yield the calls of the flow, in execution order."""
        yield from self._calls.values()

    @cached_property
    def _calls(self) -> dict[int, Call]:
        """The calls of the flow, by id."""
        ops = {op.id for op in self.rank.tables.ops.records() if records.CALL_KINDS[op.call_kind] == self._kind}
        return {
            record.id: self.rank.call_at(position)
            for position, record in enumerate(self.rank.tables.calls)
            if record.op in ops and record.id not in self._apart
        }

    def _call(self, number: int) -> Call:
        return self._calls.get(number) or self.rank.call(number)

    @cached_property
    def _makers(self) -> tuple[dict[int, int], dict[Moment, list[tuple[int, str, int]]]]:
        """Ids of the calls that showed a value first, and (call, slot, value) that wrote a moment."""
        shown: dict[int, int] = {}
        written: dict[Moment, list[tuple[int, str, int]]] = {}
        values = self.rank.tables.values
        for call in self.calls():
            given = [number for _, number in call.input_slots()]
            newest = max(given, default=0)
            moments = {(values[number].storage, values[number].version) for number in given}
            for slot, number in _with_parts(call, self.rank):
                record = values[number]
                moment = record.storage, record.version
                if number <= newest:
                    continue
                shown.setdefault(number, call.id)
                if record.storage and moment not in moments:
                    known = written.setdefault(moment, [])
                    if not known or known[0][0] == call.id:
                        known.append((call.id, slot, number))
        return shown, written

    def maker(self, value: Value) -> Call | None:
        """Return the call that showed a value first, or made its contents; None if it is from outside."""
        if value.id in self._made_by:
            return self._made_by[value.id]
        found = self._makers[0].get(value.id)
        if found is None and value.storage:
            written = self._makers[1].get((value.storage, value.version))
            found = written[0][0] if written else None
            if found is not None and any(number == value.id for _, number in self._call(found).input_slots()):
                found = None  # it only viewed memory that was written unseen
        maker = self._made_by[value.id] = None if found is None else self._call(found)
        return maker

    def writer(self, value: Value) -> tuple[Call, str, Value] | None:
        """Return the writer of a value's memory: the call, the slot, and the value as the call left it."""
        if not value.storage:
            found = self.maker(value)
            slot = None if found is None else next((s for s, v in self.results(found) if v.id == value.id), None)
            return None if found is None or slot is None else (found, slot, value)
        written = self._makers[1].get((value.storage, value.version))
        if not written:
            return None
        exact = next((item for item in written if item[2] == value.id), written[0])
        return self._call(exact[0]), exact[1], self.rank.value_by_id(exact[2])

    def last_writer(self, value: Value) -> Call | None:
        """Return the call that wrote a value's memory last, though something unseen did since, or writes it now."""
        versions = [version for storage, version in self._makers[1] if value.storage and storage == value.storage]
        after = min((v for v in versions if v >= value.version), default=None) if value.undefined else None
        found = after if after is not None else max((v for v in versions if v <= value.version), default=None)
        return None if found is None else self._call(self._makers[1][value.storage, found][0][0])

    def reads(self, call: Call) -> Slots:
        """Return (slot, value) of the inputs whose contents matter to a call."""
        found = self._reads.get(call.id)
        if found is None:
            read = call.read_value_ids()
            found = self._reads[call.id] = [(slot, v) for slot, v in call.input_values() if v.id in read]
        return found

    def results(self, call: Call) -> Slots:
        """Return (slot, value) of what a call made, without views of its inputs."""
        found = self._results.get(call.id)
        if found is None:
            given = [value for _, value in call.input_values()]
            ids, moments = {value.id for value in given}, {(v.storage, v.version) for v in given if v.storage}
            made = dict(reversed([(v.id, (slot, v)) for slot, v in call.result_values()]))  # as output, not as written
            found = [
                (slot, value)
                for slot, value in reversed(made.values())
                if value.id not in ids and (value.storage, value.version) not in moments
            ]
            self._results[call.id] = found
        return found

    def is_view(self, call: Call) -> bool:
        """Return True if a call only views its input in another way, or passes it on."""
        return not call.mutated and bool(call.output_values()) and not self.results(call)

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        """Ids of the calls that read what a call made, by its id."""
        found: dict[int, list[int]] = {}
        for call in self.calls():
            if self.is_view(call):
                continue
            made_by = {writer[0].id for _, v in self.reads(call) if (writer := self.writer(v)) is not None}
            for maker in made_by:
                found.setdefault(maker, []).append(call.id)
        return found

    def readers(self, call: Call) -> list[Call]:
        """Return the calls that compute with what a call made, also through views, in execution order."""
        return [self._call(number) for number in self._readers.get(call.id, ())]

    def behind(self, call: Call, slot: str) -> Slots:
        """Return the inputs that one result of a call depends on; for ops on lists, those of the same item."""
        item = item_of(call.op, slot)
        return self.reads(call) if item is None else self._reads_of_items(call)[item]

    def _reads_of_items(self, call: Call) -> dict[int, Slots]:
        """Return the inputs of each item of an op on lists, including those of all items."""
        found = self._by_item.get(call.id)
        if found is None:
            reads = [(item_of(call.op, slot), slot, value) for slot, value in self.reads(call)]
            common = [(slot, value) for item, slot, value in reads if item is None]
            found = self._by_item[call.id] = defaultdict(common.copy)
            for item, slot, value in reads:
                if item is not None:
                    found[item].append((slot, value))
        return found

    def before(self, call: Call, value: Value) -> list[Value]:
        """Return the memory before a call wrote to a part of it: what it wrote to, and what a value shows there."""
        found = {v.id: v for _, v in call.input_values() if v.storage == value.storage}
        older = next(self.earlier(value), None)
        if older is not None:
            found[older.id] = older
        return list(found.values())

    def earlier(self, value: Value) -> Iterator[Value]:
        """Yield the earlier values of the same storage with the same geometry, the latest first."""
        seen = self._seen_as.get(value.record.place, ())
        yield from (self.rank.value_by_id(number) for number in reversed(seen) if number < value.id)

    def of_moment(self, value: Value) -> list[Value]:
        """Return the other values of the same storage at the same version, the largest first."""
        found = [number for number in self._by_moment.get((value.storage, value.version), ()) if number != value.id]
        return sorted(map(self.rank.value_by_id, found), key=lambda v: -v.numel)

    @cached_property
    def _by_moment(self) -> dict[Moment, list[int]]:
        found: dict[Moment, list[int]] = {}
        for record in self.rank.tables.values.records():
            if record.storage:
                found.setdefault((record.storage, record.version), []).append(record.id)
        return found

    @cached_property
    def _seen_as(self) -> dict[tuple[object, ...], list[int]]:
        """Ids of the values of each place: a storage seen with a geometry."""
        found: dict[tuple[object, ...], list[int]] = {}
        for record in self.rank.tables.values.records():
            if record.storage:
                found.setdefault(record.place, []).append(record.id)
        return found


def once_per_flow(find: Callable[[DataFlow], Found]) -> Callable[[DataFlow], Found]:
    """Return a function whose result is computed once per recording; callers must not change it."""

    @wraps(find)
    def kept(flow: DataFlow) -> Found:
        if find not in flow.facts:
            flow.facts[find] = find(flow)
        found: Found = flow.facts[find]
        return found

    return kept


def _with_parts(call: Call, rank: RankDump) -> Iterator[tuple[str, int]]:
    """Yield (slot, value id) of the results of a call, the parts of sparse ones included."""
    values = rank.tables.values
    for slot, number in (*call.output_slots(), *call.written_slots()):
        yield slot, number
        parts = (values[number].extra or {}).get("parts") or {}
        yield from ((f"{slot}.{name}", part) for name, part in parts.items() if isinstance(part, int))


def made_by_both(flows: tuple[DataFlow, DataFlow], target: Call, baseline: Call) -> dict[str, tuple[Value, Value]]:
    """Return what both calls made, by slot."""
    theirs = dict(baseline.result_values())
    return {slot: (v, theirs[slot]) for slot, v in flows[0].results(target) if slot in theirs}


def read_by_both(flows: tuple[DataFlow, DataFlow], target: Call, baseline: Call) -> dict[str, tuple[Value, Value]]:
    """Return what both calls read, by slot."""
    theirs = dict(flows[1].reads(baseline))
    return {slot: (v, theirs[slot]) for slot, v in flows[0].reads(target) if slot in theirs}


def calls_apart(rank: RankDump, *, wrappers: bool) -> frozenset[int]:
    """Return the ids of calls that take no part, those on DTensors included if `wrappers` is True."""
    tables = rank.tables
    found: set[int] = set()
    aten = {op.id for op in tables.ops.records() if op.call_kind == _ATEN}
    collectives = {op.id for op in tables.ops.records() if op.id in aten and is_collective(op.op)}
    placing = {op.id for op in tables.ops.records() if read_op_name(op.op).without_overload == _PLACES_MEMORY}
    pickling = _Pickling(rank)
    buckets = _stacks_of_buckets(rank)
    inside = {call.id for call in tables.calls if call.op in collectives}
    for call in tables.calls:
        if call.parent in inside:
            inside.add(call.id)
            found.add(call.id)
        elif call.op in placing or call.stack in buckets or pickling.runs(call.stack):
            found.add(call.id)
    found |= _handing_on(rank, aten - collectives)
    if wrappers:
        found |= _waits(rank, collectives)
        found |= _wrapping(rank, aten, {call.parent for call in tables.calls if call.op in aten})
    return frozenset(found)


def _handing_on(rank: RankDump, aten: set[int]) -> set[int]:
    """Return the ids of ops that return results of inner ops: those on a tensor that waits for a collective."""
    made: dict[int, list[int]] = {}
    ops = {call.id for call in rank.tables.calls if call.op in aten}
    for call in rank.tables.calls:
        if call.parent in ops and call.id in ops:
            collect(call.outputs, made.setdefault(call.parent, []))
    found: set[int] = set()
    for call in rank.tables.calls if made else ():
        if call.id in made:
            ids: list[int] = []
            collect(call.outputs, ids)
            if ids and set(ids) <= set(made[call.id]):
                found.add(call.id)
    return found


def _waits(rank: RankDump, collectives: set[int]) -> set[int]:
    """Return the ids of waits for collectives of this step: what they return is what the collective brought."""
    tables = rank.tables
    waits = {op.id for op in tables.ops.records() if op.op in _WAITS}
    brought: list[int] = []
    for call in tables.calls if waits else ():
        if call.op in collectives and call.op not in waits:
            collect(call.outputs, brought)
    known = {moment_of_record(tables.values[number]) for number in brought}
    found: set[int] = set()
    for call in tables.calls if waits else ():
        ids: list[int] = []
        if call.op in waits:
            collect(call.outputs, ids)
            is_wrapper = tables.op(call.op).op != WAIT_TENSOR  # other calls may get a view of what was brought
            if is_wrapper or all(moment_of_record(tables.values[number]) in known for number in ids):
                found.add(call.id)
    return found


def moment_of_record(value: records.Value) -> Moment:
    """Return the storage of a value and its version; for a value without a storage, something unique."""
    return (value.storage, value.version) if value.storage else (0, -value.id)


def _wrapping(rank: RankDump, aten: set[int], parents: set[int]) -> set[int]:
    """Return the ids of ops on tensors that are made of local ones, if they ran ops on these."""
    local = {value.id for value in rank.tables.values.records() if "local" in (value.extra or {})}
    found: set[int] = set()
    for call in rank.tables.calls if local else ():
        if call.op in aten and call.id in parents:
            ids: list[int] = []
            for tree in (*call.args, *(call.kwargs or {}).values(), call.outputs):
                collect(tree, ids)
            if not local.isdisjoint(ids):
                found.add(call.id)
    return found


def _stacks_of_buckets(rank: RankDump) -> set[int]:
    """Return the stacks whose innermost frame is where DDP rebuilds its buckets."""
    frames = _frames_in(rank, *_BUCKETS)
    return {stack.id for stack in rank.tables.stacks.records() if stack.frame in frames} if frames else set()


def _frames_in(rank: RankDump, file: str, function: str) -> set[int]:
    """Return the frames in a file of torch's, of functions with `function` in their names."""
    text = rank.tables.text
    return {
        frame.id
        for frame in rank.tables.frames.records()
        if function in text(frame.function) and text(frame.file).replace("\\", "/").endswith(file)
    }


class _Pickling:
    """Finds by its stack whether a call serves a collective of Python objects."""

    def __init__(self, rank: RankDump) -> None:
        self._stacks = rank.tables.stacks
        self._known: dict[int, bool] = {0: False}
        self._frames = _frames_in(rank, *_OBJECTS)

    def runs(self, stack: int) -> bool:
        """Return True if a function for objects is among the frames of a stack."""
        waiting = []
        while self._frames and stack not in self._known:
            waiting.append(stack)
            link = self._stacks.get(stack)
            if link is None or link.frame in self._frames:
                self._known[stack] = link is not None
                break
            stack = link.parent
        found = self._known.get(stack, False)
        for number in waiting:
            self._known[number] = found
        return found


def works_by_item(op: str) -> bool:
    """Return True if an op treats the items of its lists one by one."""
    return op.startswith(UNSCALE_GRADIENTS) or read_op_name(op).name.startswith(_PREFIXES)


def item_of(op: str, slot: str) -> int | None:
    """Return the number of the item that a slot (``mutated.self.3``, ``input.1.3``, ``output.3``) is, or belongs to.

    Return None if the op does not work by item, and for slots that all items share.
    """
    if not works_by_item(op):
        return None
    parts = slot.split(".")
    least = 2 if parts[0] == "output" else 3
    return int(parts[-1]) if len(parts) >= least and parts[-1].isdigit() else None
