"""Parts of a tensor: slices, and blocks one after the other; only their bytes are read, and are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import torch

from ...geometry import reach
from ...store import records
from ..index.source import Source
from ..index.tables import Tables
from ..value_facts import ValueFacts
from .tensor_reading import SAME_SIZE, Stored, find_stored, stored_dtype, stored_elements

Index = tuple[slice, ...]  # of the leading dimensions

_GAP_BYTES: Final = 1 << 12  # from one element to the next: what lies between is read too, as pages are read whole
_STRETCH_BYTES: Final = 4 << 20  # that are read so at a time


@dataclass(frozen=True, slots=True)
class _Elements:
    """The stored elements of a strided tensor, and the geometry that they have in the file."""

    stored: Stored
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self, first: int, sizes: Sequence[int], steps: Sequence[int]) -> torch.Tensor:
        """Read elements from `first` on, under a geometry; all that lies between them too."""
        data = self.stored.data
        moved = replace(self.stored, data=data._replace(offset=data.offset + first * self.dtype.itemsize))
        return stored_elements(moved, reach(sizes, steps), self.dtype).as_strided(sizes, steps)

    def gather(self, first: int, sizes: Sequence[int], steps: Sequence[int]) -> torch.Tensor:
        """Read elements as `read` does, but piece by piece where far more bytes lie between them than they have."""
        if reach(sizes, steps) <= 2 * prod(sizes):
            return self.read(first, sizes, steps)
        widest = max(range(len(sizes)), key=lambda dim: (sizes[dim] > 1) * steps[dim])
        step_bytes = steps[widest] * self.dtype.itemsize
        at_once = 1 if step_bytes > _GAP_BYTES else _STRETCH_BYTES // step_bytes
        if 1 < sizes[widest] <= at_once:
            return self.read(first, sizes, steps)
        found = torch.empty(tuple(sizes), dtype=self.dtype, device="cpu")
        integers = found.view(SAME_SIZE.get(self.dtype.itemsize, self.dtype))  # not every dtype can copy
        for start in range(0, sizes[widest], at_once):
            fewer = [*sizes[:widest], min(at_once, sizes[widest] - start), *sizes[widest + 1 :]]
            piece = self.gather(first + start * steps[widest], fewer, steps)
            integers.narrow(widest, start, fewer[widest]).copy_(piece.view(integers.dtype))
        return found


def _plain_elements(value: ValueFacts, tables: Tables, source: Source) -> _Elements | None:
    """Return the elements of a value; None where they are no part of the file in themselves."""
    stored = find_stored(value, tables, source)
    is_plain = not (value.conjugate or value.negative or value.extra) and value.numel > 0
    if not is_plain or stored.data.layout >= len(records.LAYOUTS):
        return None
    layout, shape = records.LAYOUTS[stored.data.layout], tuple(value.shape)
    if layout == "sample":
        return None
    stride = value.stride if layout == "strided" else torch.empty(shape, device="meta").stride()
    return _Elements(stored, stored_dtype(value), shape, stride)


def load_selected(value: ValueFacts, tables: Tables, source: Source, fixed: Mapping[int, int]) -> torch.Tensor | None:
    """Read a part of a tensor: that where some dimensions have one index each; only its bytes are read.

    Args:
        value: what to read of.
        tables: the index that it is in.
        source: where the bytes are.
        fixed: the index in each dimension that the result does not have.

    Returns:
        The part, or None where it takes the whole tensor: quantized, sparse, sampled, negated or overlapping itself.

    Raises:
        MissingDataError: there are no bytes.
        FormatError: the shard is damaged.
    """
    elements = _plain_elements(value, tables, source)
    if elements is None:
        return None
    shape, stride = elements.shape, elements.stride
    first = sum(index * stride[dim] for dim, index in fixed.items())
    kept = [dim for dim in range(len(shape)) if dim not in fixed]
    return elements.read(first, [shape[dim] for dim in kept], [stride[dim] for dim in kept])


def load_blocks(
    value: ValueFacts, tables: Tables, source: Source, block_bytes: int
) -> Iterator[tuple[Index, torch.Tensor]] | None:
    """Read a tensor a block at a time; see ``Value.blocks``.

    Args:
        value: what to read.
        tables: the index that it is in.
        source: where the bytes are.
        block_bytes: the most bytes of a block.

    Returns:
        Blocks, or None where it takes the whole tensor: quantized, sparse, sampled, negated.

    Raises:
        MissingDataError: there are no bytes.
        FormatError: the shard is damaged.
    """
    elements = _plain_elements(value, tables, source)
    if elements is None:
        return None
    return _blocks(elements, max(1, block_bytes // elements.dtype.itemsize))


def _blocks(elements: _Elements, most: int) -> Iterator[tuple[Index, torch.Tensor]]:
    shape, stride = elements.shape, elements.stride
    for index in _indices(shape, most):
        first = sum(part.start * step for part, step in zip(index, stride, strict=False))
        sizes = [part.stop - part.start for part in index] + list(shape[len(index) :])
        yield index, elements.gather(first, sizes, stride)


def _indices(shape: Sequence[int], most: int) -> Iterator[Index]:
    """Yield where blocks of at most so many elements are, in row-major order."""
    rows = prod(shape[1:])
    if prod(shape) <= most:
        yield ()
    elif rows <= most:
        for start in range(0, shape[0], most // rows):
            yield (slice(start, min(start + most // rows, shape[0])),)
    else:
        for start in range(shape[0]):
            for index in _indices(shape[1:], most):
                yield slice(start, start + 1), *index
