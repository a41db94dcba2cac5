"""The elements of two values side by side, a chunk at a time.

Theory of operation
    A small tensor is read whole. Of a large one that fills its bytes without holes, ranges are read, which do not stay
    in the process: both tensors in the order in which they lie in memory if they lie alike, else as rows. Anything
    else large is read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from ...dump import Value
from ...store import records
from ...torch_names import with_numbers

CHUNK: Final = 1 << 17  # elements: in float64 they stay in the cache
_WHOLE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which elements are visited: dimensions from the outermost inwards, and the shape."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    def coordinates(self, index: int) -> tuple[int, ...]:
        """Return the coordinates of the element that is visited at `index`."""
        found = [0] * len(self.shape)
        for dim in reversed(self.dims):
            index, found[dim] = divmod(index, self.shape[dim])
        return tuple(found)


def place_in(shape: Sequence[int], position: int) -> tuple[int, ...]:
    """Return the coordinates of an element by its position in row-major order; zeros if there is no element."""
    found = []
    for size in reversed(shape):
        position, at = divmod(position, size) if size else (0, 0)
        found.append(at)
    return tuple(reversed(found))


class ElementReader:
    """Reads ranges of a tensor's elements in an order."""

    def __init__(self, source: Value | torch.Tensor, order: Order, whole_bytes: int = _WHOLE_BYTES) -> None:
        """Take what is read; a value of up to `whole_bytes` is read at once."""
        self._flat: torch.Tensor | None = None
        self._value: Value | None = None
        if isinstance(source, Value) and source.nbytes > whole_bytes and _memory_order(source) == order.dims:
            self._value = source
            return
        tensor = plain(source.shared_tensor() if isinstance(source, Value) else source)
        self._flat = tensor.permute(order.dims).reshape(-1)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return elements [start, stop) in the order, as a 1-D tensor."""
        if self._flat is not None:
            return self._flat[start:stop]
        assert self._value is not None
        return _read(self._value, start, stop)


def common_order(target: Value | torch.Tensor, baseline: Value | torch.Tensor) -> Order:
    """Return the order to visit two tensors of one shape in."""
    shape = tuple(target.shape)
    dims = tuple(range(len(shape)))
    if isinstance(target, Value) and isinstance(baseline, Value):
        memory = _memory_order(target)
        if memory is not None and memory == _memory_order(baseline):
            dims = memory
    return Order(shape, dims)


def same_elements(target: Value, baseline: Value) -> tuple[object, ...] | None:
    """Return what two values have in common with all views that show the same elements in the same order, or None."""
    one, other = target.data, baseline.data
    order = None if one is None or other is None else _memory_order(target)
    if one is None or other is None or order is None or order != _memory_order(baseline):
        return None
    places = one.blob, one.offset, other.blob, other.offset
    return *places, target.numel, target.dtype_name, baseline.dtype_name


def pairs(
    target: Value | torch.Tensor, baseline: Value | torch.Tensor, order: Order
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield (index of the first, target's elements, baseline's elements) of each chunk."""
    readers = ElementReader(target, order), ElementReader(baseline, order)
    count = prod(order.shape)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        yield start, readers[0].read(start, stop), readers[1].read(start, stop)


def elements(source: Value | torch.Tensor, order: Order) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (index of the first, elements) of each chunk of one tensor."""
    reader = ElementReader(source, order)
    count = prod(order.shape)
    for start in range(0, count, CHUNK):
        yield start, reader.read(start, min(start + CHUNK, count))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a strided tensor of the elements: dense, dequantized, resolved."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return with_numbers(tensor.detach().resolve_conj().resolve_neg())


def lies_densely(value: Value) -> bool:
    """Return True if ranges of a value's elements can be read: its stored bytes have no holes."""
    return _memory_order(value) is not None


def _memory_order(value: Value) -> tuple[int, ...] | None:
    """Return the dimensions from the outermost inwards if the stored elements have no holes; None otherwise."""
    data = value.data
    if data is None or value.conjugate or value.negative or value.layout_name != "strided":
        return None
    if value.extra.get("quantized"):
        return None
    dims = tuple(range(len(value.shape)))
    layout = records.LAYOUTS[data.layout] if data.layout < len(records.LAYOUTS) else ""
    if layout == "compact":
        return dims
    if layout != "strided":
        return None
    dims = tuple(sorted(dims, key=lambda dim: (-value.stride[dim], dim)))
    expected = 1
    for dim in reversed(dims):
        if value.shape[dim] != 1:
            if value.stride[dim] != expected:
                return None
            expected *= value.shape[dim]
    return dims


def _read(value: Value, start: int, stop: int) -> torch.Tensor:
    data = value.rank.tables.data[value.id]
    size = value.dtype.itemsize
    raw = value.rank.read_blob(data.blob, data.offset + start * size, data.offset + stop * size)
    return with_numbers(torch.frombuffer(raw, dtype=torch.uint8).view(value.dtype))
