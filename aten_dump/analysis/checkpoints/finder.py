"""Find which weight of a target became which of a baseline.

Theory of operation
    What is equal to the bit is found by checksums. Of the rest each tensor is read once for its profile. The vectors of
    each target's tensor are then looked up among the baseline's, which says how it is laid out there; its elements are
    held against their counterparts. What has few vectors of its own follows its sibling: a bias is permuted as the
    weight of its module is. What is left may have been computed of several tensors (an adapter, a norm). Names decide
    only what an altered tensor is held against, and between tensors that have the same contents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from .by_element import UNRELATED, compare_named, constant_of, difference_text
from .coverage import Coverage
from .descriptions import (
    given_of,
    is_suspicious,
    layout_texts,
    noun_of,
    one_number,
    part_of,
    part_text,
    rotations,
    rounding_text,
)
from .formulas import formula_of
from .found_weights import Names
from .layouts import Apart, Layout, Piece, as_float64, check, find_layout
from .merges import Merge, adapter_of, folded_bias, norm_of
from .profiles import Array, Profile, View, digest_of, is_alike, profile
from .siblings import with_siblings
from .stored_tensors import Checkpoint, StoredTensor
from .vector_table import Indexes, VectorTable
from .weight_records import Link, Slot, Weight

_ELEMENTS = View((0,), ())


Progress = Callable[[int, int], None]
_MOST_PAIRS: Final = 1 << 16
_NEAR: Final = 1.5  # closeness of names from which on an altered tensor is held against another
_SAME_NORM: Final = 1e-5  # relative
_TIED: Final = "equal, a copy (tied or replicated)"


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
        self._copies: tuple[Counter[str], ...] = Counter(), Counter()
        self._covered = Coverage()
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
        self._take_constants()
        self._take_scrambled()
        self._take_altered()
        self._take_copies()
        self._take_rest()
        return with_siblings(self.found)

    # -- equal to the bit

    def _take_equal(self) -> None:
        total = sum(len(side.tensors) for side in self._sides)
        for number, side in enumerate(self._sides):
            for name, stored in side.tensors.items():
                self._digests[number][name] = digest_of(stored)
                self._progress(sum(map(len, self._digests)), 2 * total)
        self._copies = Counter(self._digests[0].values()), Counter(self._digests[1].values())
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
        slots = [(number, slot) for link in weight.links for number, slot in enumerate((link.ours, link.theirs))]
        alone = [self._copies[number][self._digests[number][slot.name]] == 1 for number, slot in slots]
        self.found.append(replace(weight, sure=bool(alone) and all(alone)))
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
            turned = turned_of(tensor, [self._profiles[1][name] for name in self._open[1]])
            if turned is not None:
                self._take(turned)
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

    def _likely(self, target: str, source: Profile) -> float:
        return self._names.closeness(target, source.name) - (3.0 if source.name not in self._open[1] else 0.0)

    def _take_layout(self, layout: Layout, apart: Apart) -> None:
        sources = list({piece.source.name: piece.source for piece in layout.pieces}.values())
        described = dict(layout_texts(layout))
        laid_out = _joined(described)
        rounded = rounding_text(apart, layout.tensor, sources)
        described |= dict([rounded] if rounded else [])
        self._covered.add(layout)
        self._take(
            Weight(
                (layout.tensor.name,), tuple(one.name for one in sources), tuple(described) or ("equal",),
                _joined(described), not is_suspicious(described), ulp=apart.ulp,
                relative_l2=apart.relative_l2, differing=0, elements=layout.tensor.stored.numel,
                part=part_text(layout), links=_links(layout), layout=laid_out,
            )
        )  # fmt: skip

    def _take_partly(self, layout: Layout) -> None:
        """Take a tensor of which most vectors were found: the others are altered, or the baseline lacks them."""
        layout = self._layouts[layout.tensor.name] = padded(completed(layout))
        measured = check(layout)
        if not (measured.differing or len(layout.unknown) or any(piece.factor is None for piece in layout.pieces)):
            self._take_layout(layout, measured)
            return
        self._covered.add(layout)
        sources = list({piece.source.name: piece.source for piece in layout.pieces}.values())
        described = dict(layout_texts(layout))
        text = difference_text(layout, measured)
        self._take(
            Weight(
                (layout.tensor.name,), tuple(one.name for one in sources), ("altered", *described),
                _joined(described | {"altered": text}), False, relative_l2=measured.relative_l2,
                differing=measured.differing, elements=layout.tensor.stored.numel, part=part_text(layout),
                links=_links(layout), layout=_joined(described),
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
        self._covered.add(layout)
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
            is_other = weight.relative_l2 is None or weight.relative_l2 > UNRELATED
            if not is_other or closeness > _NEAR + 2:
                self._take(weight)

    def _take_constants(self) -> None:
        """Take tensors that are those of the baseline but for one number that is added to all elements."""
        for name in list(self._open[0]):
            tensor = self._profiles[0][name]
            others = [self._profiles[1][other] for other in self._open[1] if other not in self._covered]
            others = [other for other in others if sorted(other.shape) == sorted(tensor.shape)]
            for other in sorted(others, key=lambda one: -self._names.closeness(name, one.name)):
                weight = constant_of(tensor, other)
                if weight is not None:
                    self._take(replace(weight, links=(_link(tensor, other),)))
                    break

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

    def _take_copies(self) -> None:
        """Take what one side alone has, but for a copy in another layout: a head that is the embedding, transposed."""
        for number in range(2):
            known = [one for one in self._sides[1 - number].tensors.values() if one.name not in self._open[1 - number]]
            for name, stored in list(self._open[number].items()):
                if (number and name in self._covered) or formula_of(stored):
                    continue
                for other in (one for one in known if one.numel == stored.numel):
                    ours, theirs = (name, other.name) if number == 0 else (other.name, name)
                    if other.name not in self._profiles[1 - number]:
                        self._profiles[1 - number][other.name] = profile(other)
                    copy = copy_of(self._profiles[0][ours], self._profiles[1][theirs])
                    if copy is not None:
                        self._take(copy)
                        break

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
        self.found += self._covered.left_over(self._profiles[1])
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
            link = Link(Slot(one, size=1), Slot(other, size=1))
            yield Weight((one,), (other,), ("equal",), "equal", links=(link,), layout="equal")
            del left[one], free[other]
    for one in left:
        nearest = max(theirs, key=lambda other: names.closeness(one, other))
        yield Weight((one,), (nearest,), ("equal", "tied"), _TIED)
    for other in free:
        nearest = max(ours, key=lambda one: names.closeness(one, other))
        yield Weight((nearest,), (other,), ("equal", "tied"), _TIED)


def turned_of(tensor: Profile, others: Sequence[Profile]) -> Weight | None:
    """Return that a tensor of three and more dimensions has those of another in another order, or None."""
    for other in others if len(tensor.shape) > 2 else ():
        if sorted(other.shape) == sorted(tensor.shape) and is_alike(tensor, other):
            weight = compare_named(tensor, other)
            if weight.accounted:
                return replace(weight, links=(_link(tensor, other),))
    return None


def copy_of(tensor: Profile, other: Profile) -> Weight | None:
    """Return that a tensor holds what another does, which has another partner already, or None if it does not."""
    if not is_alike(tensor, other):
        return None
    layout = find_layout(tensor, VectorTable([other], tensor.rounding), lambda _: 0.0)
    if layout is None or len(layout.unknown) or len(layout.pieces) != 1 or layout.pieces[0].factor != 1:
        return None
    apart = check(layout)
    if apart.differing:
        return None
    described = dict(layout_texts(layout))
    is_ordered = "permuted" not in described
    described |= dict(filter(None, [rounding_text(apart, tensor, [other])]))
    text = f"{_joined(described)}, a copy (tied or replicated)"
    text += "" if is_ordered else "; the other copy is in order"
    accounted = is_ordered and not is_suspicious(described)
    return Weight((tensor.name,), (other.name,), (*described, "tied"), text, accounted)


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


def _link(tensor: Profile, other: Profile) -> Link:
    return Link(Slot(tensor.name, size=1), Slot(other.name, size=1))


def _links(layout: Layout) -> tuple[Link, ...]:
    """Return which slots of a tensor hold which of its sources; none if the order is one of several."""
    if not layout.is_certain:
        return ()
    return tuple(
        Link(
            Slot(layout.tensor.name, given_of(layout, piece), int(piece.given.min()), len(piece.given)),
            Slot(piece.source.name, part_of(piece), int(piece.indexes.min()), len(piece.indexes)),
        )
        for piece in layout.pieces
    )


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
    """Return the layout of a vector that has the elements of another in another order, or None if it is none.

    Elements that are equal when rounded leave several orders. The order of a known rotation comes first.
    """
    if tensor.shape != other.shape or not is_alike(tensor, other):
        return None
    values = [as_float64(one.read()) for one in (tensor, other)]
    ours, theirs = (np.argsort(one, kind="stable") for one in values)
    order = np.empty_like(ours)
    order[ours] = theirs
    count = len(order)
    is_certain = all(len(np.unique(one)) == count for one in values)
    none = np.zeros(0, dtype=np.int64)
    for likely in [order] if is_certain else [*rotations(count), order]:
        piece = Piece(other, _ELEMENTS, np.arange(count), likely, np.ones(count))
        layout = Layout(tensor, _ELEMENTS, count, [piece], none, none, is_certain=is_certain or likely is not order)
        apart = check(layout)
        if not apart.differing:
            return layout, apart
    return None


def padded(layout: Layout) -> Layout:
    """Return a layout in which vectors without a counterpart are padding, where all hold one number."""
    sources = sum(len(piece.source.norms(piece.view)) for piece in layout.pieces)
    if not len(layout.unknown) or len(layout.empty) or not layout.view.counts or layout.count <= sources:
        return layout
    number = one_number(layout.view.cut(layout.tensor.read()), layout.unknown)
    return layout if number is None else replace(layout, empty=layout.unknown, unknown=layout.empty, padding=number)


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
