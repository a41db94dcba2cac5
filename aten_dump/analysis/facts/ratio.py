"""Finds if one tensor is a simple number times the other: a factor of 2, 1/8 or sqrt(1/32) names its bug by itself."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import torch

from ...dump import Value
from ...torch_names import DTYPES_WITHOUT_NUMBERS
from ..distance.element_chunks import common_order, pairs

Elements = torch.Tensor | Value

_MOST: Final = 1 << 24  # of a whole number, or one over it
_MOST_PARTS: Final = 64  # the greatest denominator of another fraction
_MOST_ROOT: Final = 4096  # under a root
_APART: Final = 0.25  # part of the distance to the next such number that rounding may take
_ROUNDINGS: Final = 2  # error of an element, in eps of the coarser dtype


def simple_ratio(target: Elements, baseline: Elements) -> str:
    """Return the factor of the target over the baseline, for all elements; "" if it is 1 or no simple number.

    Args:
        target: a tensor, or a value, which is read a chunk at a time.
        baseline: the same.

    Returns:
        ``"2"``, ``"-1"``, ``"1/8"``, ``"3/2"``, ``"sqrt(1/32)"``.
    """
    if tuple(target.shape) != tuple(baseline.shape) or not _has_numbers(target) or not _has_numbers(baseline):
        return ""
    eps = max(torch.finfo(one.dtype).eps for one in (target, baseline))
    order = common_order(target, baseline)
    product = norm = nonzero = 0.0
    for _, ours, theirs in pairs(target, baseline, order):
        one, other = ours.double(), theirs.double()
        product += float(one.dot(other))
        norm += float(other.dot(other))
        nonzero += int((other != 0).sum())
    if not math.isfinite(norm) or norm == 0 or nonzero < min(2, math.prod(target.shape)):
        return ""
    for number, text in simple_numbers(product / norm, eps):
        allowed = _ROUNDINGS * eps * abs(number)
        chunks = ((ours.double(), theirs.double()) for _, ours, theirs in pairs(target, baseline, order))
        if all(bool(((one - number * other).abs() <= allowed * other.abs()).all()) for one, other in chunks):
            return text
    return ""


def ratio_sentence(target: Elements, baseline: Elements) -> str:
    """Return a sentence about the factor, or "" if there is none."""
    ratio = simple_ratio(target, baseline)
    return f"The target is exactly {ratio} times the baseline" if ratio else ""


def _has_numbers(source: Elements) -> bool:
    count = source.numel if isinstance(source, Value) else source.numel()
    dtype = source.dtype
    is_plain = source.layout is torch.strided and dtype.is_floating_point and count > 0
    return is_plain and dtype not in DTYPES_WITHOUT_NUMBERS


def simple_numbers(measured: float, eps: float) -> list[tuple[float, str]]:
    """Return the simple numbers other than 1 that are near a measured one, with their names.

    Args:
        measured: a ratio.
        eps: half of the relative tolerance.
    """
    if not math.isfinite(measured) or measured == 0:
        return []
    found = []
    sign, size = ("-", -measured) if measured < 0 else ("", measured)
    rounding = _ROUNDINGS * eps
    whole, inverse, square = round(size), round(1 / size), size * size
    candidates = [(Fraction(whole), False, _is_apart(whole, rounding))]
    if inverse:
        candidates.append((Fraction(1, inverse), False, _is_apart(inverse, rounding)))
    fraction = Fraction(size).limit_denominator(_MOST_PARTS)
    candidates.append((fraction, False, fraction.denominator**2 * size * rounding < _APART))
    for root in (Fraction(round(square)), Fraction(1, round(1 / square)) if round(1 / square) else Fraction(0)):
        greatest = max(root.numerator, root.denominator)
        candidates.append((root, True, greatest <= _MOST_ROOT and 2 * greatest * rounding < _APART))
    for fraction, is_root, is_clear in candidates:
        exact = math.sqrt(fraction) if is_root else float(fraction)
        if is_clear and exact and (exact != 1 or sign) and abs(exact - size) <= rounding * size:
            text = f"sqrt({fraction})" if is_root else str(fraction)
            found.append((math.copysign(exact, measured), f"{sign}{text}"))
    return found


def _is_apart(number: int, rounding: float) -> bool:
    """True if rounding cannot confuse a whole number with its neighbours; powers of two are the usual ones."""
    return 0 < number <= _MOST and (number * rounding < _APART or number & (number - 1) == 0)
