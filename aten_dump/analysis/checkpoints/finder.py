"""Find which weight of a target became which of a baseline.

Theory of operation
    What is equal to the bit is found by checksums. Of the rest each tensor is read once for its profile. The vectors of
    each target's tensor are then looked up among the baseline's, which says how it is laid out there; its elements are
    held against their counterparts. What has few vectors of its own follows its sibling: a bias is permuted as the
    weight of its module is. What is left may have been computed of several tensors (an adapter, a norm). Names decide
    only what an altered tensor is held against, and between tensors that have the same contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np
import torch

from .descriptions import is_suspicious, layout_texts, noun_of, part_text, ranges_text, rounding_text
from .found_weights import Names, Weight
from .layouts import Apart, Layout, Piece, as_float64, check, find_layout, unit
from .merges import Merge, adapter_of, folded_bias, norm_of
from .profiles import Array, Profile, View, digest_of, is_alike, profile
from .stored_tensors import Checkpoint, StoredTensor
from .vector_table import Indexes, VectorTable

_MOST_DIMENSIONS: Final = 4
_CHUNK: Final = 1 << 22

_ELEMENTS = View((0,), ())

_MOST: Final = 1 << 26  # elements
_LEAST: Final = 4  # elements that a sequence is known by
_RATIO: Final = 1e-2  # a sequence in bfloat16 is as exact

Progress = Callable[[int, int], None]
_MOST_PAIRS: Final = 1 << 16
_NEAR: Final = 1.5  # closeness of names from which on an altered tensor is held against another
_SAME_NORM: Final = 1e-5  # relative
_TIED: Final = "equal, a copy (tied or replicated)"
_UNRELATED: Final = 0.9  # relative L2 of tensors that have nothing in common


class Finder:
    """Which weight became which; what is not found yet is `open`, on both sides."""

    def __init__(self, target: Checkpoint, baseline: Checkpoint, progress: Progress | None = None) -> None:
        self.found: list[Weight] = []
        self._sides = target, baseline
        self._names = Names()
        self._progress = progress or (lambda done, total: None)
        self._open: tuple[dict[str, StoredTensor], ...] = dict(target.tensors), dict(baseline.tensors)
        self._profiles: tuple[dict[str, Profile], ...] = {}, {}
        self._digests: tuple[dict[str, str], ...] = {}, {}
        self._covered: dict[str, dict[View, set[int]]] = {}  # of tensors of the baseline: which vectors were found
        self._merged: set[str] = set()  # norms that are merged into a weight: they may be in several
        self._layouts: dict[str, Layout] = {}  # of tensors of the target that are open

    def run(self) -> list[Weight]:
        """Find all; call it once."""
        self._take_equal()
        self._read()
        self._take_laid_out()
        self._take_siblings()
        self._take_folded()
        self._take_adapters()
        self._take_scrambled()
        self._take_altered()
        self._take_rest()
        return self.found

    # -- equal to the bit

    def _take_equal(self) -> None:
        total = sum(len(side.tensors) for side in self._sides)
        for number, side in enumerate(self._sides):
            for name, stored in side.tensors.items():
                self._digests[number][name] = digest_of(stored)
                self._progress(sum(map(len, self._digests)), 2 * total)
        alike: dict[str, tuple[list[str], list[str]]] = {digest: ([], []) for digest in self._digests[0].values()}
        for number in range(2):
            for name, digest in self._digests[number].items():
                if digest in alike:
                    alike[digest][number].append(name)
        groups = [group for group in alike.values() if group[1]]
        for ours, theirs in sorted(groups, key=lambda group: len(group[0]) * len(group[1])):
            for weight in _paired_equal(ours, theirs, self._names):
                self._take(weight)

    def _take(self, weight: Weight) -> None:
        self.found.append(weight)
        for one in weight.target:
            self._open[0].pop(one, None)
            for other in weight.baseline:
                self._names.learn(one, other)
        for other in weight.baseline:
            self._open[1].pop(other, None)

    # -- laid out otherwise

    def _read(self) -> None:
        total = sum(map(len, self._open))
        for number, some in enumerate(self._open):
            for name, stored in some.items():
                self._profiles[number][name] = profile(stored)
                self._progress(total + sum(map(len, self._profiles)), 2 * total)

    def _take_laid_out(self) -> None:
        ours, theirs = ([self._profiles[number][name] for name in self._open[number]] for number in range(2))
        table = VectorTable(theirs, max((one.rounding for one in ours), default=0.0))
        waits: list[Layout] = []
        for tensor in sorted(ours, key=lambda one: -len(one.shape)):
            if len(tensor.shape) > 2 and self._take_turned(tensor):
                continue
            layout = find_layout(tensor, table, partial(self._likely, tensor.name))
            if layout is None:
                continue
            self._layouts[tensor.name] = layout
            if any(piece.factor is None for piece in layout.pieces):
                continue
            apart = check(layout)
            if apart.differing or len(layout.unknown):
                waits.append(layout)
            else:
                self._take_layout(layout, apart)
        for layout in waits:
            if layout.share > 1 / 2:
                self._take_partly(layout)

    def _take_turned(self, tensor: Profile) -> bool:
        """Take a tensor of three and more dimensions that has those of another in another order, if it is one."""
        for name in list(self._open[1]):
            other = self._profiles[1][name]
            if sorted(other.shape) == sorted(tensor.shape) and is_alike(tensor, other):
                weight = compare_named(tensor, other)
                if weight.accounted:
                    self._take(weight)
                    return True
        return False

    def _likely(self, target: str, source: Profile) -> float:
        return self._names.closeness(target, source.name) - (3.0 if source.name not in self._open[1] else 0.0)

    def _take_layout(self, layout: Layout, apart: Apart) -> None:
        sources = list({piece.source.name: piece.source for piece in layout.pieces}.values())
        described = dict(layout_texts(layout))
        rounded = rounding_text(apart, layout.tensor, sources)
        described |= dict([rounded] if rounded else [])
        self._cover(layout)
        self._take(
            Weight(
                (layout.tensor.name,), tuple(one.name for one in sources), tuple(described) or ("equal",),
                _joined(described), not is_suspicious(described), ulp=apart.ulp,
                relative_l2=apart.relative_l2, differing=0, elements=layout.tensor.stored.numel,
                part=part_text(layout),
            )
        )  # fmt: skip

    def _cover(self, layout: Layout) -> None:
        for piece in layout.pieces:
            views = self._covered.setdefault(piece.source.name, {})
            views.setdefault(piece.view, set()).update(piece.indexes.tolist())

    def _take_partly(self, layout: Layout) -> None:
        """Take a tensor of which most vectors were found: the others are altered, or the baseline lacks them."""
        layout = self._layouts[layout.tensor.name] = completed(layout)
        measured = check(layout)
        self._cover(layout)
        sources = list({piece.source.name: piece.source for piece in layout.pieces}.values())
        described = dict(layout_texts(layout))
        text = difference_text(layout, measured)
        self._take(
            Weight(
                (layout.tensor.name,), tuple(one.name for one in sources), ("altered", *described),
                _joined(described | {"altered": text}), False, relative_l2=measured.relative_l2,
                differing=measured.differing, elements=layout.tensor.stored.numel, part=part_text(layout),
            )
        )  # fmt: skip

    def _take_siblings(self) -> None:
        for name in list(self._open[0]):
            tensor = self._profiles[0][name]
            if len(tensor.shape) == 1:
                siblings = [
                    layout
                    for layout in self._layouts.values()
                    if layout.tensor.stored.module == tensor.stored.module and layout.count == tensor.shape[0]
                ]
                spare = [one for one in self._profiles[1].values() if len(one.shape) == 1]
                for sibling in siblings:
                    layout = follow(tensor, sibling, spare)
                    if layout is not None and not (apart := check(layout)).differing:
                        self._take_layout(layout, apart)
                        break

    # -- computed of others

    def _spare(self, number: int) -> list[Profile]:
        """Return what is open on a side, and is no view's counterpart."""
        free = {name for name in self._open[number] if number == 0 or name not in self._covered}
        return [one for name, one in self._profiles[number].items() if name in free | self._merged]

    def _take_folded(self) -> None:
        """Take weights of which each row has a factor of its own, where a norm of one side makes the factors."""
        for name, layout in self._layouts.items():
            if name not in self._open[0] or len(layout.unknown) or len(layout.pieces) != 1:
                continue
            (piece,) = layout.pieces
            if piece.factor is not None or len(piece.given) != layout.count:
                continue
            for number, factors in ((1, piece.factors), (0, 1 / piece.factors)):
                order = piece.given if number == 0 else piece.indexes
                if len(set(order.tolist())) != layout.count:
                    continue
                in_order: Array = np.empty_like(factors)
                in_order[order] = factors
                norm = norm_of(in_order, self._spare(number))
                if norm is not None:
                    self._take_norm(layout, number, *norm)
                    break
        for name, layout in list(self._layouts.items()):
            if name in self._open[0] and any(piece.factor is None for piece in layout.pieces):
                self._take_partly(layout)

    def _take_norm(self, layout: Layout, number: int, norm: tuple[Profile, ...], text: str) -> None:
        """Take a weight that a norm of one side is folded into, and the bias that goes with it."""
        (piece,) = layout.pieces
        noun = noun_of(layout.view, layout.tensor.shape)
        apart = check(layout)
        self._cover(layout)
        names = tuple(one.name for one in norm)
        self._merged.update(names)
        ours, theirs = (layout.tensor.name,), (piece.source.name,)
        side = (ours + names, theirs) if number == 0 else (ours, theirs + names)
        whose = "the baseline" if number == 1 else "the target"
        shown = f"a norm of {whose} is merged: {noun} times {text}"
        self._take(Weight(side[0], side[1], ("merged",), shown, ulp=apart.ulp, differing=apart.differing))
        merged, plain = (layout.tensor, piece.source) if number == 1 else (piece.source, layout.tensor)
        spare = self._spare(number), self._spare(1 - number)
        bias = folded_bias(merged, plain, norm, spare)
        if bias is not None:
            result, parts, how = bias
            made, of = (result,), tuple(one.name for one in parts)
            self._take(Weight(made if number == 1 else of, of if number == 1 else made, ("merged",), how))

    def _take_adapters(self) -> None:
        for name in list(self._open[0]):
            tensor, other = self._profiles[0][name], self._nearest(name)
            if other is None or name not in self._open[0]:
                continue
            merge = adapter_of(tensor, other, self._spare(1), self._names)
            if merge is not None:
                self._take(_merged((name,), (other.name, *(part.name for part in merge.parts)), other.name, merge))
                continue
            merge = adapter_of(other, tensor, self._spare(0), self._names)
            if merge is not None:
                self._take(_merged((name, *(part.name for part in merge.parts)), (other.name,), name, merge))

    # -- altered, extra, missing

    def _nearest(self, name: str, least: float = _NEAR) -> Profile | None:
        """Return the open tensor of the baseline that an altered one is likely to be, by name and shape."""
        tensor = self._profiles[0][name]
        fitting = [
            one
            for one in (self._profiles[1][other] for other in self._open[1])
            if sorted(one.shape) == sorted(tensor.shape) and one.name not in self._covered
        ]
        best = max(fitting, key=lambda one: self._names.closeness(name, one.name), default=None)
        return best if best is not None and self._names.closeness(name, best.name) >= least else None

    def _take_altered(self) -> None:
        pairs = [(name, other) for name in self._open[0] for other in self._open[1]]
        likely = sorted(pairs[: _MOST_PAIRS * 16], key=lambda pair: -self._names.closeness(*pair))
        for name, other in likely:
            if name not in self._open[0] or other not in self._open[1] or other in self._covered:
                continue
            closeness = self._names.closeness(name, other)
            if closeness < _NEAR:
                break
            weight = compare_named(self._profiles[0][name], self._profiles[1][other])
            is_other = weight.relative_l2 is None or weight.relative_l2 > _UNRELATED
            if not is_other or closeness > _NEAR + 2:
                self._take(weight)

    def _take_scrambled(self) -> None:
        """Take tensors that have the elements of another in an order that no view explains: hardly on purpose."""
        for name in list(self._open[0]):
            for other in list(self._open[1]):
                ours, theirs = self._profiles[0][name], self._profiles[1][other]
                if name not in self._open[0] or not ours.stored.numel == theirs.stored.numel > 1:
                    continue
                if len(ours.shape) == 1 and (found := permuted(ours, theirs)) is not None:
                    self._take_layout(*found)
                    continue
                if is_alike(ours, theirs) and abs(ours.norm - theirs.norm) <= _SAME_NORM * theirs.norm:
                    text = "altered: the same elements in another order, which is no order of rows or columns"
                    self._take(Weight((name,), (other,), ("altered", "permuted"), text, False))

    def _take_rest(self) -> None:
        for name, stored in list(self._open[0].items()):
            self._take(_alone(((name,), ()), stored, bool(self._merged)))
        digests = self._digests[1]
        known = {digests[name]: name for name in digests if name not in self._open[1] or name in self._covered}
        for name in [name for name in self._open[1] if name not in self._covered]:
            if digests[name] in known:
                text = f"tied to {known[digests[name]]}, which was found"
                self._take(Weight((), (name,), ("tied",), text))
            else:
                self._take(_alone(((), (name,)), self._open[1][name], bool(self._merged)))
        for name, views in self._covered.items():
            self.found += _left_over(self._profiles[1][name], views)
        order = {name: place for place, name in enumerate((*self._sides[0].tensors, *self._sides[1].tensors))}
        self.found.sort(key=lambda weight: min(order[name] for name in weight.target or weight.baseline))


