"""The walk over two recordings of different parallel layouts: what changes in how a pair is judged.

Theory of operation
    Arguments that are sizes of a rank's part differ by as much as parts are smaller than the whole. An op is right if
    it is right on every rank for what that rank got (`RankReplays`); but ranks that are all right can together be
    wrong: a reduction is missing, or done twice. So a result must also agree with the counterpart where the inputs
    do, up to noise that grows with depth. A finding says which ranks hold what differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from ...dump import Call, Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...dump.across_ranks.assembled_value import AssembledValue
from ...errors import AtenDumpError
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding
from ..evidence.judgement import Compared, Judgement
from ..evidence.noise_floors import limits_of
from ..evidence.states import Inputs
from ..flow.argument_differences import ArgumentDifference
from ..flow.cones import Cone
from ..judging.knowledge import Knowledge
from ..judging.result_judge import ResultJudge
from ..rerun.op_errors import OwnError
from .fused_loss import is_fused, judge_fused
from .rank_replays import RankReplays, id_of
from .whole_op import is_made_of_the_whole, off_together

_GROWTH: Final = 4.0  # of the dtype's limit, times the root of depth and ranks
_AMPLIFIES: Final = 8.0
_EXPLAINED: Final = 3  # findings that are traced to ranks
_TOGETHER: Final = (
    "every rank's result is right for what that rank got, but together they are not: is a reduction missing?"
)
_SMALL: Final = 0.1  # of the greatest error over ranks: the rest hold no part of it


class LayoutJudge(ResultJudge):
    """A judge who also holds what ranks make together against the counterpart."""

    ranks: int = 2  # the greater number of both sides

    def results(
        self, target: Call, baseline: Call, found: Mapping[str, Compared], inputs: Inputs
    ) -> dict[str, Judgement]:
        """Judge all results of a pair of calls; `found` has them by slot."""
        judged = super().results(target, baseline, found, inputs)
        for slot, said in judged.items():
            if said.note == _TOGETHER and is_made_of_the_whole(target, baseline, slot):
                judged[slot] = replace(said, status="within", guilty=False, floor_from="replay", note="")
        unknown = [slot for slot, said in judged.items() if said.status == "unknown" and not found[slot][2].known]
        if unknown and not inputs.undefined:
            judged |= self._by_itself(target, baseline, {slot: found[slot] for slot in unknown}, inputs)
        if is_fused(target) == is_fused(baseline):
            return judged
        return {slot: judge_fused(target, said, found[slot], inputs, self.ranks) for slot, said in judged.items()}

    def _by_itself(
        self, target: Call, baseline: Call, found: Mapping[str, Compared], inputs: Inputs
    ) -> dict[str, Judgement]:
        """Judge results that cannot be put beside their counterparts, where a rank's own is wrong for what it got."""
        own = self.replays.local_errors(target, baseline)
        if isinstance(own, str):
            return {}
        said = {slot: super(LayoutJudge, self)._replayed(own[slot], found[slot], inputs) for slot in own.keys() & found}
        return {slot: judgement for slot, judgement in said.items() if judgement.guilty}

    def _replayed(self, own: OwnError, compared: Compared, inputs: Inputs) -> Judgement:
        said = super()._replayed(own, compared, inputs)
        _, baseline, close = compared
        if said.guilty or close.error is None or not baseline.is_floating:
            return said
        # Sums that cancel are as far from a float64 replay as from one another.
        explained = _GROWTH * (own.target.error + own.baseline.error)
        if close.nonfinite:
            return Judgement("different", True, 0.0, "exact", math.inf, own, _TOGETHER) if inputs.agree else said
        if not inputs.agree:
            return replace(said, status="within") if close.error <= explained else said
        limit = limits_of(baseline, baseline).rel_l2 * _GROWTH * math.sqrt((1 + inputs.depth) * self.ranks)
        limit = max(limit, _AMPLIFIES * inputs.error, explained)
        noise = _AMPLIFIES * inputs.noise * math.sqrt(max(1.0, float(baseline.numel)))
        small = close.metrics is not None and close.metrics.rmse <= noise
        if close.error <= limit or small:
            return said
        return Judgement("different", True, limit, "depth", close.error / limit, own, _TOGETHER)


class LayoutKnowledge(Knowledge):
    """What is known of assembled ranks; `sizes` has those of parts, and of the whole: (target's, baseline's)."""

    wrapped = True
    sizes: frozenset[tuple[int, int]] = frozenset()

    def differences(self, target: Call, baseline: Call) -> list[ArgumentDifference]:
        found = [d for d in super().differences(target, baseline) if not self._is_size(d)]
        return [d for d in found if not _are_dims_of_size_1(d, target, baseline)]

    def wrong_in(self, cones: Sequence[Cone]) -> tuple[Call, int, str] | None:
        wrong = super().wrong_in(cones)
        for side, cone in enumerate(cones) if wrong is None else ():
            off = off_together(cone)
            if off is not None:
                call, slot, error = off
                return call, side, f"{call.name}.{slot} is off by {error:.3g} (relative L2): {_TOGETHER}"
        return wrong

    def _is_size(self, difference: ArgumentDifference) -> bool:
        """Tell whether arguments are sizes, or numbers of elements, of parts and of the whole."""
        one, other = _numbers(difference.target), _numbers(difference.baseline)
        if one is None or other is None or len(one) != len(other):
            return False
        return all(a == b or (a, b) in self.sizes for a, b in zip(one, other, strict=True))


