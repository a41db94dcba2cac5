"""How the parts that ranks hold of a plain tensor fit together: found by holding them against the whole tensor.

Theory of operation
    Of a DTensor the dump knows mesh and placements. A plain tensor of a parallel program is one of: replicas (data that
    all ranks read), shards (activations between ``to_local`` and ``from_local``, slices of a batch), terms of a sum
    or of a mean (gradients before they are reduced). Shapes leave few of these, and the counterpart in the other
    dump decides: the arrangement that comes nearest to it is taken, and only if it comes near at all. So a guess
    can show agreement, and a difference of what mostly agrees; parts that do not fit in any way are reported as not
    compared, never as different. Where the user says how the batch is divided, that is taken without proof.

    In a backward pass over a divided batch each rank's loss is the mean over its own samples: its gradients are
    as many times larger as there are ranks, and so are they divided here if that fits.

    Where replicas are not bitwise equal, the one farthest from the counterpart is compared, so that it is found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from ...dump import Value
from ...dump.across_ranks.assembled_value import AssembledValue
from ...dump.across_ranks.assembly import Assembly
from ...dump.across_ranks.part_grids import Kind, Placement
from ...errors import AtenDumpError
from ..distance.value_distance import Closeness, closeness, same_bits

_NEAR: Final = 0.5  # relative L2 up to which a guess counts as the right arrangement
# The same, once it was seen that parts do not fit: tensors of much the same numbers always come near.
_NEARER: Final = 1e-2
_PLAINLY: Final = 0.1  # a sum or mean must come so many times nearer than any single rank's tensor
_TRIES: Final = 3  # after so many failures with the same shapes, folded blocks are not tried any more
_REPLICA: Final = Placement("replica")
_COUNTS: Final = frozenset(("aten::nll_loss_forward", "aten::nll_loss2d_forward"))  # the second result counts samples


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """Replicas that are not bitwise equal."""

    value: int
    ranks: tuple[int, ...]  # those that hold other bits than most
    error: float | None  # relative L2 between the farthest replica and the nearest to the counterpart; None unknown
    max_abs: float | None
    at: tuple[int, ...] | None


@dataclass(slots=True)
class Settler:
    """Settles the grids of assembled values; `replicas` has what it found about replicas."""

    batch_dim: int | None = None  # the user says that ranks hold consecutive slices along it
    read_data: bool = True
    replicas: dict[int, ReplicaDifference] = field(default_factory=dict)  # by value id, of the target
    unfitting: int = 0
    _misfits: dict[int, tuple[Assembly, str, tuple[int, ...]]] = field(default_factory=dict)  # and why, by identity
    _unfitting_dims: set[int] = field(default_factory=set)  # shards along them did not make up the whole before
    _terms: Counter[Kind] = field(default_factory=Counter)  # how tensors of which ranks hold terms were reduced
    _both_open: list[tuple[Value, Value, bool]] = field(default_factory=list)  # and whether they are gradients
    _failed: Counter[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = field(default_factory=Counter)

    def settle(self, target: Value, baseline: Value, *, is_gradient: bool) -> None:
        """Settle the grids of a pair of values, if they are of several ranks."""
        for value, other in ((target, baseline), (baseline, target)):
            if isinstance(value, AssembledValue) and _is_open(value) and not _counts_samples(value):
                self._share(value.assembly, tuple(other.shape))
        if _is_open(target) and _is_open(baseline):
            self._share_one(target, baseline)
        if _is_open(target) and _is_open(baseline):
            self._both_open.append((target, baseline, is_gradient))
        elif _is_open(target):
            self._fit(target, baseline, is_gradient)
        elif _is_open(baseline):
            self._fit(baseline, target, is_gradient)
        for value, other, keep in ((target, baseline, True), (baseline, target, False)):
            if isinstance(value, AssembledValue) and not value.unsettled and not value.assembly.shared:
                self._check_replicas(value, other, keep)

    def pair_off(self) -> None:
        """Settle what was open on both sides, now that collectives have told what they know of it."""
        pairs, self._both_open = self._both_open, []
        for target, baseline, is_gradient in pairs:
            if _is_open(target) and _is_open(baseline):
                self._pair_off(target, baseline)
            self.settle(target, baseline, is_gradient=is_gradient)

    def give_up_misfits(self) -> None:
        """Say of parts that did not make up any counterpart that they cannot be put together."""
        for assembly, why, shape in self._misfits.values():
            if assembly.open:
                assembly.give_up(why, shape)
                self.unfitting += 1

    def settle_reduced(self, term: Value, made: Value) -> None:
        """Settle what an all-reduce made, if all ranks hold the same, and what it was given, by that."""
        if _is_open(made):
            assert isinstance(made, AssembledValue)
            self._share(made.assembly, made.assembly.group_shapes[0])
        if _is_open(term) and not _is_open(made) and term.shape == made.shape:
            self._fit(term, made, is_gradient=False)

    def settle_alike(self, value: Value, other: Value) -> None:
        """Settle a value as `other` is, which has the same elements in the same order."""
        if not _is_open(value) or other.unsettled or value.numel != math.prod(other.shape):
            return
        assert isinstance(value, AssembledValue)
        assert isinstance(other, AssembledValue)
        grid, shapes = other.assembly.grid, set(value.assembly.group_shapes)
        if grid is not None and grid.placements[0].kind in ("sum", "avg") and len(shapes) == 1:
            value.assembly.across(grid.placements[0], shapes.pop(), grid.scale)

    def _share_one(self, *pair: Value) -> None:
        """Of two open values settle that of which all ranks hold the same, if the other's parts make up its shape."""
        for value, other in (pair, pair[::-1]):
            assert isinstance(value, AssembledValue)
            assert isinstance(other, AssembledValue)
            shape = value.assembly.group_shapes[0]
            if value.assembly.open and any(_shards(other.assembly.group_shapes, shape, None, False, False)):
                self._share(value.assembly, shape)

    def _pair_off(self, target: Value, baseline: Value) -> None:
        """Settle two open values of which every rank has a part on both sides, and on both nearly the same.

        So are the activations of programs that both divide the batch. They are taken as the mean over ranks, as what is
        asked is whether both sides have the same, whatever that is a part of.
        """
        assert isinstance(target, AssembledValue)
        assert isinstance(baseline, AssembledValue)
        ours, theirs = target.assembly, baseline.assembly
        if ours.parts.keys() != theirs.parts.keys() or len(ours.groups) != len(ours.parts):
            return
        shapes = {*ours.group_shapes, *theirs.group_shapes}
        kept = (self._closeness(part, theirs.parts[rank]) for rank, part in ours.parts.items())
        if len(shapes) > 1 or not all(near.bitwise or _distance(near) <= _NEAR for near in kept):
            return
        (shape,) = shapes
        for assembly in (ours, theirs):
            if target.is_floating:
                assembly.across(Placement("avg"), shape)
            elif shape:
                assembly.across(Placement("shard", 0), (shape[0] * len(assembly.parts), *shape[1:]))

    def _share(self, assembly: Assembly, shape: tuple[int, ...]) -> None:
        """Settle plain tensors of the counterpart's shape of which all ranks hold the same bits."""
        parts = list(assembly.parts.values())
        if len(assembly.groups) != len(parts) or set(assembly.group_shapes) != {shape}:
            return
        if all(_equal(parts[0], part, read=True) for part in parts[1:]):
            assembly.across(_REPLICA, shape)
            assembly.shared = True

    def _fit(self, value: Value, whole: Value, is_gradient: bool) -> None:
        """Find the arrangement of an open value's parts that comes nearest to the whole tensor."""
        assert isinstance(value, AssembledValue)
        assembly, shape = value.assembly, tuple(whole.shape)
        if whole.undefined or whole.unsettled:
            assembly.reason = "the counterpart is not known as a whole"
            return
        if set(assembly.group_shapes) == {shape}:
            self._fit_equal(value, whole, shape, is_gradient)
            return
        folded = self._failed[assembly.group_shapes, shape] < _TRIES
        found = []
        for placement, scale in _shards(assembly.group_shapes, shape, self.batch_dim, is_gradient, folded):
            assembly.across(placement, shape, scale)
            error = self._error(value, whole)
            found.append((error, placement, scale))
            if error <= _NEAR * _PLAINLY:
                break
        error, placement, scale = min(found, key=lambda item: item[0], default=(math.inf, _REPLICA, 1.0))
        near = _NEARER if placement.dim in self._unfitting_dims else _NEAR
        if found and (error <= near or (self.batch_dim is not None and placement.dim == self.batch_dim)):
            assembly.across(placement, shape, scale)
            return
        self._failed[assembly.group_shapes, shape] += 1
        self._unfitting_dims.add(placement.dim)
        sizes = " + ".join(str(list(s)) for s in assembly.group_shapes[:4])
        more = " + ..." if len(assembly.group_shapes) > 4 else ""
        why = "in no order that was tried do they come near it" if found else "they do not add up to it"
        self._leave_open(assembly, f"{sizes}{more} stand against {list(shape)}, and {why}", shape)

    def _fit_equal(self, value: AssembledValue, whole: Value, shape: tuple[int, ...], is_gradient: bool) -> None:
        """Tell replicas from terms of a sum or a mean: parts of the shape of the whole."""
        assembly = value.assembly
        assembly.across(_REPLICA, shape)
        assert assembly.grid is not None
        each = []
        for variant in _readable(assembly):
            assembly.variant = variant
            each.append(self._error(value, whole))
        assembly.variant = _readable(assembly)[0] if each else 0
        if not each or min(each) == 0.0 or not value.has_data or value.from_outside:
            return
        kinds: tuple[Kind, ...] = ("avg", "sum") if value.is_floating else ("sum",)  # integers have no mean
        for kind in kinds:
            assembly.across(Placement(kind), shape)
            if self._error(value, whole) <= _PLAINLY * min(each):
                self._terms[kind] += 1
                return
        if min(each) <= _NEAR:
            assembly.across(_REPLICA, shape)
            return
        if is_gradient and self._terms:  # gradients that cancel to noise come near nothing
            assembly.across(Placement(max(kinds, key=lambda kind: self._terms[kind])), shape)
            return
        self._leave_open(
            assembly, "every rank has another tensor, and neither one of them nor their sum or mean comes near", shape
        )

    def _leave_open(self, assembly: Assembly, why: str, shape: tuple[int, ...]) -> None:
        """Note parts that do not make up a counterpart: it may be none, and another one theirs."""
        assembly.leave_open()
        self._misfits.setdefault(id(assembly), (assembly, why, shape))

    def _error(self, value: Value, whole: Value) -> float:
        found = self._closeness(value, whole)
        if found.nonfinite and found.error is not None:
            return min(found.error, _NEAR)  # NaN or Inf are no reason to take another arrangement
        return _distance(found)

    def _distance_of_replica(self, value: Value, whole: Value) -> tuple[bool, float]:
        found = self._closeness(value, whole)
        return found.nonfinite, _distance(found)  # what has NaN or Inf elsewhere is farther than all that have not

    def _closeness(self, value: Value, whole: Value) -> Closeness:
        try:
            return closeness(value, whole, data=self.read_data)
        except AtenDumpError as error:  # parts that do not fit
            return Closeness("none", reason=str(error))

    def _check_replicas(self, value: AssembledValue, other: Value, keep: bool) -> None:
        """Take the replica that is farthest from the counterpart where they are not bitwise equal."""
        assembly = value.assembly
        variants = _readable(assembly)
        assert assembly.grid is not None
        assembly.variant = variants[0] if variants else 0
        if len(variants) < 2:
            return
        members = {variant: list(assembly.grid.members(variant).values()) for variant in variants}
        first = [assembly.parts[rank] for rank in members[variants[0]]]
        if not all(map(_knowable, assembly.parts.values())):
            return
        unlike = {
            variant: [r for r, p in zip(ranks, first, strict=True) if not _equal(assembly.parts[r], p, self.read_data)]
            for variant, ranks in members.items()
        }
        if not any(unlike.values()):
            assembly.shared = len(first) == 1 and assembly.grid.scale == 1.0
            return
        errors = {}
        for variant in variants:
            assembly.variant = variant
            errors[variant] = self._distance_of_replica(value, other)
        worst = max(variants, key=lambda variant: errors[variant])
        best = min(variants, key=lambda variant: errors[variant])
        assembly.variant = worst
        if keep and value.id not in self.replicas:
            self.replicas[value.id] = _difference(value, members, worst, best)