def _paired_equal(ours: Sequence[str], theirs: Sequence[str], names: Names) -> Iterator[Weight]:
    """Yield pairs of equal tensors, the likeliest names first; what is left of one side is tied to one that is paired.

    Args:
        ours: of the target, all equal.
        theirs: of the baseline, equal to them.
        names: what is known of names.
    """
    pairs = [(one, other) for one in ours for other in theirs][:_MOST_PAIRS]
    if len(pairs) > 1:
        pairs.sort(key=lambda pair: -names.closeness(*pair))
    left, free = dict.fromkeys(ours), dict.fromkeys(theirs)
    for one, other in pairs:
        if one in left and other in free:
            yield Weight((one,), (other,), ("equal",), "equal")
            del left[one], free[other]
    for one in left:
        nearest = max(theirs, key=lambda other: names.closeness(one, other))
        yield Weight((one,), (nearest,), ("equal", "tied"), _TIED)
    for other in free:
        nearest = max(ours, key=lambda one: names.closeness(one, other))
        yield Weight((nearest,), (other,), ("equal", "tied"), _TIED)


def _merged(ours: tuple[str, ...], theirs: tuple[str, ...], base: str, merge: Merge) -> Weight:
    """Return that an adapter is merged on one side; `base` is the weight that it belongs to."""
    parts = " and ".join(part.name.removeprefix(_common(base, part.name)) for part in merge.parts)
    text = f"an adapter is merged, {merge.scale:.4g} times the product of {parts}"
    return Weight(
        ours, theirs, ("merged",), text, ulp=merge.apart.ulp, relative_l2=merge.apart.relative_l2,
        differing=merge.apart.differing, elements=merge.apart.elements,
    )  # fmt: skip


