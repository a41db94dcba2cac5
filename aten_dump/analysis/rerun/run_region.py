"""Runs some recorded calls again, one after the other, in float64, each on what the one before made.

Theory of operation
    Tensors are known by the ids of the values that they stand for. Views run as they did and share memory, so that a
    write through one is seen through the others: after it, the same memory, seen with the same geometry, is the next
    version's value. A value that no call of the region showed with its geometry is laid over a tensor of its storage.
    Memory that was undefined holds NaN: what reads it gives itself away. Whole numbers that are cast to integers are
    those that the dtype they were in can hold: an index that went through bfloat16 is another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from ...dump import Call, Value
from ...dump.tensors.tensor_reading import tensor_of_parts
from ...errors import ReplayError
from ...geometry import reach
from ...store.op_names import UNDEFINED_OUTPUT_OPS, read_op_name
from .run_op import Run, leaves, recorded_slots, result_slots, run_on
from .shared_memory import Surroundings, tensors_of, wide

_CASTS: Final = ("aten::_to_copy",)
MOST_ELEMENTS: Final = 64 << 20  # that the calls of a region read and make


@dataclass(frozen=True, slots=True)
class Piece:
    """A call of a region, or a part of one.

    Attributes:
        call: the call.
        items: of an op that works by item, those that are needed; None: all.
        parts: of one that works element by element, what stands for each of its tensors, by id; None: they themselves.
    """

    call: Call
    items: tuple[int, ...] | None = None
    parts: Mapping[int, Value] | None = None

    def seen(self, value: Value) -> Value:
        """Return what stands for one of the call's tensors."""
        return value if self.parts is None else self.parts.get(value.id, value)


def start_tensors(values: Iterable[Value]) -> dict[int, torch.Tensor]:
    """Return recorded values in float64, by id; those of one moment share memory as they did.

    Raises:
        ReplayError, MissingDataError: one cannot be read.
    """
    given = list(values)
    alone = [value for value in given if value.composed or not value.storage]
    sharing = [value for value in given if not value.composed and value.storage]
    found = tensors_of(sharing, Surroundings(cast=True))
    for value in alone:
        tensor = value.tensor()
        found[value.id] = tensor.to(wide(tensor.dtype))
    return found