def _difference(value: AssembledValue, members: dict[int, list[int]], worst: int, best: int) -> ReplicaDifference:
    """Describe by how much replicas differ, and which ranks hold what the best does not."""
    assembly = value.assembly
    if worst == best:  # all are equally far from the counterpart
        worst = next(variant for variant in members if variant != best)
    pairs = zip(members[best], members[worst], strict=True)
    ranks = [w for b, w in pairs if not _equal(assembly.parts[b], assembly.parts[w], read=True)]
    if not value.has_data:
        return ReplicaDifference(value.id, tuple(ranks), None, None, None)
    try:
        one, other = (assembly.tensor(variant).to(torch.float64) for variant in (worst, best))
    except AtenDumpError:
        return ReplicaDifference(value.id, tuple(ranks), None, None, None)
    apart = (one - other).abs()
    at = int(apart.reshape(-1).argmax()) if apart.numel() else 0
    norm = float(torch.linalg.vector_norm(other))
    error = float(torch.linalg.vector_norm(apart)) / norm if norm else math.inf
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), apart.shape)) if apart.dim() else ()
    return ReplicaDifference(
        value.id, tuple(ranks), error, float(apart.reshape(-1)[at]) if apart.numel() else 0.0, place
    )


def _distance(found: Closeness) -> float:
    return 0.0 if found.bitwise else math.inf if found.error is None else found.error