def _alone(names: tuple[tuple[str, ...], tuple[str, ...]], stored: StoredTensor, is_merged: bool) -> Weight:
    """Return what is said of a tensor that one side alone has; of a norm that is merged elsewhere ones are left."""
    ours, theirs = names
    formula = formula_of(stored)
    if not formula and is_merged and len(stored.shape) == 1 and bool((stored.tensor() == 1).all()):
        formula = "all ones, the norm is merged"
    kind = "extra" if ours else "missing"
    side = "the baseline" if ours else "the target"
    text = f"not in {side}"
    if formula:
        return Weight(ours, theirs, (kind, "computed"), f"{text}; holds nothing learned: {formula}")
    return Weight(ours, theirs, (kind,), f"{kind}, {text}", False, elements=stored.numel)


def _left_over(source: Profile, views: dict[View, set[int]]) -> Iterator[Weight]:
    """Yield the vectors of a baseline's tensor that no tensor of the target has."""
    rest = []
    for view, found in views.items():
        left = source.norms(view) > 0
        left[list(found)] = False
        rest.append((int(left.sum()), view, np.flatnonzero(left)))
    count, view, places = min(rest, key=lambda item: item[0])
    if count:
        noun = noun_of(view, source.shape)
        text = f"missing: {noun} {ranges_text(places)} are in no tensor of the target"
        yield Weight((), (source.name,), ("missing",), text, False)