def _are_dims_of_size_1(difference: ArgumentDifference, target: Call, baseline: Call) -> bool:
    """Tell whether one side alone reduces dimensions that have one element there where the other does not.

    Autograd sums over a dimension that was expanded; of a batch of one sample on each rank it has nothing to sum up.
    """
    one, other = _numbers(difference.target), _numbers(difference.baseline)
    if difference.name != "dim" or one is None or other is None:
        return False
    return all(
        size == 1
        for call, dims in ((target, {*other} - {*one}), (baseline, {*one} - {*other}))
        for part in _parts(call)
        for dim in dims
        for size in part[dim : dim + 1 or None]
    )


def _parts(call: Call) -> Iterator[tuple[int, ...]]:
    """Yield the shapes that a call's first tensor has on the ranks."""
    _, value = next(iter(call.input_values()))
    held = value.assembly.parts.values() if isinstance(value, AssembledValue) else [value]
    yield from (tuple(part.shape) for part in held)


class RankExplainer:
    """Says which ranks hold what differs."""

    def __init__(self, knows: Knowledge) -> None:
        self._knows = knows

    def explain(self, pairs: Sequence[Pair]) -> None:
        """Say of the first findings which ranks hold what differs."""
        by_id = {pair.target.id: pair for pair in pairs}
        findings = self._knows.evidence.findings
        findings.sort(key=lambda finding: finding.order)
        for number, finding in enumerate(findings[:_EXPLAINED]):
            pair = by_id.get(finding.row.target.id) if finding.row.target else None
            said = "" if pair is None else self._who(pair, finding)
            if said:
                findings[number] = replace(finding, text=f"{finding.text}; {said}")

    def _who(self, pair: Pair, finding: Finding) -> str:
        slot = finding.row.slot
        ours = dict([*pair.target.input_values(), *pair.target.result_values()])
        theirs = dict([*pair.baseline.input_values(), *pair.baseline.result_values()])
        value, whole = ours.get(slot), theirs.get(slot)
        if not isinstance(value, AssembledValue) or whole is None or len(value.assembly.parts) < 2:
            return ""
        try:
            replayed = finding.kind == "op" and finding.row.floor_from == "replay"
            errors = own_ratios(self._knows.judge.replays, pair.target) if replayed else {}
            if max(errors.values(), default=0.0) > 1:
                return who_is_off(errors)
            return shares(value, whole)
        except AtenDumpError:
            return ""


def own_ratios(replays: object, call: Call) -> dict[int, float]:
    """Return the worst error of each rank's own ops against a float64 replay, over what rounding explains."""
    if not isinstance(replays, RankReplays):
        return {}
    own = replays.own.get(id_of(call))
    return {} if own is None else own.ratios


def who_is_off(ratios: dict[int, float]) -> str:
    """Say which ranks computed something wrong, by how much each is over what rounding explains."""
    worst = max(ratios.values())
    guilty = [rank for rank, ratio in ratios.items() if ratio > 1.0 and ratio >= _SMALL * worst]
    others = [rank for rank in ratios if rank not in guilty]
    text = f"{_ranks(guilty)} computed it wrong ({worst:.3g} times what rounding explains)"
    return f"{text}, {_ranks(others)} right" if others else text


def shares(value: AssembledValue, whole: Value) -> str:
    """Return which ranks hold the elements that differ, as a clause."""
    grid = value.assembly.grid
    if grid is None or value.shape != whole.shape:
        return ""
    one, other = value.tensor().to(torch.float64), whole.tensor().to(torch.float64)
    sizes = {rank: part.shape for rank, part in value.assembly.parts.items()}
    owners = grid.owners(lambda rank: sizes[rank], value.assembly.variant)
    if owners.shape != one.shape:
        return ""
    is_equal = (one == other) | (one.isnan() & other.isnan())
    apart = (one - other).masked_fill(is_equal, 0.0).nan_to_num(math.inf)  # NaN at another place is as far as can be
    finite = other.nan_to_num(0.0, 0.0, 0.0)
    found = {}
    for rank in sorted(set(grid.members(value.assembly.variant).values())):
        mine = owners == rank
        norm = float(torch.linalg.vector_norm(finite[mine]))
        size = float(torch.linalg.vector_norm(apart[mine]))
        found[rank] = (
            size / norm if norm else math.inf if size else 0.0,
            int((apart[mine] != 0).sum()),
            int(mine.sum()),
        )
    worst = max(error for error, _, _ in found.values())
    held = [rank for rank, (error, _, _) in found.items() if error >= _SMALL * worst]
    if grid.variants > 1 and not value.assembly.shared:
        return f"the replicas are not equal: that of {_ranks(held)} is compared, being the farthest off"
    count, of = (sum(found[rank][at] for rank in held) for at in (1, 2))
    rest = [rank for rank in found if rank not in held]
    text = f"{count} of {of} elements of {_ranks(held)} differ (relative L2 {worst:.3g})"
    return f"{text}, those of {_ranks(rest)} agree" if rest else text


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def sizes_of(rank: AssembledRank) -> set[tuple[int, int]]:
    """Return the sizes, and numbers of elements, that parts have where the whole has others: (part, whole)."""
    found: set[tuple[int, int]] = set()
    for assembly in rank.whole.settled:
        for part in {*assembly.group_shapes, *(tuple(value.shape) for value in assembly.parts.values())}:
            if part != assembly.shape and len(part) == len(assembly.shape):
                found |= {*zip(part, assembly.shape, strict=True), (math.prod(part), math.prod(assembly.shape))}
    return found


def _numbers(text: str) -> list[int] | None:
    try:
        return [int(item) for item in text.strip("[]()").split(",") if item.strip()]
    except ValueError:
        return None
