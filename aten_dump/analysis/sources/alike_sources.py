"""Distinguishes sources with equal contents by what becomes of them, and gives them different contents.

Theory of operation
    Before the first step moments are zero, and a network and its copy are equal. A program that confuses them makes no
    difference yet, but is another function. Equal functions agree for all contents, so both sides are evaluated again
    with such sources moved a little, each by different numbers. Sources of both sides are matched by what the step
    leaves in them. Only one side may read a copy that the step leaves unchanged (a network that is no longer trained):
    the other side then reads the trained network instead. If both sides make each end by the same calls from the same
    sources, they agree for all contents, and nothing is run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch

from ...dump import Value
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evaluation.memory import UNREADABLE
from ..evaluation.plan import Key
from ..rerun.start_tensors import start_tensors
from ..signatures.signature import is_same

_MOVED: Final = 0.01  # relative, for nothing but zeros absolute; away from zero, as squares are never negative

Contents = dict[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Apart:
    """Sources with equal contents that are distinguished, by id."""

    contents: tuple[Contents, Contents]  # of both sides
    pairs: list[tuple[list[Value], list[Value]]]  # which sources of both sides belong together


def alike_sources(target: Evaluation, baseline: Evaluation, stand_ins: Mapping[int, torch.Tensor]) -> Apart | None:
    """Return contents for sources of both sides, if some with equal contents can be distinguished; else None.

    Args:
        target: evaluated.
        baseline: evaluated.
        stand_ins: the contents that the baseline's sources were given.
    """
    if not all(map(_follows, (target, baseline))):
        return None
    ours, theirs = _fates(target), _fates(baseline)
    generator = torch.Generator().manual_seed(11)
    found: tuple[Contents, Contents] = ({}, dict(stand_ins))
    pairs = []
    has_unseen = target.has_unseen or baseline.has_unseen  # then compiled code may have made some sources
    for number, fates in ours.items():
        others = theirs.get(number, {})
        alone = fates.keys() ^ others.keys()
        if len(fates | others) < 2 or alone - {None} or (alone and has_unseen):
            continue
        for fate in fates | others:
            values, counterparts = fates.get(fate, []), others.get(fate, [])
            try:
                tensor = start_tensors((values or counterparts)[:1])[(values or counterparts)[0].id].contiguous()
            except UNREADABLE:
                return None
            if fate in alone and tensor.min() == tensor.max():
                continue  # zeros from outside may stand for zeros that the other side makes
            tensor = _moved(tensor, generator)
            if any(value.numel != tensor.numel() for value in counterparts):
                return None
            found[0].update((value.id, tensor) for value in values)
            found[1].update((value.id, tensor.reshape(value.shape)) for value in counterparts)
            pairs.append((values, counterparts))
    return Apart(found, pairs) if pairs else None


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor moved a little: zeros among other numbers stay, and a symmetric matrix stays one."""
    is_symmetric = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] and torch.equal(tensor, tensor.mT)
    if not bool(tensor.any()):
        return _MOVED * (torch.rand(tensor.shape, dtype=tensor.dtype, generator=generator) + 0.5)
    shape = (1,) * tensor.dim() if is_symmetric else tensor.shape
    return tensor * (1 + _MOVED * (torch.rand(shape, dtype=tensor.dtype, generator=generator) + 0.5))


def are_made_alike(
    sides: tuple[Evaluation, Evaluation], ends: tuple[Sequence[End], Sequence[End]], apart: Apart
) -> bool:
    """Return True if both sides make each end by the same calls from the same sources; False proves nothing.

    Args:
        sides: evaluated, and no end differs.
        ends: of both sides.
        apart: which sources with equal contents belong together.
    """
    fresh = count()
    made: dict[Key, tuple[int, ...]] = {}
    known: list[set[tuple[int | None, int]]] = []
    starts = [(next(fresh), pair) for pair in apart.pairs]
    for side, evaluation in enumerate(sides):
        numbers = {value.id: number for number, pair in starts for value in pair[side]}
        if not evaluation.trace(numbers, made, fresh):
            return False
        found = [(end.number, _traced(evaluation, end, numbers)) for end in ends[side]]
        if any(number is None for _, number in found):
            return False
        known.append({(one, other) for one, other in found if other is not None})
    return known[0] == known[1]


def _traced(evaluation: Evaluation, end: End, numbers: Mapping[int, int]) -> int | None:
    """Return a number for the calls that made an end, or None."""
    value = end.value
    if end.buffer is not None and end.buffer.numel != value.numel:
        return None
    if value.id not in numbers and (writer := evaluation.flow.writer(value)) is not None:
        value = writer[2]
    return numbers.get(value.id)


def _follows(evaluation: Evaluation) -> bool:
    """Return True if all results of a step were computed from its sources, and none was taken as recorded."""
    rank = evaluation.flow.rank
    calls = (rank.call(number) for number in evaluation.unproven if number not in rank.tables.random)
    return not any(evaluation.flow.results(call) for call in calls)


def reads_the_same(evaluation: Evaluation, moved: Evaluation) -> bool:
    """Return True if the tensors from which the program read numbers did not move with the sources."""
    for call in evaluation.flow.calls():
        if isinstance(call.outputs, (int, float)):
            for _, value in evaluation.flow.reads(call):
                known = evaluation.signatures.get(value.id), moved.signatures.get(value.id)
                if known[0] is None or known[1] is None or not is_same(known[0], known[1]):
                    return False
    return True


def _fates(evaluation: Evaluation) -> dict[int, dict[int | None, list[Value]]]:
    """Return the sources of each number that have separate storages, by the number of what was left there.

    Sources that are left equal cannot be distinguished, and are omitted. Views of one memory are one.
    """
    storages: dict[int, list[Value]] = defaultdict(list)
    for value in evaluation.sources.values():
        storages[value.storage].append(value)
    left = {value.storage: evaluation.at_end.get(value.id) for value in evaluation.left}
    found: dict[int, dict[int | None, list[list[Value]]]] = defaultdict(lambda: defaultdict(list))
    for storage, values in storages.items():
        number, first = evaluation.numbers.get(values[0].id), values[0]
        is_one = storage and first.numel > 1 and len({value.record.place for value in values}) == 1
        if number is not None and is_one and first.is_floating and not first.dtype.is_complex:
            found[number][left.get(storage)].append(values)
    return {
        number: {fate: alike[0] for fate, alike in fates.items() if len(alike) == 1} for number, fates in found.items()
    }