def _joined(texts: Mapping[str, str]) -> str:
    return ", ".join(filter(None, texts.values())) if texts else "equal"


def _common(one: str, other: str) -> str:
    """Return what two names begin with, up to a dot."""
    parts: list[str] = []
    for mine, its in zip(one.split("."), other.split("."), strict=False):
        if mine != its:
            break
        parts.append(mine)
    return ".".join([*parts, ""]) if parts else ""


def formula_of(stored: StoredTensor) -> str:
    """Return what a tensor is made by, such as ``a causal mask``; "" if it may be learned."""
    if not 0 < stored.numel <= _MOST:
        return "no elements" if stored.numel == 0 else ""
    tensor = stored.tensor()
    if tensor.is_complex():
        return ""
    flat = tensor.reshape(-1)
    first = flat[0]
    if bool((flat == first).all()):
        return "all zeros" if not bool(first) else "" if tensor.is_floating_point() else "one number"
    if not tensor.is_floating_point() and bool((flat == torch.arange(flat.numel())).all()):
        return "positions 0, 1, 2, ..."
    square = tensor.squeeze()
    if square.ndim == 2 and square.shape[0] == square.shape[1] and _is_causal(square):
        return "a causal mask"
    return "frequencies of positions" if flat.numel() >= _LEAST and _is_geometric(flat) else ""


