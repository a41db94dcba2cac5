"""Statistics of a tensor's elements, defined for every dtype torch has.

Theory of operation
    One tensor at a time, on the program's thread, in the one pass of `one_pass` where that is compiled and knows the
    dtype; else with torch's reductions and threads, in chunks that stay in cache: the first reduction of a chunk reads
    memory, the others do not. Small tensors are reduced many at a time, in `many_small_tensors`.

    Counts, min and max are exact. Sums are float64 (integers exactly in Python ints where float64 would round), except
    over more than 2**14 elements of 32 bits and less: those are summed in float32 by torch's cascade over a chunk, and
    squared over rows of 1024, and only these sums are added in float64. The mean is then off by less than 1e-6 of the
    mean of |x|, and l2norm by less than 1e-6 of itself, whatever the tensor's size; elements that float32 cannot
    square are squared in float64. The std follows from these where the mean is no larger than it; elsewhere it takes a
    pass of its own over x less the mean. It is off by less than 3e-6 of itself. The one pass keeps the same bounds, but
    2e-6 for the mean. So fp16 sums cannot overflow and bf16
    means keep their digits. Signs are counted through torch.sign, whose sums are exact: 0 for NaN, else -1, 0 or 1. As
    in torch, NaN in a floating tensor makes min, max, mean, l2norm and std NaN; the counts tell how many there were.
    Where squares are beyond float64, of elements and differences above 1.3e154, l2norm and std are inf.

    ========  ==========================================================================================
    count     number of elements
    min, max  smallest and greatest element; of the absolute values for complex dtypes; None when empty
    mean      sum / count; a pair [re, im] for complex dtypes; None when empty
    l2norm    sqrt(sum |x|^2); 0.0 when empty
    std       sqrt(sum |x - mean|^2 / (count - 1)), torch.std's default; None for fewer than two elements
    nan, posinf, neginf, zero, negative, positive
              numbers of such elements; a complex element is nan or inf if a part is, zero if both are,
              posinf counts its infinities, and neginf, negative and positive are None
    ========  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from ....config import SIGNS, STATISTICS
from ....torch_names import DTYPES_WITHOUT_NUMBERS
from ...memory.geometry import covers
from ...memory.scratch import Scratch, give_back, take_scratch
from ...torch_internals.addresses import address_of
from .one_pass import CODES, IS_COMPILED, of_memory
from .repeated_elements import of_repeated, seen_once

_CHUNK_ELEMENTS: Final = 1 << 17
_FAST_CHUNK_ELEMENTS: Final = 1 << 18  # for each of torch's threads; 1 MB, which the cache of a core holds
_SMALL_ELEMENTS: Final = 1 << 14
_MOST_COUNTED: Final = 1 << 20  # elements at a time; float32 counts to 2**24
_ROW_ELEMENTS: Final = 1 << 10
_SQUARABLE: Final = (1e-15, 1e15)  # greatest absolute values whose squares float32 can sum up
_EXACT_IN_INT64: Final = 1 << 31
_UNSIGNED_WIDE: Final = frozenset(
    d for d in (getattr(torch, n, None) for n in ("uint16", "uint32", "uint64")) if d is not None
)
_PLAIN: Final = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
_WITHOUT_NUMBERS: Final = DTYPES_WITHOUT_NUMBERS

Number = Any  # int, float, None, or [re, im]


def flat_elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements of `tensor` as a 1-D tensor of a dtype that torch can compute with.

    Their order is the memory's where that is dense; tensors with gaps are copied. None for dtypes
    whose elements are no numbers to torch.
    """
    if tensor.dtype in _PLAIN and tensor.is_contiguous() and not tensor.is_neg():  # nearly all, and in a hurry
        return tensor.view(-1)
    if tensor.dtype in _WITHOUT_NUMBERS:
        return None
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    elif tensor.dtype in _UNSIGNED_WIDE:
        tensor = tensor.to(torch.int64) if tensor.dtype != torch.uint64 else tensor
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    elif tensor.dtype.is_floating_point and tensor.element_size() == 1:
        tensor = tensor.to(torch.float32)
    if not tensor.is_contiguous() and covers(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def compute(tensor: torch.Tensor, names: tuple[str, ...]) -> list[Number]:
    """Return the statistics `names` of `tensor`, in that order. Call inside `quiet()`.

    Args:
        tensor: any strided tensor of any dtype and device.
        names: of `config.STATISTICS`.
    """
    if not tensor.is_contiguous():
        once, times = seen_once(tensor)
        if times > 1:
            all_of_them = of_repeated(dict(zip(STATISTICS, compute(once, STATISTICS), strict=True)), times)
            return [all_of_them[name] for name in names]
    flat = flat_elements(tensor)
    if flat is None:
        found: dict[str, Number] = {"count": tensor.numel()}
    elif flat.numel() == 0:
        found = {"count": 0, "l2norm": 0.0} | dict.fromkeys(
            ("nan", "posinf", "neginf", "zero", "negative", "positive"), 0
        )
    elif (in_one_pass := of_elements(flat, names)) is not None:
        return in_one_pass
    elif flat.is_complex():
        found = _of_complex(flat, names)
    elif flat.is_floating_point():
        found = _of_float(flat, names)
    else:
        found = _of_int(flat, names)
    return [found.get(name) for name in names]


def of_elements(flat: torch.Tensor, names: tuple[str, ...] = STATISTICS) -> list[Number] | None:
    """Return the statistics `names` of a 1-D tensor of any dtype and device in one pass; None where that cannot be."""
    if not IS_COMPILED or flat.dtype not in CODES or not flat.is_cpu:  # else a copy would be for nothing
        return None
    flat = flat.contiguous()
    return of_memory(flat.dtype, address_of(flat), flat.numel(), names)


def _chunks(flat: torch.Tensor, longest: int) -> Sequence[torch.Tensor]:
    """Return a 1-D tensor in pieces of at most so many elements. (``Tensor.split`` takes 20 us of Python.)."""
    count = flat.numel()
    return (flat,) if count <= longest else [flat[start : start + longest] for start in range(0, count, longest)]


def _of_float(flat: torch.Tensor, names: tuple[str, ...]) -> dict[str, Number]:
    count = flat.numel()
    scan = _Scan(names)
    scan.read(flat)
    low, high, total, squares = scan.low, scan.high, scan.total, scan.squares
    found: dict[str, Number] = {"count": count, "min": low, "max": high}
    finite = math.isfinite(low) and math.isfinite(high)
    greatest = max(-low, high)
    if not finite or (flat.dtype != torch.float64 and greatest and not _SQUARABLE[0] < greatest < _SQUARABLE[1]):
        total = flat.sum(dtype=torch.float64).item()
        squares = sum(_square_sum(c) for c in _chunks(flat, _CHUNK_ELEMENTS))
    found["mean"] = total / count
    found["l2norm"] = math.sqrt(squares)
    if "std" in names and count > 1:
        found["std"] = math.sqrt(_square_deviations(flat, found, squares) / (count - 1))
    found.update(nan=0, posinf=0, neginf=0)
    if not finite:
        found["nan"] = int(torch.isnan(flat).sum().item())
        found["posinf"] = int((flat == math.inf).sum().item())
        found["neginf"] = int((flat == -math.inf).sum().item())
    found.update(zero=count - scan.nonzero - found["nan"], negative=scan.negative)
    found["positive"] = scan.nonzero - scan.negative
    return found


def _square_deviations(flat: torch.Tensor, found: dict[str, Number], squares: float) -> float:
    """Return the sum of |x - mean|^2, given the other statistics and the sum of |x|^2."""
    count, mean = found["count"], found["mean"]
    if count <= _SMALL_ELEMENTS:
        return _square_sum(flat.double() - mean)
    of_mean = count * mean * mean
    is_beyond = squares == math.inf and math.isfinite(mean)  # float64, though elements are finite
    if of_mean <= squares / 2 and not is_beyond:  # the mean is no larger than the std: no digits are lost
        return float(squares - of_mean)
    if found["min"] == found["max"]:
        return 0.0
    if flat.dtype != torch.float64 and max(mean - found["min"], found["max"] - mean) < _SQUARABLE[1]:
        total, apart = _sums_around(flat, mean, torch.float32)
        of_rest = total * total / count
        if apart > count * _SQUARABLE[0] ** 2 and of_rest <= apart / 2:  # no digits are lost, as above
            return float(apart - of_rest)
    total, apart = _sums_around(flat, mean, torch.float64)
    if total * total / count > apart / 2:
        total, apart = _sums_around(flat, mean + total / count, torch.float64)
    return float(apart if apart == math.inf else apart - total * total / count)


def _sums_around(flat: torch.Tensor, near: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the sums of x - near and of its squares: each difference is off by a rounding of itself."""
    total = apart = 0.0
    for chunk in _chunks(flat, _FAST_CHUNK_ELEMENTS * torch.get_num_threads()):
        difference = chunk.to(dtype) - near
        total += difference.sum().item()
        apart += _squares_by_row(difference)
    return total, apart


class _Scan:
    """What is found while the elements of a floating tensor are read once; NaN makes `low` and `high` NaN."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._wants_sum = "mean" in names or "std" in names
        self._wants_squares = "l2norm" in names or "std" in names
        self._wants_signs = not SIGNS.isdisjoint(names)
        self._scratch: Scratch | None = None  # for the signs of each chunk
        self.low, self.high = math.inf, -math.inf
        self.total = self.squares = 0.0
        self.nonzero = self.negative = 0

    def read(self, flat: torch.Tensor) -> None:
        """Take all elements."""
        count = flat.numel()
        try:
            for chunk in _chunks(flat, _FAST_CHUNK_ELEMENTS * torch.get_num_threads()):
                if count <= _SMALL_ELEMENTS:
                    chunk = chunk.double()
                elif chunk.element_size() < 4:
                    chunk = chunk.float()
                self._read_chunk(chunk)
        finally:
            if self._scratch is not None:
                give_back(self._scratch)

    def _read_chunk(self, chunk: torch.Tensor) -> None:
        limits = torch.aminmax(chunk)
        low, high = limits.min.item(), limits.max.item()
        self.low = low if low < self.low or low != low else self.low
        self.high = high if high > self.high or high != high else self.high
        if self._wants_sum:
            self.total += chunk.sum().item()
        if self._wants_squares:
            self.squares += _squares_by_row(chunk)
        if self._wants_signs:
            nonzero, negative = self._count_signs(chunk, low, high)
            self.nonzero += nonzero
            self.negative += negative

    def _count_signs(self, chunk: torch.Tensor, low: float, high: float) -> tuple[int, int]:
        """Return how many elements are positive or negative, and how many are negative; `low` to `high` they are."""
        if low > 0 or high < 0:  # not where one is NaN
            return chunk.numel(), chunk.numel() if high < 0 else 0
        have_both = not (low >= 0 or high <= 0)
        nonzero = balance = 0  # positive less negative
        for part in _chunks(chunk, _MOST_COUNTED):
            signs = self._signs(part)
            balance += int(signs.sum().item())
            if have_both:
                nonzero += int(torch.dot(signs, signs).item())
        if not have_both:
            nonzero = abs(balance)
        return nonzero, (nonzero - balance) // 2

    def _signs(self, part: torch.Tensor) -> torch.Tensor:
        if not part.is_cpu:
            return torch.sign(part)
        nbytes = part.numel() * part.element_size()
        if self._scratch is None:  # the first part is the longest
            self._scratch = take_scratch(nbytes)
        return torch.sign(part, out=self._scratch.tensor[:nbytes].view(part.dtype))


def _squares_by_row(chunk: torch.Tensor) -> float:
    """Sum of squares of 32 or 64 bit floats: of rows in their own precision, of the rows in float64.

    In one go, torch would add thousands of numbers one after the other, and on one thread.
    """
    norm = torch.linalg.vector_norm
    rows = chunk.numel() // _ROW_ELEMENTS
    whole = rows * _ROW_ELEMENTS
    total = 0.0
    if rows:
        body = chunk if whole == chunk.numel() else chunk[:whole]
        total = _square(norm(norm(body.view(rows, _ROW_ELEMENTS), dim=1), dtype=torch.float64).item())
    if whole < chunk.numel():
        total += _square(norm(chunk[whole:]).item())
    return total


def _square_sum(chunk: torch.Tensor) -> float:
    """Sum of squares in float64; of the squares of the parts for complex."""
    return _square(torch.linalg.vector_norm(chunk, dtype=torch.float64).item())


def _square(x: float) -> float:
    """Return a square, inf where it is beyond float64: there ``**`` raises an error."""
    return x * x


def _count_signs(flat: torch.Tensor, names: tuple[str, ...], found: dict[str, Number]) -> None:
    """Fill in zero, negative and positive of integers."""
    if SIGNS.isdisjoint(names):
        return
    count, nonzero = found["count"], int(torch.count_nonzero(flat).item())
    negative = 0 if found["min"] >= 0 else count if found["max"] < 0 else int(torch.count_nonzero(flat < 0).item())
    found.update(zero=count - nonzero, negative=negative, positive=nonzero - negative)


def _of_int(flat: torch.Tensor, names: tuple[str, ...]) -> dict[str, Number]:
    count = flat.numel()
    low, high = _limits(flat)
    found: dict[str, Number] = {"count": count, "min": low, "max": high, "nan": 0, "posinf": 0, "neginf": 0}
    chunks = _chunks(flat, _CHUNK_ELEMENTS)
    if max(-low, high) < _EXACT_IN_INT64:  # then the sum of a chunk of 2^17 fits in int64
        total: float = sum(int(c.sum(dtype=torch.int64).item()) for c in chunks)
    else:
        total = math.fsum(c.double().sum().item() for c in chunks)
    mean = found["mean"] = total / count
    if "l2norm" in names:
        found["l2norm"] = math.sqrt(sum(_square_sum(c.double()) for c in chunks))
    if "std" in names and count > 1:
        found["std"] = math.sqrt(sum(_square_sum(c.double() - mean) for c in chunks) / (count - 1))
    _count_signs(flat.view(torch.int64) if flat.dtype == torch.uint64 else flat, names, found)
    return found


def _limits(flat: torch.Tensor) -> tuple[int, int]:
    """Smallest and greatest integer; torch has no aminmax for uint64, so its order is mapped to int64's."""
    if flat.dtype != torch.uint64:
        low, high = torch.aminmax(flat)
        return int(low.item()), int(high.item())
    low, high = torch.aminmax(flat.view(torch.int64).bitwise_xor(-(2**63)))
    return int(low.item()) + 2**63, int(high.item()) + 2**63


def _of_complex(flat: torch.Tensor, names: tuple[str, ...]) -> dict[str, Number]:
    count = flat.numel()
    parts = torch.view_as_real(flat)
    size = torch.hypot(parts[:, 0].double(), parts[:, 1].double())
    mean = [parts[:, i].sum(dtype=torch.float64).item() / count for i in (0, 1)]
    found: dict[str, Number] = {"count": count, "min": size.min().item(), "max": size.max().item(), "mean": mean}
    found["l2norm"] = math.sqrt(sum(_square_sum(c) for c in _chunks(size, _CHUNK_ELEMENTS)))
    if "std" in names and count > 1:
        spread = sum(_square_sum(parts[:, i].double() - mean[i]) for i in (0, 1))
        found["std"] = math.sqrt(spread / (count - 1))
    found["nan"] = int(torch.isnan(parts).any(dim=1).sum().item())
    found["posinf"] = int(torch.isinf(parts).any(dim=1).sum().item())
    found["zero"] = int((size == 0).sum().item())
    return found
