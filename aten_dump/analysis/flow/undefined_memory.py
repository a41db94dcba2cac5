"""Which elements of recorded tensors are undefined: they depend on memory that nothing had written.

Theory of operation
    What comes of ``torch.empty`` is filled piece by piece: through slices, masks, indices. A dump says that an op wrote
    to a tensor, not to which elements. So each call that reads such memory is run with other bytes wherever nothing was
    written (`rerun/undefined_elements.py`). What comes out otherwise is kept for each storage, byte by byte, as it
    stands when a call runs: views see through it, and what overwrites it ends it, as in the program. A call that cannot
    be run makes its results undefined by a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ...dump import Call, Value
from ...errors import AtenDumpError
from ...store import records
from ...store.op_names import WAIT_TENSOR
from ..rerun.allowed_ops import registered_op
from ..rerun.shared_memory import Moment, extent, moment_of, storage_bytes
from ..rerun.undefined_elements import DEPENDS, undefined_elements
from .data_flow import DataFlow

_ALL: Final = torch.tensor(DEPENDS, dtype=torch.uint8)
_NONE: Final = torch.zeros_like(_ALL)
_MOST_BYTES: Final = 512 << 20  # of all storages that are followed byte by byte at a time


@dataclass(slots=True)
class _Unwritten:
    """Which bytes of a storage at a version are undefined: `undefined_elements` for bytes."""

    version: int
    bytes: NDArray[np.uint8] | None  # None: it is not known which
    guessed: bool = False  # a call that made some of it could not be run

    def grown(self, value: Value) -> NDArray[np.uint8]:
        """Return the bytes, as many as a value reaches to."""
        assert self.bytes is not None
        if len(self.bytes) < _size(value):
            self.bytes = np.pad(self.bytes, (0, _size(value) - len(self.bytes)))
        return self.bytes


class UndefinedMemory:
    """Finds the undefined elements of the values of one recording; with `runs` False it guesses and reads no tensor."""

    def __init__(self, flow: DataFlow, *, runs: bool) -> None:
        self._flow = flow
        self._runs = runs
        self._memory: dict[int, _Unwritten] = {}  # by storage, while calls are followed
        self._guessed: set[int] = set()  # ids of values
        self._in_part: dict[int, torch.Tensor] = {}  # of values that count as undefined: what of them is, by id

    def elements(self, value: Value) -> torch.Tensor | None:
        """Return which elements of a value are undefined, as `undefined_elements` does; None: all are defined.

        None too for a value that is undefined as a whole: nothing of it was recorded.
        """
        return self._found.get(value.id)

    def blank_elements(self, value: Value) -> torch.Tensor | None:
        """Return the same, of a value that counts as undefined as well: some of it may have been written."""
        if not value.undefined:
            return self.elements(value)
        return self._in_part.get(value.id, _ALL.expand(value.shape)) if self._found is not None else None

    def storages(self, call: Call) -> dict[Moment, torch.Tensor]:
        """Return the bytes of memory that a call was given when it had been written in part, as far as recorded."""
        found: dict[Moment, torch.Tensor] = {}
        for _, value in call.input_values():
            is_small = value.storage_nbytes <= _MOST_BYTES
            if value.undefined and value.numel and value.storage and is_small:
                parts = [v for v in self._by_storage[value.storage] if v.version <= value.version]
                if parts:
                    found[moment_of(value)] = storage_bytes([*parts, value])
        return found

    @cached_property
    def _by_storage(self) -> dict[int, list[Value]]:
        """The values of storages whose bytes were recorded, by version."""
        found: dict[int, list[Value]] = defaultdict(list)
        for record in self._flow.rank.tables.values.records():
            value = self._flow.rank.value_by_id(record.id)
            if record.storage and value.has_data and not (value.undefined or value.composed):
                found[record.storage].append(value)
        for values in found.values():
            values.sort(key=lambda value: value.version)
        return found

    def is_guessed(self, value: Value) -> bool:
        """Return True if it is not known which elements are undefined, as a call could not be run."""
        return value.id in self._found and value.id in self._guessed

    @cached_property
    def _found(self) -> dict[int, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        if any(record.flags & records.UNDEFINED for record in self._flow.rank.tables.values.records()):
            for call in self._flow.calls():
                self._follow(call, found)
            self._memory.clear()
        return found

    def _follow(self, call: Call, found: dict[int, torch.Tensor]) -> None:
        given = [value for _, value in call.input_values()]
        for value in given:
            self._arrive(value)
            self._look(value, found)
        if call.op == WAIT_TENSOR:  # what it waits for is undefined until then, and as the collective made it after
            for _, value in call.result_values():
                if not value.undefined:
                    self._memory.pop(value.storage, None)
            return
        read = [v for _, v in self._flow.reads(call) if v.numel and (v.undefined or v.id in found)]
        unlike = self._unlike(call, given, read) if read and not self._flow.is_view(call) else {}
        if unlike:
            for slot, undefined in _of_elements(call, read, found).items():
                unlike[slot] = unlike[slot].maximum(undefined) if slot in unlike else undefined
        guessed = unlike is None or any(value.id in self._guessed for value in read)
        results = sorted(self._flow.results(call), key=lambda made: not made[1].undefined)  # then what lies in them
        for slot, value in results:
            if not (read or value.undefined or value.storage in self._memory):
                continue
            is_blank = value.undefined and not read
            undefined = _ALL if unlike is None or is_blank else unlike.get(slot, _NONE)
            known = self._memory.get(value.storage)
            if self._is_followed(value) and ((known is not None and known.bytes is not None) or self._has_room(value)):
                self._write(value, undefined, guessed)
            else:
                self._become(value, found, undefined=bool(undefined.any()) and not is_blank)
        for _, value in call.result_values():
            self._look(value, found)

    def _arrive(self, value: Value) -> None:
        """Look at memory before a call: others may have written to it since."""
        known = self._memory.get(value.storage)
        if known is None and value.undefined and self._is_followed(value):
            unwritten = np.full(_size(value), DEPENDS, np.uint8) if self._has_room(value) else None
            self._memory[value.storage] = _Unwritten(value.version, unwritten, guessed=unwritten is None)
        elif known is not None and known.version != value.version:
            if value.undefined:
                known.version = value.version
            else:
                del self._memory[value.storage]

    def _look(self, value: Value, found: dict[int, torch.Tensor]) -> None:
        """Note which elements of a value are undefined."""
        known = self._memory.get(value.storage)
        undefined = self._undefined_in(known, value)
        if value.undefined:
            self._in_part[value.id] = undefined
        elif known is not None and value.id not in found and bool(undefined.any()):
            whole = _ALL.expand(value.shape)
            found[value.id] = whole if torch.equal(undefined, whole) else undefined
            if known.guessed:
                self._guessed.add(value.id)

    def _undefined_in(self, known: _Unwritten | None, value: Value) -> torch.Tensor:
        if known is None:
            return _NONE.expand(value.shape)
        if known.bytes is None or not self._is_followed(value):
            return _ALL.expand(value.shape)
        return torch.from_numpy(np.array(_laid_on(known.grown(value), value).max(-1)))

    def _unlike(self, call: Call, given: list[Value], read: list[Value]) -> dict[str, torch.Tensor] | None:
        """Return which elements of a call's results depend on undefined ones that it read, by slot; None: unknown."""
        known = [(value, self._memory.get(value.storage)) for value in given]
        guessed = {value.id for value, memory in known if memory is not None and memory.bytes is None}
        if not self._runs or any(not v.undefined and (v.id in guessed or not self._is_followed(v)) for v in read):
            return None
        bytes = {moment_of(v): torch.from_numpy(m.bytes) for v, m in known if m is not None and m.bytes is not None}
        try:
            return undefined_elements(call, bytes)
        except AtenDumpError:
            return None

    def _write(self, value: Value, undefined: torch.Tensor, guessed: bool) -> None:
        """Note which elements a call left undefined of what it wrote."""
        known = self._memory.get(value.storage)
        if known is None or known.bytes is None:
            known = _Unwritten(value.version, np.zeros(_size(value), np.uint8))
        bytes = known.grown(value)
        _laid_on(bytes, value)[...] = np.broadcast_to(undefined.numpy(), tuple(value.shape))[..., None]
        known.version, known.guessed = value.version, known.guessed or guessed
        self._memory[value.storage] = known
        if not bytes.any():
            del self._memory[value.storage]

    def _become(self, value: Value, found: dict[int, torch.Tensor], *, undefined: bool) -> None:
        """Note whether a call wrote undefined elements, in memory that is not followed byte by byte."""
        self._memory.pop(value.storage, None)
        if undefined and value.storage:
            self._memory[value.storage] = _Unwritten(value.version, None, guessed=True)
        elif undefined:
            found[value.id] = _ALL.expand(value.shape)
            self._guessed.add(value.id)

    def _is_followed(self, value: Value) -> bool:
        """Return True if the memory of a value is followed byte by byte."""
        if not value.storage or not hasattr(torch, value.dtype_name):
            return False
        return min(value.storage_offset, *value.stride, 0) == 0

    def _has_room(self, value: Value) -> bool:
        """Return True if the memory of one more storage may be followed byte by byte."""
        followed = sum(len(known.bytes) for known in self._memory.values() if known.bytes is not None)
        return followed + _size(value) <= _MOST_BYTES


