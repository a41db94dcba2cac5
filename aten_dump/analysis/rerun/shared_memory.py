"""Recorded values become tensors again that share memory as they did.

Theory of operation
    Values of one storage and version were views of one memory. They become views of one buffer, so that an op sees
    the strides, overlaps and aliasing that it saw in the program; the buffer starts at a multiple of 64 bytes
    of the storage, so that addresses have the alignment they had and kernels take the same path. With `cast`, floating
    values become float64 (complex128): the buffer is converted as a whole, and the geometry, counted in elements,
    stays. Memory that was undefined, or is said to be unwritten, is filled with given bytes: run twice with different
    ones, an op that reads it gives itself away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from ...dump import Value
from ...errors import MissingDataError, ReplayError
from ...store.records import LAYOUTS
from ...torch_names import neg_view

ALIGNMENT: Final = 64  # bytes; what torch's CPU allocator aligns storages to
Moment = tuple[int, int]  # a storage at a version

_CPU: Final = torch.device("cpu")
_WIDE: Final = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_REAL: Final = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_SPARSE_BYTES: Final = 16 << 20
_PERIOD: Final = 13  # of `_pattern`
RISING, FALLING, LOWEST, HIGHEST = range(0x100, 0x104)  # fills of numbers, for what only looks at their order
_RAMP: Final = 61  # elements that rise, or fall, in a row
_SAME_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the reference dtype: float64 for floating, complex128 for complex, others as they are."""
    return torch.float64 if dtype.is_floating_point else _WIDE.get(dtype, dtype)


def moment_of(value: Value) -> Moment:
    """Return the storage and version that a value is of."""
    return value.storage, value.version


def extent(value: Value) -> tuple[int, int]:
    """Return the first and one past the last byte of its storage that a value touches."""
    if value.numel == 0:
        return 0, 0
    size = value.dtype.itemsize
    reach = sum((n - 1) * step for n, step in zip(value.shape, value.stride, strict=True)) + 1
    return value.storage_offset * size, (value.storage_offset + reach) * size


