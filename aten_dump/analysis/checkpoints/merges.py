"""Weights that were computed of others: adapters merged in, norms folded into the layer before or after.

Theory of operation
    One side has a weight W and parts that the other side lacks; the other side has W'. Of an adapter W' - W is s B A
    with one factor s, which least squares give. Of a folded norm each row (or column) of W' is that of W times a factor
    of its own, and the factors are those of a norm: its weight, or weight / sqrt(variance + eps), with one eps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np

from .found_weights import Names
from .layouts import Apart, as_float64, unit
from .profiles import Array, Profile

_MOST_CANDIDATES: Final = 16
_MOST_EPS: Final = 0.1
_SIMILAR: Final = 5e-3  # of the largest factor: how far factors, which are ratios of norms, may be from a norm's
_MOST_DIFFERING: Final = 1e-4  # of the elements: the merge itself was rounded
_MOST_LEFT: Final = 0.35  # of an adapter's update, that is not explained by it: a low rank one explains all


@dataclass(frozen=True, slots=True)
class Merge:
    """What a weight was computed of beside its counterpart."""

    parts: tuple[Profile, ...]
    scale: float
    apart: Apart


def adapter_of(tensor: Profile, other: Profile, spare: Sequence[Profile], names: Names) -> Merge | None:
    """Return the adapter that leads from one weight to the other, of matrices that one side lacks, or None.

    Args:
        tensor: in which the adapter was merged, or not.
        other: its counterpart.
        spare: matrices that one of both sides has and the other lacks.
        names: choose among them.
    """
    if len(tensor.shape) != 2 or tensor.shape != other.shape:
        return None
    candidates = list(_factors(tensor, other, spare, names))
    if not candidates:
        return None
    found, wanted = as_float64(tensor.read()), as_float64(other.read())
    update = found - wanted
    for one, two in candidates:
        for product, terms in _products(as_float64(one.read()), as_float64(two.read()), update.shape):
            scale = float((product * update).sum()) / (float((product**2).sum()) or 1.0)
            sizes = np.maximum(np.abs(found), np.maximum(np.abs(wanted), abs(scale) * terms))
            apart = Apart(allowed=2.0 + min(one.shape))  # each term of a product is rounded
            units_at = partial(unit, sizes, (tensor.exact_in, other.exact_in))
            apart.add(found, wanted + scale * product, units_at, np.arange(len(found)))
            left = float(((update - scale * product) ** 2).sum()) / max(float((update**2).sum()), 1e-300)
            if left <= _MOST_LEFT and apart.differing <= _MOST_DIFFERING * apart.elements:
                return Merge((one, two), scale, apart)
    return None


def _factors(
    tensor: Profile, other: Profile, spare: Sequence[Profile], names: Names
) -> Iterator[tuple[Profile, Profile]]:
    """Yield pairs of matrices whose product has the shape of a weight, the likeliest by name first."""
    rows, columns = tensor.shape
    matrices = [one for one in spare if len(one.shape) == 2 and min(one.shape) < min(rows, columns)]
    pairs = [
        (one, two)
        for one, two in permutations(matrices, 2)
        if {rows, columns} <= {*one.shape, *two.shape} and set(one.shape) & set(two.shape)
        and _are_twins(one.name, two.name)
    ]  # fmt: skip

    def likely(pair: tuple[Profile, Profile]) -> float:
        return max(names.closeness(weight.name, pair[0].name) for weight in (tensor, other))

    yield from sorted(pairs, key=likely, reverse=True)[:_MOST_CANDIDATES]


def _are_twins(one: str, other: str) -> bool:
    """Return True if two names differ in one part, as those of ``lora_A`` and ``lora_B`` do."""
    ours, theirs = one.split("."), other.split(".")
    return len(ours) == len(theirs) and sum(mine != its for mine, its in zip(ours, theirs, strict=True)) == 1


def _products(one: Array, two: Array, shape: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Yield the products of an adapter's matrices that fit, whichever way these and the weight are kept.

    Each comes with the sum of the sizes of its terms, which is what it was rounded by.
    """
    for down in (one, one.T):
        for up in (two, two.T):
            if up.shape[1] == down.shape[0]:
                made, terms = up @ down, np.abs(up) @ np.abs(down)
                yield from (pair for pair in ((made, terms), (made.T, terms.T)) if pair[0].shape == shape)


def norm_of(factors: Array, spare: Sequence[Profile]) -> tuple[tuple[Profile, ...], str] | None:
    """Return the norm whose factors these are, of vectors that one side lacks, and how it makes them."""
    fitting = [one for one in spare if one.shape == factors.shape]
    for one in fitting:
        scale = as_float64(one.read())
        for text, made in (("", scale), ("1 + ", 1 + scale)):
            if _alike(factors, made):
                return (one,), f"{text}{one.name.rpartition('.')[2]}"
    for weight in fitting:
        for variance in fitting:
            is_norm = weight is not variance and weight.stored.module == variance.stored.module
            eps = _eps(factors, as_float64(weight.read()), as_float64(variance.read())) if is_norm else None
            if eps is not None:
                return (weight, variance), f"weight / sqrt(variance + {eps:.3g})"
    return None


def _alike(one: Array, other: Array) -> bool:
    return bool(np.abs(one - other).max() <= _SIMILAR * np.abs(one).max())


def _eps(factors: Array, weight: Array, variance: Array) -> float | None:
    """Return the eps with which a weight and a variance make factors, or None if they do not."""
    if variance.min() < 0 or not factors.all():
        return None
    eps = float(np.median((weight / factors) ** 2 - variance))
    if not -1e-3 * float(np.median(variance)) <= eps <= _MOST_EPS:
        return None
    made = weight / np.sqrt(variance + max(eps, 0.0))
    return max(eps, 0.0) if np.abs(made - factors).max() <= _SIMILAR * np.abs(factors).max() else None


def folded_bias(
    merged: Profile, plain: Profile, norm: Sequence[Profile], spare: tuple[Sequence[Profile], Sequence[Profile]]
) -> tuple[str, tuple[Profile, ...], str] | None:
    """Return the bias that a folded norm makes, the vectors that it is made of, and how; None if there is none.

    Args:
        merged: the weight that the norm is folded into.
        plain: its counterpart before the norm.
        norm: weight and variance.
        spare: vectors of the side that has the norm, and of the other side.
    """
    if len(norm) != 2:
        return None
    weight, variance = (as_float64(one.read()) for one in norm)
    module = norm[0].stored.module
    beside = [one for one in spare[0] if one.shape == norm[0].shape and one.stored.module == module]
    own: list[Profile | None] = [one for one in spare[0] if one.stored.module == plain.stored.module]
    for result in (one for one in spare[1] if one.stored.module == merged.stored.module and one.shape == weight.shape):
        wanted = as_float64(result.read())
        for mean, shift in permutations(beside, 2):
            for bias in (*(one for one in own if one is not None and one.shape == weight.shape), None):
                before = 0.0 if bias is None else as_float64(bias.read())
                center, moved = as_float64(mean.read()), as_float64(shift.read())
                made = (before - center) * weight / np.sqrt(variance + 1e-5) + moved
                if np.linalg.norm(made - wanted) <= _SIMILAR * np.linalg.norm(wanted):
                    parts = (shift, mean) if bias is None else (shift, mean, bias)
                    return result.name, parts, "the bias of the merged norm"
    return None
