"""Adds to a cause the facts of `analysis.facts` about its calls and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ...dump import Call, RankDump, Value
from ...dump.optimizer_groups import optimizer_groups
from ...errors import AtenDumpError
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Place, Row
from ..facts.hyperparameters import numbers_sentence, optimizers_otherwise
from ..facts.modes import grad_mode_sentence, mode_sentence, module_sentence, modules_otherwise
from ..facts.ratio import ratio_sentence
from ..facts.touched import touched_sentence
from ..flow.argument_differences import argument_differences
from .nonfinite_first import nonfinite_first

_GRADIENT = "gradient of "


def explained(
    sides: tuple[RankDump, RankDump],
    pairs: Sequence[Pair],
    rows: Sequence[Row],
    findings: list[Finding],
    *,
    whole: bool,
) -> tuple[list[Finding], list[str]]:
    """Return findings, the first with the facts about it, and notes on the two step-ranks.

    Args:
        sides: the target's step and rank, and the baseline's.
        pairs: of calls.
        rows: the rows of all that was compared.
        findings: in the order of execution.
        whole: True if both are the same part of a program; then the origin of NaN and the settings of the runs count
            too.
    """
    notes: list[str] = []
    if whole:
        findings, notes = nonfinite_first(sides, pairs, rows, findings)
        notes += notes_on(*sides, pairs, differ=bool(findings))
    if findings:
        findings = [with_facts(findings[0], *sides), *findings[1:]]
    return findings, notes


def with_facts(finding: Finding, target: RankDump, baseline: RankDump) -> Finding:
    """Return a finding with the facts about it, its backward partners and the callers of its lines."""
    row = finding.row
    ours, theirs = _call(target, row.target), _call(baseline, row.baseline)
    named = replace(row, target=_reported(row.target, ours), baseline=_reported(row.baseline, theirs))
    if ours is not None and theirs is not None:
        facts = tuple(_facts(ours, theirs, row.slot))
    else:
        lone, other = (ours, baseline) if ours is not None else (theirs, target)
        facts = () if lone is None else tuple(filter(None, [module_sentence(lone, other)]))
    return replace(finding, row=named, facts=facts)


def notes_on(target: RankDump, baseline: RankDump, pairs: Sequence[Pair], *, differ: bool) -> Iterator[str]:
    """Yield how the settings of two step-ranks differ: hyperparameters, modes of modules.

    Args:
        target: a step and rank.
        baseline: its counterpart.
        pairs: of their calls.
        differ: True if something was found; if not, grad mode is left out, as it made no difference.
    """
    grad_modes = grad_mode_sentence((pair.target, pair.baseline) for pair in pairs) if differ else ""
    if grad_modes:
        yield grad_modes
    for said in optimizers_otherwise(target, baseline):
        yield f"the optimizers were set otherwise: {said}"
    for said in modules_otherwise(target, baseline):
        yield f"modules ran in other modes: {said}"


def _call(rank: RankDump, place: Place | None) -> Call | None:
    return None if place is None else rank.find(place.id)


def _reported(place: Place | None, call: Call | None) -> Place | None:
    if place is None or call is None:
        return place
    caller = call.called_from
    source = f"{place.source}, called from {caller}" if caller and caller not in place.source else place.source
    backward = ", ".join(partner.name for partner in call.backward[:3])
    return replace(place, source=source, backward=backward or place.backward)


def _facts(target: Call, baseline: Call, slot: str) -> Iterator[str]:
    one, other = _value(target, slot), _value(baseline, slot)
    if one is not None and other is not None and one.has_data and other.has_data:
        with suppress(AtenDumpError):  # damaged bytes: the comparison says so itself
            yield from filter(None, (ratio_sentence(one, other), touched_sentence(one, other)))
    if target.phase == "optimizer":
        groups = [
            optimizer_groups(call.rank.tables.optimizer_groups, call.record.start_ns) for call in (target, baseline)
        ]
        numbers = dict.fromkeys(pair for found in argument_differences(target, baseline) for pair in found.numbers)
        yield from filter(None, (numbers_sentence(*pair, *groups) for pair in numbers))
    modes = mode_sentence(target, baseline)
    if modes:
        yield modes


def _value(call: Call, slot: str) -> Value | None:
    found: dict[str, Value] = dict(call.all_values())
    if slot.startswith(_GRADIENT) and isinstance(call.rank, RankDump):
        return dict(call.rank.gradients).get(slot.removeprefix(_GRADIENT))
    if slot == "loss":
        return next((value for _, value in call.output_values()), None)
    return found.get(slot)
