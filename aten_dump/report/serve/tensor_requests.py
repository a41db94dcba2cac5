"""Reads what a request says of a slice, and makes its section.

Theory of operation
    Two dimensions are shown, each other has one index; of a tensor with fewer, what lacks has size one. Only the bytes
    of the slice are read. The difference is taken in float64; a distance in units of the last place is the number of
    floats of the recorded dtype between the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from ...analysis.distance.metrics import has_ulp, ulp_distance
from ...dump import Value
from ...dump.tensors.partial_reading import load_selected
from ...errors import ConfigError, MissingDataError
from ...torch_names import with_numbers
from ..html.payload.columns import Section
from ..html.payload.histograms import counted
from ..units import format_number
from .served_dump import ServedDump

Shown = Literal["tensor", "other", "difference", "ulp"]
SHOWN: Final = ("tensor", "other", "difference", "ulp")
MOST_BYTES: Final = 256 << 20  # read for one slice

MOST_CELLS: Final = 256  # of the map, in each direction
BARS: Final = 64
WINDOW: Final = (24, 12)  # rows and columns of the table
MIDDLE: Final = 127  # the code of zero; 0 and 254 are the ends of the scale
NONFINITE: Final = 255
_SAMPLE: Final = 1 << 20  # elements that the limit of the scale is found from

# What a request may say: `value` and `other` are "side/step/rank/id", `dims` and `at` are numbers with commas.
NAMES: Final = ("part", "value", "other", "dims", "at", "show", "share", "row", "column")
PARTS: Final = ("map", "elements")
_MOST_TEXT: Final = 400


def tensor_section(served: ServedDump, query: Mapping[str, str]) -> bytes | None:
    """Return the map or the elements of a slice.

    Raises:
        ConfigError: the request says something that is not allowed.
        MissingDataError: there is no such value, or nothing of it was recorded.
        FormatError: the dump is damaged there.
    """
    for name, text in query.items():
        if name not in NAMES or len(text) > _MOST_TEXT:
            raise ConfigError(f"a request about a tensor has {name[:80]!r}; allowed: {', '.join(NAMES)}")
    part, show = query.get("part", "map"), query.get("show", "tensor")
    if part not in PARTS or show not in SHOWN:
        raise ConfigError(f"part is {part!r}, show is {show!r}; allowed: {', '.join(PARTS)}; {', '.join(SHOWN)}")
    with ExitStack() as held:
        value = _value(served, held, query.get("value", ""))
        if value is None:
            return None
        other = _value(served, held, query["other"]) if query.get("other") and show != "tensor" else None
        found = Slice.of(value.shape, _numbers(query, "dims"), _numbers(query, "at"))
        slice_of = shown_slice(found, value, other, cast(Shown, show))
    if part == "elements":
        row, column = _numbers({**query, "place": f"{query.get('row', 0)},{query.get('column', 0)}"}, "place")
        return elements_section(slice_of, row, column)
    return map_section(slice_of, share=_share(query.get("share", "1")), is_distance=show == "ulp")


def _value(served: ServedDump, held: ExitStack, text: str) -> Value | None:
    """Return a value by its place; None where there is none."""
    side, _, numbers = text.partition("/")
    place = [int(number) for number in numbers.split("/") if number.isdecimal() and len(number) < 10]
    if len(place) != 3 or numbers.count("/") != 2:
        raise ConfigError(f"a value is named {text!r}; it must be side/step/rank/id")
    step, rank, id = place
    found = served.place(side, step, rank)
    if found is None:
        return None
    opened = held.enter_context(served.opened.use(found, links=False))
    if id not in opened.tables.values:
        return None
    value = opened.value_by_id(id)
    if value.undefined or not value.has_data:
        raise MissingDataError(_why_not(value))
    return value


def _why_not(value: Value) -> str:
    """Return why a value has no bytes, as reading it says."""
    try:
        value.tensor()
    except MissingDataError as error:
        return str(error)
    return f"{value!r} is undefined memory"


def _numbers(query: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the numbers of a list with commas.

    Raises:
        ConfigError: one is no number from 0 up.
    """
    texts = [text for text in query.get(name, "").split(",") if text != ""]
    if any(not text.isdecimal() or len(text) > 15 for text in texts):
        raise ConfigError(f"{name} is {query[name]!r}; allowed are numbers from 0 up, with commas between")
    if name == "dims" and len(texts) not in (0, 2):
        raise ConfigError(f"dims is {query[name]!r}; two dimensions are shown")
    return tuple(int(text) for text in texts)


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"share is {text!r}; allowed is a number over 0 and up to 1")
    return found


