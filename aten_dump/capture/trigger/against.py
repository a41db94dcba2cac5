"""The trigger of a run that is held against a golden: the first call that is not as it was there.

Theory of operation
    Calls are numbered as they begin, so the call of a number is the same in both as long as nothing differs; an extra
    or a missing call shows as another op under its number. Values are paired by their place in the arguments and
    results of such a pair. Inputs are looked at before results: a call whose inputs are those of the golden and whose
    result is not is where the runs part. Structure (op, module, shape, dtype, literals) is compared as well as hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...config import DumpConfig
from ...store import records as r
from ...store.argument_trees import items
from ...store.op_names import read_inputs, reads_no_elements
from ..values.encoded_trees import values_in
from .conditions import Cause, Known, workspaces_of
from .golden import GoldenStep, golden_step
from .held_call import HeldCall
from .held_step import HeldStep

_NO_CONTENTS: Final = r.UNDEFINED | r.OPAQUE
_OF_THE_MACHINE: Final = (r.TREE_DEVICE, r.TREE_GENERATOR, r.TREE_NODE)
_BRANCHES: Final = (r.TREE_LIST, r.TREE_TUPLE, r.TREE_DICT)
Unread = Callable[[], set[int]]  # this run's values whose contents mean nothing to a call
_FROM_OUTSIDE: Final = ", and no call before it differs: it was made before this step, or written unseen"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call of a run that is not as the golden has it; `str` of it says all in a line."""

    step: int
    rank: int
    call: int  # `Call.id`
    name: str  # of the call, as `rank[name]` takes it
    op: str
    module: str
    source: str  # "file:line in function"; empty without stacks
    slot: str  # "output.0"; empty where the call itself is another
    text: str  # what differs
    against: str

    def __str__(self) -> str:
        where = "".join(f", {text}" for text in (self.module and f"module {self.module}", self.source) if text)
        return f"first difference from {self.against}: {self.name} ({self.op}{where}): {self.text}"


class Against:
    """Fires once, at the first call that differs from the golden's."""

    reads_registers = False

    def __init__(self, config: DumpConfig, rank: int) -> None:
        assert config.against is not None
        self._config = config
        self._root = Path(config.against)
        self._rank = rank
        self._held: HeldStep
        self._golden: GoldenStep | None = None  # None: there is nothing to compare with, or any more
        self._equal: set[tuple[int, int]] = set()  # values of both that were found equal
        self._last: HeldCall | None = None
        self.difference: Difference | None = None

    def new_extremes(self) -> None:
        return None

    def begin_step(self) -> None:
        pass

    def begin(self, step: HeldStep) -> str:
        """Begin a step; return why it is compared with nothing, if that is so."""
        self._held, self._last, self._golden = step, None, None
        self._equal.clear()
        if self.difference is not None:
            return ""
        found = golden_step(self._root, step.number, self._rank, self._config)
        if isinstance(found, str):
            return found
        self._golden = found
        return ""

    def awaits(self, call: HeldCall, known: Known) -> bool:
        golden, values = self._golden, self._held.values
        if golden is None or all(values.digest(value) is not None for value in call.values):
            return False
        theirs = golden.call(call.record.id)
        if theirs is None:
            return False
        # Only hashes that the golden has are waited for: of other values none may ever come.
        return any(
            (ours, value) not in self._equal
            and values.digest(ours) is None
            and not values.flags(ours) & _NO_CONTENTS
            and golden.digest(value) is not None
            for ours, value in zip(call.values, HeldCall(0, theirs).values, strict=False)
        )

    def __call__(self, call: HeldCall, op: r.Op, known: Known) -> Cause | None:
        golden = self._golden
        if golden is None:
            return None
        if self._last is None or call.record.id > self._last.record.id:
            self._last = call
        found = self._difference(golden, call, op)
        return None if found is None else self._cause(call.record, op, *found)

    def at_the_end(self) -> tuple[HeldCall, Cause] | None:
        """Return the last call of a step after which the golden goes on."""
        if self._golden is None or self._last is None:
            return None
        record = self._last.record
        count, first = self._golden.calls_after(record.id)
        if first is None:
            return None
        text = f"the step ends after it, {self._root} has {count} more calls, the first {_name(self._golden, first)}"
        return self._last, self._cause(record, self._held.tables.op(record.op), "", text)

    def _cause(self, call: r.Call, op: r.Op, slot: str, text: str) -> Cause:
        self._golden = None
        tables = self._held.tables
        place = tables.text(call.module), tables.source(call.stack)
        self.difference = Difference(
            self._held.number, self._rank, call.id, _rendered(op, call), op.op, *place, slot, text, str(self._root)
        )
        return Cause(str(self.difference))

    def _difference(self, golden: GoldenStep, held: HeldCall, op: r.Op) -> tuple[str, str] | None:
        call = held.record
        theirs = golden.call(call.id)
        if theirs is None:
            _, following = golden.calls_after(call.id)
            goes_on = "its step has ended" if following is None else f"it goes on with {_name(golden, following)}"
            return "", f"{self._root} has no such call here: {goes_on}"
        other = golden.op(theirs.op)
        module, there = self._held.tables.text(call.module), golden.text(theirs.module)
        if (other.op, other.call_kind, theirs.phase, there) != (op.op, op.call_kind, call.phase, module):
            within = f" in module {there}" if there != module else ""
            return "", f"{self._root} has {_name(golden, theirs)} ({other.op}){within} here"
        if bool(call.error) != bool(theirs.error):
            return "", f"it raised {call.error}" if call.error else f"in {self._root} it raised {theirs.error}"
        pairs = _Pairs(golden, self._held, self._equal, lambda: self._unread(held, op))
        if _trees(call) == _trees(theirs) and all(pairs.are_equal(value, value) for value in held.values):
            return None  # as a rule: also the numbers of values are the same in both
        found = next(
            (found for slot, *two in _slots(call, theirs) if (found := pairs.difference(two[0], two[1], slot))), None
        )
        if found is None:
            return None
        slot, text = found
        place = slot.removeprefix("input.")
        named = op.arguments[int(place)] if place.isdecimal() and int(place) < len(op.arguments) else ""
        return slot, f"{slot} ({named}){text}" if named else f"{slot}{text}"

    def _unread(self, held: HeldCall, op: r.Op) -> set[int]:
        """Return the values whose contents mean nothing to a call: memory that it only writes to, and workspaces."""
        call = held.record
        if op.call_kind and self._config.level in ("aten", "mix"):
            return set(held.inputs)  # the aten ops in it say which of them are read
        read = () if reads_no_elements(op.op) else values_in(read_inputs(op, call, self._rank))
        return set(held.inputs).difference(read).union(workspaces_of(call, op))