def laid(contents: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return `target` with other elements: itself if it is strided (it may be expanded), else a tensor of its layout.

    Raises:
        ReplayError: the shapes are not the same, or the elements cannot be had in that layout.
    """
    if contents.shape != target.shape:
        if contents.numel() != target.numel() or contents.layout is not torch.strided:
            raise ReplayError(f"a tensor {list(contents.shape)} stands for one of shape {list(target.shape)}")
        contents = contents.reshape(target.shape)  # random numbers that were drawn into another shape
    if target.layout is not torch.strided:
        return _in_layout(contents, target.layout)
    kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in target.stride())
    target[kept].copy_(contents.to_dense()[kept])
    return target


def _in_layout(contents: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    if contents.layout is layout:
        return contents.clone()
    try:
        return contents.to_dense().to_sparse(layout=layout)
    except (RuntimeError, ValueError) as error:  # a blocked one, or one with too many dimensions
        raise ReplayError(f"a tensor of layout {contents.layout} stands for one of {layout}: {error}") from error


def run_region(
    pieces: Sequence[Piece],
    starts: Mapping[Value, torch.Tensor],
    wanted: Sequence[Value],
    *,
    rounded: bool = False,
    numbers: Mapping[float, float] | None = None,
) -> list[torch.Tensor]:
    """Run calls in float64 and return the values that are asked for.

    Args:
        pieces: in execution order.
        starts: what they start from; it is written to where they write.
        wanted: what they make, or start from.
        rounded: round what each call makes to the dtype that it was recorded in, as an honest device does.
        numbers: what takes the place of numbers that calls were given.

    Raises:
        ReplayError: a call cannot be run, or it takes too much memory; the message says why.
    """
    _check_size(pieces, starts)
    memory = _Memory(_made_again(pieces, starts))
    for value, tensor in starts.items():
        memory.keep(value, tensor)
    for piece in pieces:
        if read_op_name(piece.call.op).without_overload not in UNDEFINED_OUTPUT_OPS:
            given = partial(memory.given_whole if _makes_integers(piece.call) else memory.given, piece)
            run = run_on(piece.call, given, piece.items, numbers)
            _keep_results(piece, run, memory, rounded=rounded)
    return [memory.find(value) for value in wanted]


def _made_again(pieces: Sequence[Piece], starts: Mapping[Value, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return copies of what a region starts from and makes as well, by id.

    A call that writes one part of some memory is in a region for what it left in the others.
    """
    made = {number for piece in pieces for _, number in (*piece.call.output_slots(), *piece.call.written_slots())}
    return {value.id: tensor.clone() for value, tensor in starts.items() if value.id in made}


def _check_size(pieces: Sequence[Piece], starts: Mapping[Value, torch.Tensor]) -> None:
    elements = sum(value.numel for value in starts)
    whole = (piece for piece in pieces if piece.items is None)
    elements += sum(piece.seen(value).numel for piece in whole for _, value in piece.call.output_values())
    if elements > MOST_ELEMENTS:
        raise ReplayError(f"it takes {elements} elements, too many to run again while comparing")


def _makes_integers(call: Call) -> bool:
    """Return True if a call is a cast of floats to integers."""
    is_cast = read_op_name(call.op).without_overload in _CASTS
    return is_cast and not any(value.dtype.is_floating_point for _, value in call.output_values())


def _keep_results(piece: Piece, run: Run, memory: _Memory, *, rounded: bool) -> None:
    """Note the tensors that were made under the ids of the recorded ones."""
    made = dict(result_slots(run))
    for slot, item in recorded_slots(piece.call):
        if piece.items is not None:
            slot = _slot_in_run(slot, piece.items)
        tensor = made.get(slot)
        if isinstance(item, Value) and isinstance(tensor, torch.Tensor):
            if rounded and item.is_floating and tensor.layout is torch.strided:
                _round(tensor, item.dtype)
            memory.keep(piece.seen(item), tensor)
            for name, part in item.parts.items():
                memory.keep(part, _part(tensor, name))


def _round(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Round elements in place; those of a view are rounded already."""
    kept = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]
    kept.copy_(kept.to(dtype))


def _slot_in_run(slot: str, items: tuple[int, ...]) -> str:
    """Return where an item is that was the only, or the n-th, to be run; ``""`` for one that was not."""
    head, _, number = slot.rpartition(".")
    if not number.isdigit() or head in ("", "mutated"):
        return slot
    return f"{head}.{items.index(int(number))}" if int(number) in items else ""


def _part(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices() if name == "indices" else tensor._values()
    found: torch.Tensor = getattr(tensor, name)()
    return found


class _Memory:
    """Tensors by value; after a write the same memory, seen with the same geometry, is the next version's value.

    `fixed` has what values hold whatever a call made of them, by id.
    """

    def __init__(self, fixed: Mapping[int, torch.Tensor]) -> None:
        self._fixed = fixed
        self._by_id: dict[int, torch.Tensor] = {}
        self._by_place: dict[tuple[object, ...], torch.Tensor] = {}
        self._by_storage: dict[int, list[tuple[Value, torch.Tensor]]] = {}

    def keep(self, value: Value, tensor: torch.Tensor) -> None:
        if value.id in self._fixed and value.id in self._by_id:
            tensor = laid(self._fixed[value.id], tensor)
        self._by_id[value.id] = tensor
        if value.storage and not value.composed:
            self._by_place[_place(value)] = tensor
            if tensor.layout is torch.strided and tensor.stride() == value.stride:
                self._by_storage.setdefault(value.storage, []).append((value, tensor))

    def find(self, value: Value) -> torch.Tensor:
        found = self._by_id.get(value.id)
        if found is None and value.storage and not value.composed:
            found = self._by_place.get(_place(value))
            found = self._laid_over(value) if found is None else found
        if found is None and value.layout_name != "strided" and value.parts:
            found = tensor_of_parts(value, {name: partial(self.find, part) for name, part in value.parts.items()})
        if found is None and value.undefined:
            return self._blank(value)
        if found is None:
            raise ReplayError(f"{value!r} is neither at the start of the region nor made in it")
        return found

    def given(self, piece: Piece, value: Value) -> torch.Tensor:
        """Return what a call is given; what it only writes to need not be known."""
        try:
            return self.find(piece.seen(value))
        except ReplayError:
            if value.id in piece.call.read_value_ids():
                raise
        return self._blank(piece.seen(value))

    def given_whole(self, piece: Piece, value: Value) -> torch.Tensor:
        """Return what a cast to integers is given: whole numbers as the dtype that they were in can hold them."""
        tensor = self.given(piece, value)
        if not value.is_floating or value.dtype.is_complex or tensor.layout is not torch.strided:
            return tensor
        return torch.where(tensor == tensor.round(), tensor.to(value.dtype).to(tensor.dtype), tensor)

    def _blank(self, value: Value) -> torch.Tensor:
        blank = _undefined(value)
        self.keep(value, blank)
        return blank

    def _laid_over(self, value: Value) -> torch.Tensor | None:
        """Return a view on the newest tensor of the same storage that reaches as far."""
        for other, tensor in reversed(self._by_storage.get(value.storage, [])):
            first = value.storage_offset - other.storage_offset
            is_alike = _bits(other) == _bits(value)
            if is_alike and first >= 0 and first + reach(value.shape, value.stride) <= reach(other.shape, other.stride):
                return tensor.as_strided(value.shape, value.stride, tensor.storage_offset() + first)
        return None


def _bits(value: Value) -> tuple[object, ...]:
    return value.dtype_name, value.conjugate, value.negative


def _undefined(value: Value) -> torch.Tensor:
    dtype = wide(value.dtype)
    tensor = torch.empty_strided(value.shape, value.stride, dtype=dtype)
    return tensor.fill_(float("nan")) if dtype.is_floating_point or dtype.is_complex else tensor.zero_()


def _place(value: Value) -> tuple[object, ...]:
    return value.storage, value.storage_offset, tuple(value.shape), value.stride, value.dtype_name


__all__ = ["Piece", "laid", "leaves", "run_region", "start_tensors"]
