"""How close two recorded values are, by the best data that both have: tensors, else statistics, else hashes.

Where one side has bytes, and the other a hash or statistics alone, these are taken of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal

import torch

from ...config import SIGNS
from ...dump import Value
from ...dump.value_statistics import Number
from ...errors import MissingDataError
from ...store.records import LAYOUTS
from ...store.writing.checksums import HASHES
from .metrics import Measured, Metrics, measure

Level = Literal["tensor", "statistic", "hash", "none"]
Statistics = Mapping[str, Number]

_COUNTS: Final = ("nan", "posinf", "neginf")
_COMPOSED: Final = 1e-6  # statistics of parts put together, or by another tool, are rounded otherwise


@dataclass(frozen=True, slots=True)
class Factor:
    """How many times the baseline's statistics the target's are."""

    number: float
    left: float  # the greatest difference, over the rms, when the target is divided by it
    count: int  # elements


@dataclass(frozen=True, slots=True)
class Closeness:
    """What was found about a pair of values; dtype, shape and layout are ``(target, baseline)`` where unequal."""

    level: Level
    bitwise: bool = False
    error: float | None = None  # relative L2 of tensors; of statistics the greatest difference over the rms
    metrics: Metrics | None = None
    nonfinite: bool = False  # NaN or Inf at other places, or other counts of them
    dtype: tuple[str, str] | None = None
    shape: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    layout: tuple[str, str] | None = None
    reason: str = ""  # why there is nothing to say, or less than the data level promises
    undefined: bool = False  # as all of it may depend on memory that nothing had written
    factor: Factor | None = None  # of statistics that differ

    @property
    def known(self) -> bool:
        """True when the contents were compared, or need not be as the shapes differ."""
        return self.level != "none" or self.bitwise or self.shape is not None


def closeness(target: Value, baseline: Value, *, data: bool = True, known: Measured | None = None) -> Closeness:
    """Compare two values.

    Args:
        target: a value of the dump in question.
        baseline: its counterpart.
        data: read tensors where there are any; False leaves it at hashes and statistics.
        known: what was measured before, and takes what is measured here.
    """
    names = target.dtype_name, baseline.dtype_name
    dtype = names if names[0] != names[1] else None
    shapes = tuple(target.shape), tuple(baseline.shape)
    classes = stride_class(target), stride_class(baseline)
    layout = classes if classes[0] != classes[1] else None
    for value, side in ((target, "target"), (baseline, "baseline")):
        if value.unsettled:
            return Closeness("none", reason=f"the {side}'s tensor {value.absence}")
    if shapes[0] != shapes[1]:
        return Closeness("none", dtype=dtype, shape=shapes, layout=layout)
    found = _contents(target, baseline, data, known)
    return replace(found, dtype=dtype, layout=layout)


def is_of_other_numbers(close: Closeness) -> bool:
    """Return True if of two values one has complex numbers, or integers, and the other has other ones."""
    return close.dtype is not None and len({_numbers_of(name) for name in close.dtype}) == 2


def _numbers_of(dtype: str) -> str:
    if dtype.startswith("complex"):
        return "complex"
    return "integer" if dtype.startswith(("int", "uint", "bool")) else "real"


def _contents(target: Value, baseline: Value, data: bool, known: Measured | None) -> Closeness:
    for value, side in ((target, "target"), (baseline, "baseline")):
        if value.absence:
            return Closeness("none", reason=f"the {side}'s tensor {value.absence}")
    if target.numel == 0:
        return Closeness("none", bitwise=True, error=0.0, reason="it has no elements")
    if same_bits(target, baseline):
        return Closeness(_best_level(target, baseline), bitwise=True, error=0.0)
    hashes = target.hash, baseline.hash
    comparable = None not in hashes and _hashes_comparable(target, baseline)
    if comparable and hashes[0] == hashes[1]:
        return Closeness(_best_level(target, baseline), bitwise=True, error=0.0)
    if data and target.has_data and baseline.has_data:
        return _tensors(target, baseline, known)
    if target.stats is not None and baseline.stats is not None:
        return _statistics(target, baseline, target.stats, baseline.stats)
    if comparable:
        return Closeness("hash", bitwise=False)
    found = _of_bytes(target, baseline) if data else None
    return found or Closeness("none", reason=_nothing_in_common(target, baseline))


def _of_bytes(target: Value, baseline: Value) -> Closeness | None:
    """Compare the bytes of one side with the hash or statistics of the other; None where there are no such."""
    found = _hash_of_bytes(target, baseline)
    if found is not None or (target.stats is None) == (baseline.stats is None):
        return found
    ours = statistics_of(target) if target.stats is None else target.stats
    theirs = statistics_of(baseline) if baseline.stats is None else baseline.stats
    return None if ours is None or theirs is None else _statistics(target, baseline, ours, theirs)


def _hash_of_bytes(target: Value, baseline: Value) -> Closeness | None:
    """Compare the hash of one side with that of the other's bytes; None where there are no such."""
    if (target.hash is None) == (baseline.hash is None) or target.dtype_name != baseline.dtype_name:
        return None
    hashed, read = (baseline, target) if target.hash is None else (target, baseline)
    found = hash_as(read, hashed)
    if found is None:
        return None
    return Closeness("hash", bitwise=True, error=0.0) if found == hashed.hash else Closeness("hash", bitwise=False)