class _Pairs:
    """Compares trees of arguments and results, and the values in them."""

    def __init__(self, golden: GoldenStep, held: HeldStep, equal: set[tuple[int, int]], unread: Unread) -> None:
        self._unread = unread
        self._golden = golden
        self._texts = held.tables
        self._values = held.values
        self._equal = equal

    def difference(self, ours: r.Tree, theirs: r.Tree, slot: str) -> tuple[str, str] | None:
        """Return the slot of the first difference of two trees, and what it is."""
        if type(ours) is not tuple or type(theirs) is not tuple or ours[0] != theirs[0]:
            same = ours == theirs or (ours != ours and theirs != theirs)
            return None if same else (slot, f" is {_shown(ours)}, there {_shown(theirs)}")
        tag = ours[0]
        if tag == r.TREE_VALUE:
            text = None if self.are_equal(ours[1], theirs[1]) else self._of_values(ours[1], theirs[1])
            outside = _FROM_OUTSIDE if slot.startswith("input") else ""
            return None if text is None else (slot, f" {text}{outside}")
        if tag in _BRANCHES:
            return self._branches(ours, theirs, slot)
        if tag in _OF_THE_MACHINE or ours == theirs:
            return None
        return slot, f" is {_shown(ours)}, there {_shown(theirs)}"

    def _branches(self, ours: r.Tree, theirs: r.Tree, slot: str) -> tuple[str, str] | None:
        mine, other = list(items(ours) or ()), list(items(theirs) or ())
        if [name for name, _ in mine] != [name for name, _ in other]:
            return slot, f" has {len(mine)} items, there {len(other)}"
        for (name, one), (_, another) in zip(mine, other, strict=True):
            found = self.difference(one, another, f"{slot}.{name}")
            if found is not None:
                return found
        return None

    def are_equal(self, ours: int, theirs: int) -> bool:
        """Return True if two values have the same type, and the same hash where both have one."""
        pair = ours, theirs
        if pair in self._equal:
            return True
        if self._of_values(ours, theirs) is not None:
            return False
        digest = self._values.digest(ours)
        if digest is not None and digest == self._golden.digest(theirs):
            self._equal.add(pair)
        return True

    def _of_values(self, ours: int, theirs: int) -> str | None:
        held, other = self._values.get(ours), self._golden.value(theirs)
        if held is None or other is None:
            return None
        one = held.record
        types = self._texts.text(one.dtype), self._golden.text(other.dtype)
        if types[0] != types[1] or [*one.shape] != [*other.shape]:
            return f"is {types[0]}{[*one.shape]}, there {types[1]}{[*other.shape]}"
        digests = self._values.digest(ours), self._golden.digest(theirs)
        if None in digests or digests[0] == digests[1] or (one.flags | other.flags) & _NO_CONTENTS:
            return None
        return None if ours in self._unread() else "has other bits"


def _trees(call: r.Call) -> tuple[object, ...]:
    return tuple(call.args), call.kwargs, call.outputs, call.written and tuple(call.written)


def _slots(ours: r.Call, theirs: r.Call) -> Iterator[tuple[str, r.Tree, r.Tree]]:
    """Yield the named trees of two calls, inputs first."""
    yield "input", (r.TREE_LIST, *ours.args), (r.TREE_LIST, *theirs.args)
    yield "input", _of_keywords(ours), _of_keywords(theirs)
    yield "mutated", (r.TREE_DICT, *(ours.written or ())), (r.TREE_DICT, *(theirs.written or ()))
    is_tree = items(ours.outputs) is not None or items(theirs.outputs) is not None
    yield "output" if is_tree else "output.0", ours.outputs, theirs.outputs


def _of_keywords(call: r.Call) -> r.Tree:
    return (r.TREE_DICT, *(part for pair in (call.kwargs or {}).items() for part in pair))


def _shown(tree: r.Tree) -> str:
    if type(tree) is tuple:
        return "a tensor" if tree[0] == r.TREE_VALUE else f"{tree[1:]!r:.80}"
    return f"{tree!r:.80}"


def _rendered(op: r.Op, call: r.Call) -> str:
    name = f"{op.prefix}.{op.api}.{call.n}.{r.PHASES[call.phase]}"
    return f"{name}.{call.repeat}" if call.repeat else name


def _name(golden: GoldenStep, call: r.Call) -> str:
    return _rendered(golden.op(call.op), call)