def map_section(part: Tensor, *, share: float, is_distance: bool) -> bytes:
    """Return a map and a histogram of a slice.

    Args:
        part: numbers, ``[rows, columns]``.
        share: of the elements that are within the ends of the scale; 1 for all.
        is_distance: the numbers are counts from 0 up that go over many powers of two.
    """
    section = Section()
    finite = part[part.isfinite()].double()
    limit = _limit(finite, share)
    section.add_json("shape", list(part.shape))
    section.add_json("limit", format_number(limit))
    section.add_json("facts", {name: format_number(number) for name, number in _facts(part, finite).items()})
    codes = _codes(part, limit, is_distance)
    section.add_json("cells", list(codes.shape))
    section.add_integers("code", codes.reshape(-1).numpy().astype("int64"))
    low, high, bars = counted(finite, BARS)
    section.add_json("low", format_number(low))
    section.add_json("high", format_number(high))
    section.add_integers("bar", bars)
    return section.pack()


def _limit(finite: Tensor, share: float) -> float:
    """Return the absolute value at the ends of the scale."""
    if not len(finite):
        return 1.0
    size = finite.abs()
    if share < 1:
        size = size[:: -(-len(size) // _SAMPLE)]
        limit = float(size.kthvalue(max(1, round(share * len(size)))).values)
        if limit > 0:
            return limit
    return float(finite.abs().max()) or 1.0


def _facts(part: Tensor, finite: Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {"elements": part.numel()}
    if len(finite):
        low, high = (float(end) for end in finite.aminmax())
        facts |= {"min": low, "max": high, "mean": float(finite.mean()), "l2norm": float(finite.norm())}
        facts |= {"zero": int((finite == 0).sum())}
    facts |= {"NaN": int(part.isnan().sum()), "+Inf": int(part.isposinf().sum()), "-Inf": int(part.isneginf().sum())}
    return {name: number for name, number in facts.items() if number or name not in ("zero", "NaN", "+Inf", "-Inf")}


def _codes(part: Tensor, limit: float, is_distance: bool) -> Tensor:
    """Return codes of colours, of each cell that of the element of greatest size in it; NaN and Inf come first."""
    if part.numel() == 0:
        return torch.zeros(part.shape, dtype=torch.int64, device=part.device)
    is_finite = part.isfinite()
    scaled = torch.where(is_finite, part.double(), 0.0)
    if is_distance:
        scaled = scaled.abs().log1p() / math.log1p(limit)
    else:
        scaled = scaled / limit
    size = torch.where(is_finite, scaled.abs().clamp(max=1.0), 2.0)
    cells = tuple(min(length, MOST_CELLS) for length in part.shape)
    greatest, at = adaptive_max_pool2d(size.float()[None], cells, return_indices=True)
    sign = torch.where(scaled.reshape(-1)[at.reshape(-1)] < 0, -1.0, 1.0).reshape(cells)
    codes = (greatest[0] * sign * MIDDLE).round().long() + MIDDLE
    return codes.masked_fill(greatest[0] > 1.5, NONFINITE)


def elements_section(part: Tensor, row: int, column: int) -> bytes:
    """Return a table of the elements from a place on, in the digits in which they are shown everywhere."""
    section = Section()
    window = part[row : row + WINDOW[0], column : column + WINDOW[1]]
    section.add_json("shape", list(part.shape))
    section.add_json("from", [row, column])
    section.add_json("rows", [[format_number(number) for number in line] for line in window.tolist()])
    return section.pack()


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
