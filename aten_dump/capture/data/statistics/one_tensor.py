"""Statistics of a tensor's elements, defined for every dtype torch has.

Theory of operation
    One tensor at a time, on the program's thread, in the one pass of `one_pass` where that is compiled and knows the
    dtype; else with torch's reductions and threads in float64, in chunks that stay in cache. Small tensors are
    reduced many at a time where that is compiled (`small_tensor_batches`).

    Counts, min and max are exact. Sums are float64 (integers exactly in Python ints where float64 would round). The
    one pass is off by less than 2e-6 of the mean of |x| in the mean, by less than 1e-6 of itself in l2norm, and by
    less than 3e-6 in the std. Signs are counted so that NaN has none. As
    in torch, NaN in a floating tensor makes min, max, mean, l2norm and std NaN; the counts say how many there were.
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

A mask of 4 MB that is expanded over heads and samples is a tensor of gigabytes: nobody makes that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from ....config import SIGNS, STATISTICS
from ....torch_names import DTYPES_WITHOUT_NUMBERS
from ...memory.geometry import covers
from ...torch_internals.addresses import address_of
from .one_pass import CODES, IS_COMPILED, of_memory

_CHUNK_ELEMENTS: Final = 1 << 17  # a MB of float64
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
    else:
        found = _of_real(flat, names)
    return [found.get(name) for name in names]


def of_elements(flat: torch.Tensor, names: tuple[str, ...] = STATISTICS) -> list[Number] | None:
    """Return the statistics `names` of a 1-D tensor of any dtype and device in one pass; None where that cannot be."""
    if not IS_COMPILED or flat.dtype not in CODES or not flat.is_cpu:  # else a copy would be for nothing
        return None
    flat = flat.contiguous()
    return of_memory(flat.dtype, address_of(flat), flat.numel(), names)


def _chunks(flat: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return a 1-D tensor in pieces. (``Tensor.split`` takes 20 us of Python.)."""
    count = flat.numel()
    if count <= _CHUNK_ELEMENTS:
        return (flat,)
    return [flat[start : start + _CHUNK_ELEMENTS] for start in range(0, count, _CHUNK_ELEMENTS)]


def _of_real(flat: torch.Tensor, names: tuple[str, ...]) -> dict[str, Number]:
    count = flat.numel()
    low, high = _limits(flat)
    found: dict[str, Number] = {"count": count, "min": low, "max": high, "nan": 0, "posinf": 0, "neginf": 0}
    if not (math.isfinite(low) and math.isfinite(high)):
        found["nan"] = int(torch.isnan(flat).sum().item())
        found["posinf"] = int((flat == math.inf).sum().item())
        found["neginf"] = int((flat == -math.inf).sum().item())
    if not {"mean", "l2norm", "std"}.isdisjoint(names):
        found |= _moments(flat, max(-low, high), wants_std="std" in names)
    if not SIGNS.isdisjoint(names):
        signs = flat.view(torch.int64) if flat.dtype == torch.uint64 else flat
        nonzero = int(torch.count_nonzero(signs).item()) - found["nan"]
        negative = 0 if low >= 0 else int(torch.count_nonzero(signs < 0).item())
        found.update(zero=count - nonzero - found["nan"], negative=negative, positive=nonzero - negative)
    return found


def _moments(flat: torch.Tensor, greatest: Number, *, wants_std: bool) -> dict[str, Number]:
    """Return mean, l2norm and std of elements none of which is further from zero than the greatest."""
    count = flat.numel()
    is_exact = not flat.is_floating_point() and greatest < _EXACT_IN_INT64  # so the sum of a chunk fits in int64
    sums, squares = [], 0.0
    for chunk in _chunks(flat):
        wide = chunk.double()
        sums.append((chunk.sum(dtype=torch.int64) if is_exact else wide.sum()).item())
        squares += _square_sum(wide)
    mean = (sum(sums) if is_exact or flat.is_floating_point() else math.fsum(sums)) / count
    found: dict[str, Number] = {"mean": mean, "l2norm": math.sqrt(squares)}
    if wants_std and count > 1:
        spread = squares - count * mean * mean
        if not squares / 2 <= spread < math.inf:  # else the mean is no larger than the std: no digits are lost
            spread = sum(_square_sum(chunk.double() - mean) for chunk in _chunks(flat))
        found["std"] = math.sqrt(spread / (count - 1))
    return found


def _square_sum(chunk: torch.Tensor) -> float:
    """Return the sum of squares of float64; inf where it is beyond that (``**`` would raise an error)."""
    norm: float = torch.linalg.vector_norm(chunk).item()
    return norm * norm


def _limits(flat: torch.Tensor) -> tuple[Number, Number]:
    """Return the smallest and greatest element; torch has no aminmax for uint64, so its order is mapped to int64's."""
    if flat.dtype != torch.uint64:
        low, high = torch.aminmax(flat)
        return low.item(), high.item()
    low, high = torch.aminmax(flat.view(torch.int64).bitwise_xor(-(2**63)))
    return int(low.item()) + 2**63, int(high.item()) + 2**63


def _of_complex(flat: torch.Tensor, names: tuple[str, ...]) -> dict[str, Number]:
    count = flat.numel()
    parts = torch.view_as_real(flat)
    size = torch.hypot(parts[:, 0].double(), parts[:, 1].double())
    mean = [parts[:, i].sum(dtype=torch.float64).item() / count for i in (0, 1)]
    found: dict[str, Number] = {"count": count, "min": size.min().item(), "max": size.max().item(), "mean": mean}
    found["l2norm"] = math.sqrt(sum(_square_sum(c) for c in _chunks(size)))
    if "std" in names and count > 1:
        spread = sum(_square_sum(parts[:, i].double() - mean[i]) for i in (0, 1))
        found["std"] = math.sqrt(spread / (count - 1))
    found["nan"] = int(torch.isnan(parts).any(dim=1).sum().item())
    found["posinf"] = int(torch.isinf(parts).any(dim=1).sum().item())
    found["zero"] = int((size == 0).sum().item())
    return found


def seen_once(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor without the dimensions along which it repeats its elements, and how often it has each. Call
    inside `quiet()`.
    """
    times = 1
    if tensor.numel() and not tensor.is_quantized:  # whose scales may go along a dimension
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
                times *= size
    return tensor, times


def of_repeated(found: Mapping[str, Number], times: int) -> dict[str, Number]:
    """Return all statistics of elements that are seen so many times, twice at least, from those of each seen once."""
    many = dict(found)
    count: int = found["count"]
    for name in ("count", "nan", "posinf", "neginf", *SIGNS):
        if found[name] is not None:
            many[name] = found[name] * times
    if found["l2norm"] is not None:
        many["l2norm"] = found["l2norm"] * math.sqrt(times)
    if found["std"] is not None:
        many["std"] = found["std"] * math.sqrt((count - 1) * times / (count * times - 1))
    elif found["max"] is not None:  # one element, which is no way from itself; but for NaN and Inf, which are NaN
        many["std"] = 0.0 * abs(found["max"])
    return many