def _is_causal(square: torch.Tensor) -> bool:
    lower = torch.ones(square.shape, dtype=torch.bool).tril()
    return all(bool((square[part] == square[part][0]).all()) for part in (lower, ~lower))


def _is_geometric(flat: torch.Tensor) -> bool:
    found = flat.to(torch.float64)
    if not bool((found > 0).all()):
        return False
    ratios = found[1:] / found[:-1]
    return bool((ratios < 1).all()) and bool(((ratios - ratios[0]).abs() <= _RATIO * ratios[0]).all())


def follow(tensor: Profile, sibling: Layout, spare: Sequence[Profile]) -> Layout | None:
    """Return the layout of a vector, by that of a weight of its module; None if the other side has none alike.

    Args:
        tensor: of one dimension, with an element for each vector of the weight's view.
        sibling: the weight's layout.
        spare: vectors of the other side.
    """
    if len(sibling.view.counts) != 1 or len(sibling.unknown):
        return None
    pieces = []
    for piece in sibling.pieces:
        if len(piece.view.counts) != 1:
            return None
        size = piece.source.shape[piece.view.counts[0]]
        leaf = tensor.name.rpartition(".")[2]
        likely = [one for one in spare if one.stored.module == piece.source.stored.module and one.shape == (size,)]
        likely.sort(key=lambda one: one.name.rpartition(".")[2] != leaf)
        if not likely:
            return None
        pieces.append(Piece(likely[0], _ELEMENTS, piece.given, piece.indexes, np.ones(len(piece.given))))
    unknown = np.zeros(0, dtype=np.int64)
    return Layout(tensor, _ELEMENTS, sibling.count, pieces, sibling.empty, unknown)


def permuted(tensor: Profile, other: Profile) -> tuple[Layout, Apart] | None:
    """Return the layout of a vector that has the elements of another in another order, or None if it is none."""
    if tensor.shape != other.shape or not is_alike(tensor, other):
        return None
    ours, theirs = (np.argsort(as_float64(one.read()), kind="stable") for one in (tensor, other))
    order = np.empty_like(ours)
    order[ours] = theirs
    count = len(order)
    piece = Piece(other, _ELEMENTS, np.arange(count), order, np.ones(count))
    none = np.zeros(0, dtype=np.int64)
    layout = Layout(tensor, _ELEMENTS, count, [piece], none, none)
    apart = check(layout)
    return None if apart.differing else (layout, apart)


def compare_named(tensor: Profile, other: Profile) -> Weight:
    """Hold a tensor against another, element by element, in the order of dimensions that is nearest."""
    ours, theirs = (tensor.name,), (other.name,)
    if sorted(tensor.shape) != sorted(other.shape):
        text = f"altered: its shape is {list(tensor.stored.shape)}, of the baseline {list(other.stored.shape)}"
        return Weight(ours, theirs, ("altered",), text, False, elements=tensor.stored.numel)
    found, wanted = tensor.read(), other.read()
    orders = [tuple(range(len(tensor.shape)))]
    if 2 <= len(tensor.shape) <= _MOST_DIMENSIONS:
        orders = [
            order
            for order in permutations(range(len(tensor.shape)))
            if all(other.shape[dim] == size for dim, size in zip(order, tensor.shape, strict=True))
        ]
    tried = [(_apart(found, wanted.permute(order), tensor, other), order) for order in orders]
    apart, order = min(tried, key=lambda item: item[0].squares)
    turned = "transposed" if len(order) == 2 else f"its dimensions are those of the baseline in the order {order}"
    moved = [] if order == tuple(range(len(order))) else [turned]
    kinds = ["transposed"] if moved else []
    if not apart.differing:
        rounded = rounding_text(apart, tensor, [other])
        described = [*moved, *([rounded[1]] if rounded else [])]
        kinds += [rounded[0]] if rounded else []
        return Weight(
            ours, theirs, tuple(kinds) or ("equal",), ", ".join(described) or "equal", ulp=apart.ulp,
            relative_l2=apart.relative_l2, differing=0, elements=apart.elements,
        )  # fmt: skip
    text = ", ".join([*moved, _text(apart, View((0,), ()), tensor.shape)])
    return Weight(
        ours, theirs, ("altered", *kinds), text, False,
        relative_l2=apart.relative_l2, differing=apart.differing, elements=apart.elements,
    )  # fmt: skip


