"""A 2-D slice of a recorded tensor, or of the difference of two: what a heat map, a histogram and a table are made of.

Theory of operation
    Two dimensions are shown, each other has one index; of a tensor with fewer, what lacks has size one. Only the bytes
    of the slice are read. The difference is taken in float64; a distance in units of the last place is the number of
    floats of the recorded dtype between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from ...analysis.distance.ulp import has_ulp, ulp_distance
from ...dump import Value
from ...dump.tensors.partial_reading import load_selected
from ...errors import ConfigError, MissingDataError
from ...torch_names import with_numbers

Shown = Literal["tensor", "other", "difference", "ulp"]
SHOWN: Final = ("tensor", "other", "difference", "ulp")
MOST_BYTES: Final = 256 << 20  # read for one slice


@dataclass(frozen=True, slots=True)
class Slice:
    """Which part of a tensor: the dimensions of rows and columns, and an index in each dimension."""

    rows: int | None
    columns: int | None
    at: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], dims: Sequence[int], at: Sequence[int]) -> Slice:
        """Return the slice that was asked for; the last two dimensions, and index 0, where nothing was.

        Raises:
            ConfigError: the tensor has no such dimension or index.
        """
        n = len(shape)
        rows, columns = dims if dims else (n - 2 if n > 1 else None, n - 1 if n else None)
        at = tuple(at) or (0,) * n
        if any(dim is not None and not 0 <= dim < n for dim in (rows, columns)) or (n > 1 and rows == columns):
            raise ConfigError(f"dims is {list(dims)}; allowed are two of the {n} dimensions of {list(shape)}")
        if len(at) != n or any(not 0 <= index < max(size, 1) for index, size in zip(at, shape, strict=True)):
            raise ConfigError(f"at is {list(at)}; allowed is an index for each dimension of {list(shape)}")
        return cls(rows, columns, at)

    def read(self, value: Value) -> Tensor:
        """Read the slice as ``[rows, columns]``.

        Raises:
            MissingDataError: there are no bytes, or too many of them.
            FormatError: the shard is damaged.
        """
        kept = [dim for dim in (self.rows, self.columns) if dim is not None]
        fixed = {dim: self.at[dim] for dim in range(len(value.shape)) if dim not in kept}
        _check_size(value, kept)
        rank = value.rank
        part = load_selected(value, rank.tables, rank.source, fixed) if value.data is not None else None
        if part is None:
            part = _whole(value)
            for dim in sorted(fixed, reverse=True):
                part = part.select(dim, fixed[dim])
        if kept != sorted(kept):
            part = part.t()
        return part if part.dim() == 2 else part.reshape(1, -1)


def _check_size(value: Value, kept: Sequence[int]) -> None:
    """Refuse what would take more memory than a server may have."""
    spans = [(value.shape[dim] - 1) * abs(value.stride[dim]) for dim in kept if len(value.stride) == len(value.shape)]
    elements = sum(spans) + 1 if spans else value.numel
    itemsize = max(1, value.nbytes // max(1, value.numel))
    if elements * itemsize > MOST_BYTES:
        raise MissingDataError(
            f"this slice of {value!r} reaches over {elements * itemsize >> 20} MiB, more than the "
            f"{MOST_BYTES >> 20} MiB that are read for one: take other dimensions, the last are nearest to each other"
        )


def _whole(value: Value) -> Tensor:
    tensor = value.tensor().detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.shape != value.shape:
        raise MissingDataError(f"of {value!r} only a sample was recorded (DumpConfig.sample): it has no slices")
    return tensor.resolve_conj().resolve_neg()


def shown_slice(part: Slice, value: Value, other: Value | None, shown: Shown) -> Tensor:
    """Return what is looked at: of one tensor, or of it and its partner in the other dump.

    Raises:
        MissingDataError: there is no partner, or nothing to compare with in it.
    """
    if shown == "tensor":
        return _real(part.read(value))
    if other is None or other.shape != value.shape:
        found = "none" if other is None else f"one of shape {list(other.shape)}"
        raise MissingDataError(f"{value!r} has no partner of its shape in the other dump: there is {found}")
    if shown == "other":
        return _real(part.read(other))
    one, two = part.read(value), part.read(other)
    if shown == "difference":
        return _real(one).double() - _real(two).double()
    return _steps_between(one, two)


def _real(tensor: Tensor) -> Tensor:
    """Return numbers that can be shown: of complex ones the absolute value."""
    if tensor.is_complex():
        return tensor.abs()
    tensor = with_numbers(tensor)
    return tensor.double() if tensor.dtype in (torch.float64, torch.int64) else tensor.float()


def _steps_between(one: Tensor, two: Tensor) -> Tensor:
    """Return how many floats lie between two of one dtype, as float64; NaN where one of them is NaN."""
    if one.dtype != two.dtype or not has_ulp(one.dtype):
        raise MissingDataError(
            f"units of the last place are not known between {one.dtype} and {two.dtype}: look at the difference"
        )
    return ulp_distance(one, two).double().masked_fill(one.isnan() | two.isnan(), torch.nan)