def _of_elements(call: Call, read: list[Value], found: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return by slot which elements of masks and counts are made of undefined ones, element by element.

    Few numbers equal a given one: that they are compared with it shows in no run.
    """
    made = {slot: value for slot, value in call.result_values() if not value.is_floating}
    op = registered_op(call.op) if made else None
    if op is None or torch.Tag.pointwise not in op.tags:
        return {}
    undefined = [found.get(value.id, _ALL) for value in read]
    return {slot: _over(undefined, value) for slot, value in made.items()}


def _over(undefined: list[torch.Tensor], value: Value) -> torch.Tensor:
    """Return which elements of a value are made of an undefined one of any of these; all where shapes do not fit."""
    try:
        return torch.stack([each.broadcast_to(value.shape) for each in undefined]).amax(0)
    except RuntimeError:
        return _ALL.expand(value.shape)


def _size(value: Value) -> int:
    return max(value.storage_nbytes, extent(value)[1])


def _laid_on(bytes: NDArray[np.uint8], value: Value) -> NDArray[np.uint8]:
    """Return the states of the bytes under each element of a value: uint8[*shape, element size]."""
    size = value.dtype.itemsize
    if value.numel == 0:
        return np.zeros((*value.shape, size), np.uint8)
    strides = (*(step * size for step in value.stride), 1)
    return np.lib.stride_tricks.as_strided(bytes[value.storage_offset * size :], (*value.shape, size), strides)
