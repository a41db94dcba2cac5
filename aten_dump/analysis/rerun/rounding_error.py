"""How far a recorded result is from the reference, in units of what an honest implementation may be off.

Theory of operation
    Both are one op on the same inputs, so all error is made here. The error is the relative L2 norm of recorded
    - reference; the floor is the greater of what the same op in the recorded dtype is off on this machine, and
    what rounding must cost: half a unit in the last place of the result's dtype, and one unit of the
    accumulator's (float32 at the least) times the square root of the number of terms. L2 alone misses one wrong
    element among a million, so the greatest absolute error is judged the same way, and each element's against
    its own size, with LENIENCE, as approximations of exp and the like differ by a few units between devices; the
    worst of these ratios counts.

    Rounding to nearest leaves no mean: a result that is too large throughout by less than its rounding (x1.005 in
    bfloat16) shows in the slope of recorded over reference, which many elements fix far better than one. It is held
    against the slope's own uncertainty and that of an honest implementation; it takes many distinct values.
    Non-finite elements must be at the same places; results that are not
    floating must be equal.

    ratio <= 1  as good as an honest implementation;  ratio > SUSPECT  it computes something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..distance.element_chunks import place_in
from ..distance.metrics import sum_of_products

_PRODUCTS: Final = (
    "mm",
    "conv",
    "linear",
    "matmul",
    "attention",
    "bilinear",
    "einsum",
    "::mv",
    "::dot",
    "rnn",
    "lstm",
    "gru",
)

Floats = NDArray[np.float64]

SUSPECT: Final = 4.0
LENIENCE: Final = 8.0
NOISE: Final = 0.5  # of the root mean square error
_BIAS: Final = 1 / 16  # of a rounding unit
_UNCERTAIN: Final = 3.0  # standard errors of the slope
_DISTINCT: Final = 64  # values that it takes
_TAIL: Final = 2.0  # of the root mean square error: one element of many that are noisy
_MOST_COUNTED: Final = 1 << 20  # elements among which distinct ones are counted
_CHUNK: Final = 1 << 15  # elements that are converted to float64 at a time: they stay in the cache, and wake no threads
_INTEGER_FLOOR: Final = 1e-3  # share of elements of an integer result (an index of equal values) that may differ


@dataclass(frozen=True, slots=True)
class LocalError:
    """The error that one op adds to one result."""

    slot: str
    error: float  # |recorded - reference| / |reference|, L2; share of unequal elements of an integer result
    floor: float  # what an honest implementation may have, in the same unit
    ratio: float  # worst of: L2 error, greatest error, greatest error for its element's size, each over its floor
    max_abs: float  # greatest absolute error
    at: tuple[int, ...]  # where that is
    bit_equal: bool  # recorded and replayed in the recorded dtype are the same, bit by bit
    reason: str = ""  # why the floor is what it is


@dataclass(frozen=True, slots=True)
class _Sums:
    """Norms of a difference, over elements that are finite on both sides."""

    error: float
    reference: float
    max_error: float
    max_reference: float
    at: int
    elementwise: float  # greatest error in units of the honest error of an element of that size
    misplaced: int  # elements whose kind (finite, NaN, +inf, -inf) differs
    dot: float = 0.0  # sum of difference times reference
    uncertainty: float = 0.0  # root of the sum of squares of (difference times reference)

    @property
    def slope(self) -> float:
        """Relative error that all elements have in common."""
        return abs(self.dot) / self.reference**2 if self.reference else 0.0


@dataclass(frozen=True, slots=True)
class _Judged:
    """A result and the reference, and what an honest implementation of the same op is off."""

    recorded: torch.Tensor
    reference: torch.Tensor
    found: _Sums
    honest: _Sums | None  # None where the op was not run in the recorded dtype
    rounded_to: torch.dtype  # what the result, or what it is made of, is rounded to
    accumulator: float  # the same of a sum of as many terms as there are

    @property
    def unit(self) -> float:
        """Honest relative error of an element."""
        return _unit(self.rounded_to)

    @property
    def rms(self) -> float:
        """Root mean square of the error."""
        return self.found.error / math.sqrt(max(1, self.recorded.numel()))

    @property
    def floor(self) -> float:
        """The L2 norm that an honest error may have."""
        floor = max(0.5 * self.unit + self.accumulator, 1e-30) * self.found.reference
        smallest = _tiny(self.recorded.dtype) * math.sqrt(max(1, self.recorded.numel()))
        return max(floor, smallest, 0.0 if self.honest is None else self.honest.error)

    def reason(self, terms: float) -> str:
        """Return why the floor is what it is; each element sums up so many terms."""
        is_measured = self.honest is not None and self.honest.error >= self.floor
        name = str(self.recorded.dtype if is_measured else self.rounded_to).removeprefix("torch.")
        if is_measured:
            return f"what the same op in {name} is off on this machine"
        summed = f" of sums of {terms:.0f} terms" if terms >= 2 and self.accumulator > 0.5 * self.unit else ""
        return f"rounding to {name}{summed}"

    def of_norm(self) -> float:
        """Return the L2 norm of the error over its floor."""
        return self.found.error / self.floor

    def of_greatest(self) -> float:
        """Return the greatest error over its floor; of elements that are all noisy one is noisier than the others."""
        floor = max(self.unit + self.accumulator, 1e-30) * self.found.max_reference
        floor = max(floor, _tiny(self.recorded.dtype), 0.0 if self.honest is None else self.honest.max_error)
        ratio = self.found.max_error / floor
        return ratio if ratio <= SUSPECT else self.found.max_error / max(floor, _TAIL * self.rms)

    def of_element(self) -> float:
        """Return the greatest error for its element's size; where all are noisy (rounded sums), small ones are."""
        allowed = LENIENCE * max(1.0, 0.0 if self.honest is None else self.honest.elementwise)
        ratio = self.found.elementwise / allowed
        if ratio <= SUSPECT:
            return ratio
        least = _least(self.recorded, self.reference, self.accumulator) + NOISE * self.rms
        return _sums(self.recorded, self.reference, self.unit, least).elementwise / allowed

    def of_slope(self) -> float:
        """Return the error that all elements have in common, over what an honest implementation may have."""
        found, count = self.found, self.reference.numel()
        if not found.reference or count < _DISTINCT:
            return 0.0
        honest = 0.0 if self.honest is None else 2.0 * self.honest.slope
        allowed = max(_BIAS * self.unit, LENIENCE * self.accumulator, honest)
        uncertain = _UNCERTAIN * found.uncertainty / found.reference**2
        if found.slope <= SUSPECT * max(allowed, uncertain):
            return found.slope / max(allowed, uncertain)
        distinct = int(_flat(self.reference)[:_MOST_COUNTED].unique().numel())
        if distinct < _DISTINCT:
            return 0.0
        repeated = math.sqrt(max(1.0, min(count, _MOST_COUNTED) / distinct))
        return found.slope / max(allowed, uncertain * repeated)

    @property
    def is_misplaced(self) -> bool:
        """True when NaN or Inf stand where an honest implementation has none."""
        honest = 0 if self.honest is None else self.honest.misplaced
        return self.found.misplaced > honest

    def ratio(self) -> float:
        """Return the worst of the four ratios."""
        if self.is_misplaced:
            return math.inf
        ratio = max(self.of_norm(), self.of_greatest(), self.of_element())
        return ratio if ratio > SUSPECT else max(ratio, self.of_slope())