def _nothing_in_common(target: Value, baseline: Value) -> str:
    """Return why two values cannot be compared."""
    kinds = []
    for value, side in ((target, "target"), (baseline, "baseline")):
        has = (("bytes", value.has_data), ("statistics", value.stats is not None), ("a hash", value.hash is not None))
        there = " and ".join(name for name, is_there in has if is_there)
        if not there:
            return f"no data of the {side}'s tensor was recorded"
        kinds.append(f"{there} of the {side}'s")
    return f"recorded were {' and '.join(kinds)}, which cannot be held against each other"


def _best_level(target: Value, baseline: Value) -> Level:
    if target.has_data and baseline.has_data:
        return "tensor"
    if target.hash and baseline.hash:
        return "hash"
    return "statistic" if target.stats is not None and baseline.stats is not None else "tensor"


def _hashes_comparable(target: Value, baseline: Value) -> bool:
    configs = target.rank.config, baseline.rank.config
    return target.dtype_name == baseline.dtype_name and configs[0].get("hash") == configs[1].get("hash")


def same_bits(target: Value, baseline: Value) -> bool:
    """Return True if the index alone shows that two values have the same bytes; False: it may not know."""
    if target.id == baseline.id and target.rank == baseline.rank:
        return True
    one, other = target.data, baseline.data
    if one is None or other is None or (one.offset, one.layout) != (other.offset, other.layout):
        return False
    if LAYOUTS[one.layout : one.layout + 1] not in (("strided",), ("compact",)):
        return False
    a, b = target.record, baseline.record
    if target.dtype_name != baseline.dtype_name or list(a.stride) != list(b.stride) or a.extra or b.extra:
        return False
    if (target.conjugate, target.negative) != (baseline.conjugate, baseline.negative):
        return False
    blobs = target.rank.tables.blobs[one.blob], baseline.rank.tables.blobs[other.blob]
    return blobs[0].nbytes == blobs[1].nbytes and blobs[0].checksum == blobs[1].checksum


def _tensors(target: Value, baseline: Value, known: Measured | None) -> Closeness:
    try:
        found = measure(target, baseline) if known is None else known.measure(target, baseline)
    except MissingDataError as error:
        return Closeness("none", reason=str(error))
    return Closeness("tensor", found.bitwise, found.rel_l2, found, nonfinite=found.nonfinite > 0)


def _statistics(target: Value, baseline: Value, t: Statistics, b: Statistics) -> Closeness:
    """Compare statistics: of each the difference, over the root mean square of the baseline."""
    common = [name for name in b if name != "count" and t.get(name) is not None and b[name] is not None]
    if not common:
        return Closeness("none", reason="both have no statistic in common")
    if all(_equal(t[name], b[name]) for name in common):
        return Closeness("statistic", bitwise=False, error=0.0, reason="equal statistics")
    nonfinite = any(name in common and t[name] != b[name] for name in _COUNTS)
    pairs: dict[str, tuple[Any, Any]] = {
        name: (t[name], b[name]) for name in common if name not in SIGNS and name not in _COUNTS
    }
    finite = {name: both for name, both in pairs.items() if all(math.isfinite(abs(one)) for one in both)}
    nonfinite = nonfinite or any(not _equal(*both) for name, both in pairs.items() if name not in finite)
    scale = _scale(b, baseline.numel)
    error = _apart(finite, scale, baseline.numel)
    of_bytes = target.stats is None or baseline.stats is None
    if error <= _COMPOSED and (of_bytes or target.composed or baseline.composed or _recorders_differ(target, baseline)):
        error = 0.0
    return Closeness("statistic", error=error, nonfinite=nonfinite, factor=_factor(t, finite, scale, baseline.numel))


def _apart(pairs: Mapping[str, tuple[Any, Any]], scale: float, count: int, factor: float = 1.0) -> float:
    """Return the greatest difference of some statistics, over the rms of the baseline's values."""
    errors = [0.0]
    for name, (one, other) in pairs.items():
        size = scale * math.sqrt(max(count, 1)) if name == "l2norm" else scale
        size = max(size, abs(other)) if name in ("min", "max") else size
        apart = abs(one / factor - other)
        errors.append(apart / size if size else math.inf if apart else 0.0)
    return max(errors)


def _factor(stats: Statistics, pairs: Mapping[str, tuple[Any, Any]], scale: float, count: int) -> Factor | None:
    """Return how many times the baseline's values the target's are, as far as statistics show; None if one is zero."""
    ours = _scale(stats, count)
    if not ours or not scale:
        return None
    number = ours / scale
    return Factor(number, _apart(pairs, scale, count, number), count)