def check_readable(value: Value) -> None:
    """Check that a value can be made again.

    Raises:
        ReplayError: it is opaque or was sampled.
        MissingDataError: its bytes were not recorded.
    """
    if value.opaque:
        raise ReplayError(f"{value!r} has no bytes of its own (a tensor subclass, meta or fake)")
    data = value.data
    if data is not None and data.layout == LAYOUTS.index("sample"):
        raise ReplayError("only the first elements of its tensors were recorded (DumpConfig.sample)")
    if not value.undefined and value.numel and not value.has_data:
        value.tensor()  # raises, and says why


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How recorded calls are run again."""

    cast: bool = False  # floating values become float64, complex ones complex128
    device: torch.device = _CPU
    known: Mapping[Moment, torch.Tensor] = field(default_factory=dict)  # whole storages, instead of the recorded
    fill: int = 0  # the greatest of the bytes that undefined memory is filled with; or RISING, ...
    unwritten: Mapping[Moment, torch.Tensor] = field(default_factory=dict)  # which bytes of storages are undefined
    rounding: int = 0  # seed of chance by which results within a kernel are rounded, with `cast`; 0 rounds none


def tensors_of(
    values: Iterable[Value], around: Surroundings, *, written: frozenset[int] = frozenset(), absolute: bool = False
) -> dict[int, torch.Tensor]:
    """Return a tensor for each value, by value id.

    Args:
        values: what an op was given.
        around: how to make them; storages in its `known` are not written.
        written: ids of values that the op writes; they must keep their aliases.
        absolute: give the buffer the whole storage, for ops that count from its start (as_strided).

    Raises:
        ReplayError, MissingDataError: a value cannot be made; the message says why.
    """
    groups: dict[Moment, list[Value]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for value in {value.id: value for value in values}.values():
        if moment_of(value) not in around.known:
            check_readable(value)
        if value.storage == 0 or "quantized" in value.extra or value.numel == 0:
            tensors[value.id] = _alone(value, around)
        else:
            groups.setdefault(moment_of(value), []).append(value)
    for moment, group in groups.items():
        if around.cast and not absolute and len(group) == 1 and moment not in around.known:
            alone = _cast_alone(group[0]) if moment not in around.unwritten else None
            if alone is not None:
                tensors[group[0].id] = alone.to(around.device)
                continue
        buffer, base = around.known.get(moment), 0
        if buffer is None:
            buffer, base = _fill_buffer(group, around, absolute)
        elif any(value.id in written for value in group):
            buffer = buffer.clone()
        made = _cast_views(group, buffer, base, written, absolute) if around.cast else _views(group, buffer, base)
        tensors.update(_moved(made, around.device))
    return tensors


def _alone(value: Value, around: Surroundings) -> torch.Tensor:
    """Return the tensor of a value that shares no memory: sparse, quantized, empty."""
    if value.numel == 0 and value.storage:
        dtype = wide(value.dtype) if around.cast else value.dtype
        return torch.empty_strided(value.shape, value.stride, dtype=dtype, device=around.device)
    tensor = value.tensor()
    if around.cast and not tensor.is_quantized:
        tensor = tensor.to(wide(tensor.dtype))
    return tensor.to(around.device)


def storage_bytes(values: Iterable[Value]) -> torch.Tensor:
    """Return the bytes of a storage at a version, from all recorded values of that moment; 0 where none was."""
    group = list(values)
    buffer = torch.zeros(max([group[0].storage_nbytes, *[extent(v)[1] for v in group]]), dtype=torch.uint8)
    for value in group:
        if value.has_data and value.numel:
            _write(value, buffer, 0, whole=True)
    return buffer


def view_of(value: Value, buffer: torch.Tensor, base: int = 0) -> torch.Tensor:
    """Return the tensor that a value is, on the bytes of its storage from byte `base` on."""
    return next(iter(_views([value], buffer, base).values()))


def _fill_buffer(group: list[Value], around: Surroundings, absolute: bool) -> tuple[torch.Tensor, int]:
    extents = [extent(value) for value in group]
    base = 0 if absolute else min(low for low, _ in extents) // ALIGNMENT * ALIGNMENT
    end = max(high for _, high in extents)
    if absolute:
        end = max(end, group[0].storage_nbytes)
    buffer = _zeros(_rounded(end - base), sum(high - low for low, high in extents))
    unwritten = around.unwritten.get(moment_of(group[0]))
    for value, (low, high) in zip(group, extents, strict=True):
        if value.undefined and around.fill and unwritten is None:
            buffer[low - base : high - base] = _pattern(value, high - low, around.fill)
    for value in group:
        if not value.undefined:
            _write(value, buffer, base, whole=absolute)
    if unwritten is not None:
        seen = unwritten[base : base + buffer.numel()]
        buffer[: seen.numel()][seen] = _pattern(group[0], seen.numel(), around.fill)[seen]
    return buffer, base


def _zeros(nbytes: int, used: int) -> torch.Tensor:
    """Return so many bytes of 0. Where few of many are used, the others take no memory: pages that nobody touches."""
    if nbytes < _SPARSE_BYTES or nbytes < 2 * used:
        return torch.zeros(nbytes, dtype=torch.uint8)
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)  # calloc; torch.zeros writes each byte
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + nbytes])


def _pattern(value: Value, nbytes: int, fill: int) -> torch.Tensor:
    """Return bytes up to `fill`, elements unlike: a row of equal numbers is normalized to what 0 is. 0xFF makes NaN."""
    if fill > 0xFF:
        return _numbers(value.dtype, -(-nbytes // value.dtype.itemsize), fill).view(torch.uint8)[:nbytes]
    if value.dtype == torch.bool or fill in (0, 0xFF):
        return torch.full((nbytes,), min(fill, 1) if value.dtype == torch.bool else fill, dtype=torch.uint8)
    row = (fill - torch.arange(_PERIOD).square() % _PERIOD).to(torch.uint8)
    return row.repeat(-(-nbytes // _PERIOD))[:nbytes]


def _numbers(dtype: torch.dtype, count: int, fill: int) -> torch.Tensor:
    """Return numbers whose order is that of `fill`: whatever picks, sorts or counts them says so of one of the four."""
    if dtype.is_complex:
        return torch.view_as_complex(_numbers(_REAL[dtype], 2 * count, fill).view(count, 2))
    greatest = torch.finfo(dtype).max / 2 if dtype.is_floating_point else _RAMP
    ramp = torch.arange(count, dtype=torch.float64) % _RAMP / _RAMP
    part = {RISING: ramp, FALLING: 1 - ramp, LOWEST: torch.zeros(count), HIGHEST: torch.ones(count)}[fill]
    if dtype == torch.bool:
        return part >= 0.5
    return ((2 * part - 1) * greatest if dtype.is_floating_point else part * greatest).to(dtype)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16  # whole elements of every dtype


def _write(value: Value, buffer: torch.Tensor, base: int, *, whole: bool) -> None:
    """Write the recorded bytes of a value where they belong; with `whole`, all of the blob they are in."""
    data = value.data
    if data is None:
        value.tensor()  # raises, and says why
        return
    low, high = extent(value)
    if data.layout == LAYOUTS.index("strided"):
        start, stop = data.offset, data.offset + high - low
        if whole and data.blob not in value.rank.packed_blobs:
            low, start, stop = low - data.offset, 0, value.rank.tables.blobs[data.blob].nbytes
            stop = min(stop, buffer.numel() + base - low)
        raw = value.rank.read_blob(data.blob, start, stop)
        if len(raw) < stop - start:
            raise MissingDataError(f"the bytes of {value!r} are not in the shard of {value.where}")
        buffer[low - base : low - base + stop - start] = torch.frombuffer(raw, dtype=torch.uint8)
        return
    tensor = value.tensor()
    tensor = torch.conj(tensor) if value.conjugate else tensor  # the bytes, before the bits apply
    tensor = neg_view(tensor) if value.negative else tensor
    if tensor.dtype.itemsize not in _SAME_SIZE:
        tensor = torch.view_as_real(tensor)
    _copy_elements(value, tensor, buffer, base)


def _copy_elements(value: Value, tensor: torch.Tensor, buffer: torch.Tensor, base: int) -> None:
    dtype = _SAME_SIZE[tensor.dtype.itemsize]
    scale = value.dtype.itemsize // dtype.itemsize
    offset = (value.storage_offset * value.dtype.itemsize - base) // dtype.itemsize
    stride = [step * scale for step in value.stride] + [1] * (tensor.dim() - len(value.stride))
    kept = [slice(0, 1) if step == 0 else slice(None) for step in stride]
    target = buffer.view(dtype).as_strided(tensor.shape, stride, offset)
    target[tuple(kept)].copy_(tensor.view(dtype)[tuple(kept)])


def _views(group: list[Value], buffer: torch.Tensor, base: int) -> dict[int, torch.Tensor]:
    made = {}
    for value in group:
        dtype = value.dtype
        offset = value.storage_offset - base // dtype.itemsize
        usable = buffer[: buffer.numel() // dtype.itemsize * dtype.itemsize]
        tensor = usable.view(dtype).as_strided(value.shape, value.stride, offset)
        made[value.id] = _with_bits(value, tensor)
    return made


def _cast_views(
    group: list[Value], buffer: torch.Tensor, base: int, written: frozenset[int], absolute: bool
) -> dict[int, torch.Tensor]:
    """Return float64 and complex128 views on one converted buffer; others as they are.

    Converted is what the values reach over, or all of the buffer if `absolute`: two ends of a long one take no more.
    """
    if not any(value.is_floating for value in group):
        return _views(group, buffer, base)
    reals = {_REAL.get(value.dtype, value.dtype) for value in group}
    if len(reals) > 1:
        if any(value.id in written for value in group):
            names = ", ".join(sorted(str(dtype) for dtype in reals))
            raise ReplayError(f"arguments of different dtypes ({names}) share memory that it writes: not castable")
        return {key: view.to(wide(view.dtype)) for key, view in _views(group, buffer, base).items()}
    real = reals.pop()
    usable = buffer[: buffer.numel() // real.itemsize * real.itemsize]
    elements = usable.view(real)
    if absolute:
        converted = elements.to(torch.float64)
    else:
        extents = [extent(value) for value in group]
        converted = _zeros(8 * len(elements), sum(high - low for low, high in extents)).view(torch.float64)
        for low, high in extents:
            part = slice((low - base) // real.itemsize, (high - base) // real.itemsize)
            converted[part] = elements[part]
    made = {}
    for value in group:
        parts = 2 if value.dtype in _REAL else 1
        offset = value.storage_offset - base // (real.itemsize * parts)
        numbers = converted
        if parts == 2:
            numbers = converted[: converted.numel() // 2 * 2].view(torch.complex128)
        made[value.id] = _with_bits(value, numbers.as_strided(value.shape, value.stride, offset))
    return made


def _cast_alone(value: Value) -> torch.Tensor | None:
    """Return a value in float64 that shares its memory with no other; None of one that lies otherwise in its storage.

    Most arguments are so, and what `_fill_buffer` does for several is much for one.
    """
    data = value.data
    is_plain = value.is_floating and value.dtype not in _REAL and not (value.undefined or value.negative)
    if not is_plain or data is None or data.layout != LAYOUTS.index("strided"):
        return None
    tensor = value.shared_tensor()
    reach = extent(value)[1] // value.dtype.itemsize - value.storage_offset
    flat = tensor.as_strided((reach,), (1,)).to(torch.float64, copy=True)  # the op may write to it
    return flat.as_strided(tensor.shape, tensor.stride())


def _with_bits(value: Value, tensor: torch.Tensor) -> torch.Tensor:
    tensor = torch.conj(tensor) if value.conjugate else tensor
    return neg_view(tensor) if value.negative else tensor


def _moved(made: dict[int, torch.Tensor], device: torch.device) -> dict[int, torch.Tensor]:
    """Move views of one buffer to a device, as views of one buffer there."""
    if device.type == "cpu":
        return made
    first = next(iter(made.values()))
    memory = torch.empty(0, dtype=torch.uint8).set_(first.untyped_storage()).to(device)
    moved = {}
    for key, tensor in made.items():
        flags = tensor.is_conj(), tensor.is_neg()
        plain = torch.conj(tensor) if flags[0] else tensor
        plain = neg_view(plain) if flags[1] else plain
        size = plain.element_size()
        usable = memory[: memory.numel() // size * size].view(plain.dtype)
        view = usable.as_strided(plain.shape, plain.stride(), plain.storage_offset())
        view = torch.conj(view) if flags[0] else view
        moved[key] = neg_view(view) if flags[1] else view
    return moved