def measure(
    slot: str, recorded: torch.Tensor, native: torch.Tensor | None, reference: torch.Tensor, rounding: Rounding
) -> LocalError:
    """Judge one floating result.

    Args:
        slot: its name.
        recorded: what the program got.
        native: the op replayed in the recorded dtype; None where that failed.
        reference: the op replayed in float64, or `native` where that is all there is.
        rounding: what rounding costs an honest implementation.
    """
    coarsest = max((recorded.dtype, rounding.dtype or recorded.dtype), key=_unit)
    unit = _unit(coarsest)
    accumulator = min(unit, torch.finfo(torch.float32).eps / 2) * math.sqrt(rounding.terms)
    least = _least(recorded, reference, accumulator)
    found = _sums(recorded, reference, unit, least)
    honest = None if native is None else _sums(native, reference, unit, least)
    judged = _Judged(recorded, reference, found, honest, coarsest, accumulator)
    scale = found.reference or 1.0
    bit_equal = native is not None and _equal_bits(recorded, native)
    at = place_in(recorded.shape, found.at)
    return LocalError(
        slot, found.error / scale, judged.floor / scale, judged.ratio(), found.max_error, at, bit_equal,
        judged.reason(rounding.terms),
    )  # fmt: skip


def _least(recorded: torch.Tensor, reference: torch.Tensor, accumulator: float) -> float:
    """Return the honest absolute error of any element, however small it is."""
    return accumulator * _greatest(reference) + _tiny(recorded.dtype)