def _counts_samples(value: Value) -> bool:
    """Tell whether a value is how many samples a rank has, which is equal on all ranks and no replica."""
    made = value.producer
    return made is not None and made[0].op in _COUNTS and made[1] == "output.1"


def _is_open(value: Value) -> bool:
    return isinstance(value, AssembledValue) and value.assembly.open and not value.undefined


def _readable(assembly: Assembly) -> list[int]:
    """Return the variants whose parts are all there."""
    grid = assembly.grid
    if grid is None:
        return []
    present = set(assembly.parts)
    return [variant for variant in range(grid.variants) if set(grid.members(variant).values()) <= present]


def _equal(one: Value, other: Value, read: bool) -> bool:
    """Tell whether two parts hold the same bits, from the index, or by reading them."""
    if one.shape != other.shape or one.dtype_name != other.dtype_name:
        return False
    if one.numel == 0 or same_bits(one, other):
        return True
    if one.hash is not None and one.rank.config.get("hash") == other.rank.config.get("hash"):
        return one.hash == other.hash
    if one.has_data and other.has_data:
        return read and closeness(one, other).bitwise
    return one.stats is not None and other.stats is not None and dict(one.stats) == dict(other.stats)


def _knowable(value: Value) -> bool:
    """Tell whether anything was recorded of what a value holds."""
    return value.has_data or value.numel == 0 or value.hash is not None or value.stats is not None


def _shards(
    parts: tuple[tuple[int, ...], ...], whole: tuple[int, ...], batch_dim: int | None, is_gradient: bool, folded: bool
) -> Iterator[tuple[Placement, float]]:
    """Yield the ways to put shards of these shapes together, likeliest first, each with a scale."""
    if any(len(part) != len(whole) for part in parts):
        return
    dims = [dim for dim in range(len(whole)) if any(part[dim] != whole[dim] for part in parts)]
    if len(dims) != 1 or sum(part[dims[0]] for part in parts) != whole[dims[0]]:
        return
    dim = dims[0]
    for blocks in _blocks([part[dim] for part in parts]) if folded and dim != batch_dim else (1,):
        yield Placement("shard", dim, blocks), 1.0
        if is_gradient:
            yield Placement("shard", dim, blocks), 1.0 / len(parts)


def _blocks(sizes: list[int]) -> Iterator[int]:
    """Yield in how many blocks the dimension may be folded: one, then every divisor of all parts' sizes."""
    common = math.gcd(*sizes)
    yield from (blocks for blocks in range(1, common + 1) if common % blocks == 0)
