"""A replay as text: the answer in a paragraph, then the table of ops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from ..analysis.repeat import Repeated
from ..analysis.replay import Replay, ReplayedOp
from ..analysis.rerun.rounding_error import SUSPECT, LocalError
from ..dump.shown.command_lines import next_line
from ..dump.shown.step_ranks import over_ranks
from ..dump.wholeness import reason_of
from .table import Table, names, numbers, words

_MOST_LINES: Final = 20  # of steps and ranks that are alike


def answer_lines(found: Replay) -> Iterator[str]:
    """Yield the answer: which op is off, by how much, where; then how many ran and how many could not."""
    yield from _answer(found)
    yield from _counts(found)


def _answer(found: Replay) -> Iterator[str]:
    where = f"{found.path} (step {found.step}, rank {found.rank})"
    guilty = found.guilty
    if guilty is not None:
        yield f"{guilty.name} ({guilty.op}) is the first suspect in {where}: {_verdict(guilty.worst)}."
        yield f"  {_place(guilty)}"
        others = len(found.suspects) - 1
        if others:
            yield f"  {others} other ops have larger errors than a correct implementation (more than {SUSPECT:g} times)"
    elif found.layers:
        yield f"each op of {where} is as exact as a correct implementation, but a compiler made another function"
    elif found.lacks:
        yield f"whether an op of {where} is off is not known: the recording is {reason_of(found.lacks)}"
    elif found.ops and found.dtype == "float64":
        worst = found.ops[0]
        yield f"no op of {where} has a larger error than a correct implementation"
        if worst.worst.error:
            yield f"  the worst is {worst.name}: {_verdict(worst.worst)}"
    elif found.ops:
        yield f"replayed {where} in the recorded dtypes"
    else:
        yield f"no op of {where} could be replayed"
    yield from (f"  Layer: {fault}" for fault in found.layers)


def all_lines(found: Sequence[Replay]) -> Iterator[str]:
    """Yield the answer of several steps and ranks: the first suspect whole, of the others a line for those alike."""
    if len(found) == 1:
        yield from answer_lines(found[0])
        return
    first = first_suspect(found)
    if first is not None:
        yield from _answer(first)
    others = [one for one in found if one is not first]
    yield from islice(over_ranks((one.step, one.rank, _in_short(one)) for one in others), _MOST_LINES)
    if found:
        ops = [op for one in found for op in one.ops]
        skipped = tuple(call for one in found for call in one.skipped)
        yield from _counts(replace(found[0], ops=tuple(ops), skipped=skipped), f" of {len(found)} steps and ranks")


def first_suspect(found: Sequence[Replay]) -> Replay | None:
    """Return the first step and rank with an op that is off; of a step, the one whose op is furthest off."""
    sick = [one for one in found if one.guilty is not None or one.layers]
    return min(
        sick, key=lambda one: (one.step, 0.0 if one.guilty is None else -one.guilty.ratio, one.rank), default=None
    )


def _in_short(found: Replay) -> str:
    if found.guilty is not None:
        return f"{found.guilty.name} ({found.guilty.op}) is the first suspect"
    if found.layers:
        return f"a compiler made another function: {found.layers[0]}"
    if found.lacks:
        return f"whether an op is off is not known: the recording is {reason_of(found.lacks)}"
    if not found.ops:
        return "no op could be replayed"
    if found.dtype == "float64":
        return "no op has a larger error than a correct implementation"
    return f"replayed in the recorded dtypes, {len(found.unequal)} of {len(found.ops)} ops not bit-equal"


def what_next(found: Replay) -> Iterator[str]:
    """Yield the command that writes a script of the op that is off, or shows the one nearest to it."""
    guilty = found.guilty
    if guilty is not None:
        yield next_line("replay", found.path, guilty.name, "--emit", "repro.py", step=found.step, rank=found.rank)
    elif found.ops:
        yield next_line("show", found.path, found.ops[0].name, step=found.step, rank=found.rank)


def _verdict(result: LocalError) -> str:
    ratio = "at places that are not finite" if math.isinf(result.ratio) else f"{result.ratio:.3g} times the floor"
    return (
        f"{result.slot} has a relative error of {result.error:.3g} from its own inputs, floor {result.floor:.3g}, "
        f"{ratio}; greatest {result.max_abs:.3g} at {list(result.at)}"
    )


def _place(op: ReplayedOp) -> str:
    parts = [f"phase {op.phase}"]
    parts += [f"module {op.module}"] if op.module else []
    parts += [f"belongs to {op.forward}"] if op.forward else []
    parts += [op.source] if op.source else []
    return ", ".join(parts)


def _counts(found: Replay, of: str = "") -> Iterator[str]:
    same = sum(op.bit_equal for op in found.ops)
    drew = sum(op.drew for op in found.ops)
    yield (
        f"{len(found.ops)} ops{of} replayed on {found.device}: {same} bit-equal in the recorded dtype"
        f"{f' ({drew} of all drew random numbers)' if drew else ''}, {len(found.skipped)} not replayed"
    )
    for reason, count in found.reasons.most_common():
        names = [call.name for call in found.skipped if call.reason == reason]
        more = f", ... {count - 3} more" if count > 3 else ""
        yield f"  {count}: {reason} ({', '.join(names[:3])}{more})"


def ops_table(found: Replay, limit: int | None) -> Table:
    """Return a row for each op, the worst first."""
    table = Table(
        names("call"),
        words("slot"),
        names("module", spare=3),
        words("phase", spare=4),
        numbers("ratio"),
        numbers("error"),
        numbers("floor"),
        numbers("max abs", spare=2),
        numbers("bits", spare=1),
        numbers("against", spare=5),
    )
    for op in islice(found.ops, limit):
        worst = op.worst
        table.add_row(
            op.name,
            worst.slot,
            op.module or "-",
            op.phase,
            f"{worst.ratio:.3g}",
            f"{worst.error:.3g}",
            f"{worst.floor:.3g}",
            f"{worst.max_abs:.3g}",
            "equal" if op.bit_equal else "differ",
            op.reference,
        )
    return table


def repeated_lines(found: Repeated) -> Iterator[str]:
    """Yield what came of running ops several times: those that differ, then those that are documented to."""
    where = f"step {found.step}, rank {found.rank} of {found.path}"
    count = len(found.guilty)
    said = f"{count} of them {'are' if count != 1 else 'is'} not deterministic" if count else "all gave the same bits"
    if not count and found.unsteady:
        said = "only ops that are documented to differ did"
    yield f"{where}: {found.ops} ops ran {found.times} times on {found.device}: {said}."
    for op in sorted(found.unsteady, key=lambda op: op.documented):
        size = "" if op.greatest is None else f", by up to {op.greatest:.3g}"
        documented = "; PyTorch documents that it may not be deterministic" if op.documented else ""
        at = f" ({op.source})" if op.source else ""
        differ = f"{op.elements} of {op.numel} elements differ in run {op.run}{size}"
        yield f"  {op.name}{at}: {op.slot}: {differ}{documented}"
    for reason, number in Counter(one.reason for one in found.skipped).most_common():
        yield f"not run: {number} calls: {reason}"
    if found.lacks:
        yield f"not whole: {found.lacks}"