def equal_but_for_order(target: Value, baseline: Value, close: Closeness) -> bool:
    """Return True if two values' statistics are the same but for what rounds where sums are taken in another order.

    So they are of one tensor that lies otherwise, was on another device or met another number of threads.
    """
    if close.level != "statistic" or close.nonfinite or close.error is None or close.error > _COMPOSED:
        return False
    t, b = target.stats, baseline.stats
    exact = ("min", "max", *SIGNS, *_COUNTS)
    return t is not None and b is not None and all(_equal(t.get(name), b.get(name)) for name in exact)


def equal_but_for_dtype(target: Value, baseline: Value, close: Closeness) -> bool:
    """Return True if the statistics of one value are what the other's become when it is rounded to the coarser dtype.

    Rounding keeps the order of elements: the ends are the other's, rounded. No sum moves by more than its terms.
    """
    if close.level != "statistic" or close.dtype is None or close.nonfinite or close.error is None:
        return False
    if not (target.is_floating and baseline.is_floating):
        return False
    fine, coarse = sorted((target, baseline), key=lambda value: torch.finfo(value.dtype).eps)
    rounded, found = (torch.tensor(_ends(value), dtype=coarse.dtype) for value in (fine, coarse))
    return close.error <= torch.finfo(coarse.dtype).eps and len(found) == 2 and torch.equal(rounded, found)


def _ends(value: Value) -> list[float]:
    """Return the least and the greatest element, where the statistics have them."""
    stats: Mapping[str, Number] = value.stats or {}
    return [end for name in ("min", "max") if isinstance(end := stats.get(name), float)]


def _recorders_differ(target: Value, baseline: Value) -> bool:
    """Return True if another tool computed the statistics of one side, in a dtype and order of its own."""
    return target.rank.config.get("source") != baseline.rank.config.get("source")


def _equal(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)


def _scale(stats: Statistics, count: int) -> float:
    norm = abs(stats.get("l2norm") or 0.0)
    if norm and math.isfinite(norm) and count:
        return norm / math.sqrt(count)
    ends = [abs(stats.get(name) or 0.0) for name in ("min", "max")]
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def stride_class(value: Value) -> str:
    """Return how a tensor lies in memory: contiguous, channels_last, permuted, expanded, overlapping, with holes."""
    if value.layout_name != "strided":
        return value.layout_name
    sizes = [(size, step) for size, step in zip(value.shape, value.stride, strict=False) if size != 1]
    if value.numel == 0 or not sizes:
        return "contiguous"
    if any(step == 0 for _, step in sizes):
        return "expanded"
    dense, expected = True, 1
    for size, step in sorted(sizes, key=lambda pair: pair[1]):
        dense, expected = dense and step == expected, step * size
    falling = all(one[1] >= other[1] for one, other in pairwise(sizes))
    if falling:
        return "contiguous" if dense else "with holes"
    order = sorted(range(len(value.shape)), key=lambda dim: -value.stride[dim])
    if dense and len(order) in (4, 5) and order == [0, *range(2, len(order)), 1]:
        return "channels_last"
    return "permuted" if dense else "permuted, with holes"


def hash_as(value: Value, other: Value) -> str | None:
    """Return the hash of a value's elements by the algorithm of the dump that another value is of.

    Returns:
        None if aten_dump lacks that algorithm, or the bytes of a value are missing or not contiguous.
    """
    digest = HASHES.get(str(other.rank.config.get("hash")))
    elements = None if digest is None else _elements(value)
    return None if digest is None or elements is None else digest(elements.view(torch.uint8).numpy().data).hex()


def statistics_of(value: Value) -> dict[str, Number] | None:
    """Return the statistics of a value's elements, as `one_tensor` of the recorder defines them.

    Returns:
        None of complex numbers, and where a value's bytes are not there or not in a row of elements.
    """
    elements = _elements(value)
    if elements is None or elements.is_complex():
        return None
    x = elements.double()
    count, nan = x.numel(), int(x.isnan().sum())
    return {
        "count": count,
        "min": math.nan if nan else x.min().item(),
        "max": math.nan if nan else x.max().item(),
        "mean": x.mean().item(),
        "l2norm": torch.linalg.vector_norm(x).item(),
        "std": x.std().item() if count > 1 else None,
        "nan": nan,
        "posinf": int((x == math.inf).sum()),
        "neginf": int((x == -math.inf).sum()),
        "zero": int((x == 0).sum()),
        "negative": int((x < 0).sum()),
        "positive": int((x > 0).sum()),
    }


def _elements(value: Value) -> torch.Tensor | None:
    """Return a value's elements in row-major order, at least one, with conj and neg bits applied."""
    if not value.has_data or value.layout_name != "strided" or not value.numel:
        return None
    try:
        return value.tensor().resolve_conj().resolve_neg().contiguous().reshape(-1)
    except (MissingDataError, RuntimeError):
        return None