def measure_exact(slot: str, recorded: Any, replayed: Any) -> LocalError:
    """Judge a result that is not floating: a mask, an index, a plain number."""
    if isinstance(recorded, torch.Tensor) and isinstance(replayed, torch.Tensor):
        one, other = _plain(recorded), _plain(replayed)
        if one.shape != other.shape or one.dtype != other.dtype:
            return LocalError(slot, 1.0, _INTEGER_FLOOR, math.inf, math.inf, (), False)
        unequal = one != other
        count = int(unequal.sum())
        share = count / max(1, one.numel())
        first = int(unequal.reshape(-1).to(torch.uint8).argmax()) if count else 0
        ratio = max(share / _INTEGER_FLOOR, SUSPECT / 2) if count else 0.0
        size = float((one.double() - other.double()).abs().max()) if count else 0.0
        return LocalError(slot, share, _INTEGER_FLOOR, ratio, size, place_in(one.shape, first), not count)
    if isinstance(recorded, torch.Tensor) or isinstance(replayed, torch.Tensor):
        return LocalError(slot, 1.0, _INTEGER_FLOOR, math.inf, math.inf, (), False)
    same = bool(recorded == replayed or (recorded != recorded and replayed != replayed))
    return LocalError(slot, 0.0 if same else 1.0, _INTEGER_FLOOR, 0.0 if same else math.inf, 0.0, (), same)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.int_repr()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _unit(dtype: torch.dtype) -> float:
    """Unit roundoff: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def _tiny(dtype: torch.dtype) -> float:
    """Distance of the smallest numbers: below it no two numbers differ, and kernels may flush to zero."""
    info = torch.finfo(dtype)
    return 2.0**-24 if dtype == torch.float16 else info.tiny  # the range of float16 is short: subnormals matter


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = _plain(tensor.detach()).resolve_conj().resolve_neg().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor)
    return tensor.reshape(-1)


def _greatest(reference: torch.Tensor) -> float:
    """Return the greatest finite absolute value."""
    return max((_greatest_of(chunk.double()) for chunk in _flat(reference).split(_CHUNK) if chunk.numel()), default=0.0)


def _greatest_of(chunk: torch.Tensor) -> float:
    found = float(np.abs(chunk.numpy()).max())
    return found if math.isfinite(found) else float(torch.nan_to_num(chunk, 0.0, 0.0, 0.0).abs().max())


@np.errstate(all="ignore")
def _sums(found: torch.Tensor, reference: torch.Tensor, unit: float, least: float) -> _Sums:
    """Add up errors chunk by chunk, so that little memory is needed beyond the tensors.

    Args:
        found: the result.
        reference: what it should be.
        unit: honest relative error of an element.
        least: honest absolute error of any element.
    """
    one, other = _flat(found), _flat(reference)
    error = norm = greatest = highest = elementwise = dot = spread = 0.0
    at = misplaced = 0
    narrows = other.dtype != one.dtype and one.dtype.itemsize < 8
    limit = torch.finfo(one.dtype).max if narrows else math.inf
    for start in range(0, one.numel(), _CHUNK):
        x, y, wrong = _finite(one[start : start + _CHUNK], other[start : start + _CHUNK], limit)
        misplaced += wrong
        signed, size = x - y, np.abs(y)
        error += sum_of_products(signed, signed)
        norm += sum_of_products(y, y)
        products = signed * y
        dot += float(products.sum())
        spread += sum_of_products(products, products)
        difference = np.abs(signed, out=signed)
        worst = int(difference.argmax())
        if difference[worst] > greatest:
            greatest, at = float(difference[worst]), start + worst
        elementwise = max(elementwise, float((difference / (unit * size + least)).max()))
        highest = max(highest, float(size.max()))
    return _Sums(
        math.sqrt(error), math.sqrt(norm), greatest, highest, at, elementwise, misplaced, dot, math.sqrt(spread)
    )


def _finite(found: torch.Tensor, reference: torch.Tensor, limit: float) -> tuple[Floats, Floats, int]:
    """Return results and references in float64, both 0 where one is not finite.

    Args:
        found: results.
        reference: what they should be.
        limit: beyond this a reference is infinite in the dtype of the results.

    Returns:
        The two, and at how many places they are not of one kind.
    """
    x, y = found.double(), reference.double()
    wide_x: Floats = x.numpy()
    wide_y: Floats = y.numpy()
    is_finite = math.isfinite(sum_of_products(wide_x, wide_x)) and math.isfinite(sum_of_products(wide_y, wide_y))
    if is_finite and (limit == math.inf or np.abs(wide_y).max() <= limit):
        return wide_x, wide_y, 0
    if limit < math.inf:
        y = torch.where(y.abs() > limit, y.to(found.dtype).double(), y)
    fine = torch.isfinite(x), torch.isfinite(y)
    finite = fine[0] & fine[1]
    kinds = torch.nan_to_num(x, 1.0, 2.0, 3.0), torch.nan_to_num(y, 1.0, 2.0, 3.0)
    wrong = ~finite & ((fine[0] != fine[1]) | (kinds[0] != kinds[1]))
    return torch.where(finite, x, 0.0).numpy(), torch.where(finite, y, 0.0).numpy(), int(wrong.sum())


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    from .run_op import same_bits

    return same_bits(one, other.cpu())


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding costs an honest implementation of an op."""

    terms: float = 1.0  # that one element of the result sums up
    dtype: torch.dtype | None = None  # what the op may round to on the way, where that is coarser than the result


def terms_of(op: str, inputs: list[int], outputs: int) -> float:
    """Guess how many terms `op` adds up per element of its result, from the numbers of elements it reads and makes."""
    sizes = sorted(inputs, reverse=True)
    if not sizes or not outputs:
        return 1.0
    if len(sizes) > 1 and is_product(op):
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / outputs))
    return max(1.0, sizes[0] / outputs)


def is_product(op: str) -> bool:
    """Return True if an op multiplies tensors and adds up: a product of matrices, a convolution, attention."""
    return any(name in op for name in _PRODUCTS)