def _apart(found: torch.Tensor, wanted: torch.Tensor, tensor: Profile, other: Profile) -> Apart:
    apart = Apart()
    rows = found.shape[0] if found.ndim else 1
    step = max(1, _CHUNK * rows // max(1, found.numel()))
    for start in range(0, rows, step):
        mine, its = (
            as_float64((side[start : start + step] if side.ndim else side).reshape(min(step, rows - start), -1))
            for side in (found, wanted)
        )
        units_at = partial(unit, np.maximum(np.abs(mine), np.abs(its)), (tensor.exact_in, other.exact_in))
        apart.add(mine, its, units_at, np.arange(start, start + len(mine)))
    return apart


def completed(layout: Layout) -> Layout:
    """Return a layout in which vectors that nothing has have the counterparts that their place says.

    One beside a known vector goes on from it. Where all others of a source are known in another order, what is left on
    both sides belongs together.
    """
    owners = np.full(layout.count, -1)
    indexes = np.zeros(layout.count, dtype=np.int64)
    taken: list[set[int]] = []
    for number, piece in enumerate(layout.pieces):
        owners[piece.given], indexes[piece.given] = number, piece.indexes
        taken.append(set(piece.indexes.tolist()))
    counts = [len(piece.source.norms(piece.view)) for piece in layout.pieces]
    for step, places in ((1, layout.unknown), (-1, layout.unknown[::-1])):
        for place in places.tolist():
            beside = place - step
            if owners[place] >= 0 or not 0 <= beside < layout.count or owners[beside] < 0:
                continue
            owner, index = owners[beside], int(indexes[beside]) + step
            if 0 <= index < counts[owner] and index not in taken[owner]:
                owners[place], indexes[place] = owner, index
                taken[owner].add(index)
    left = np.flatnonzero(owners[layout.unknown] < 0)
    if len(left) and len(layout.pieces) == 1:
        rest = np.setdiff1d(np.arange(counts[0]), np.fromiter(taken[0], dtype=np.int64))
        if len(rest) == len(left):
            owners[layout.unknown[left]], indexes[layout.unknown[left]] = 0, rest
    pieces = [
        replace(piece, given=given, indexes=indexes[given], factors=_factors(piece, given))
        for number, piece in enumerate(layout.pieces)
        for given in [np.flatnonzero(owners == number)]
    ]
    return replace(layout, pieces=pieces, unknown=layout.unknown[owners[layout.unknown] < 0])


def _factors(piece: Piece, given: Indexes) -> Array:
    found: Array = np.full(len(given), float(np.median(piece.factors)))
    found[np.isin(given, piece.given)] = piece.factors
    return found


def difference_text(layout: Layout, apart: Apart) -> str:
    """Describe the differences of a tensor most of whose vectors are found in others."""
    noun = noun_of(layout.view, layout.tensor.shape)
    texts = [_text(apart, layout.view, layout.tensor.shape)] if apart.differing else []
    if len(layout.unknown):
        texts.append(f"altered: {noun} {ranges_text(layout.unknown)} are in no tensor of the baseline")
    if not texts and any(piece.factor is None for piece in layout.pieces):
        texts.append("altered: nothing accounts for the factors")
    return ", ".join(texts) or "altered"


def _text(apart: Apart, view: View, shape: tuple[int, ...]) -> str:
    where = ""
    vectors = np.unique(apart.vectors)
    if len(shape) > 1 and len(vectors) < shape[view.counts[0]] if view.counts else False:
        where = f", in {noun_of(view, shape)} {ranges_text(vectors)}"
    elif len(shape) == 1 and len(vectors) < shape[0]:
        where = f", at {ranges_text(vectors)}"
    unrelated = "; the two have nothing in common" if apart.relative_l2 > _UNRELATED else ""
    return (
        f"altered: {apart.differing} of {apart.elements} elements differ{where}, "
        f"relative L2 {apart.relative_l2:.2g}{unrelated}"
    )
