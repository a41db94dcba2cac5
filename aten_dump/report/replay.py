"""A replay as text: the answer in a paragraph, then the table of ops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from ..analysis.repeat import Repeated
from ..analysis.replay import Replay, ReplayedOp
from ..analysis.rerun.rounding_error import SUSPECT, LocalError
from ..dump.shown.command_lines import next_line
from ..dump.wholeness import reason_of
from .table import Table, names, numbers, words


def answer_lines(found: Replay) -> Iterator[str]:
    """Yield the answer: which op is off, by how much, where; then how many ran and how many could not."""
    where = f"{found.path} (step {found.step}, rank {found.rank})"
    guilty = found.guilty
    if guilty is not None:
        yield f"{guilty.name} ({guilty.op}) is the first suspect in {where}: {_verdict(guilty.worst)}."
        yield f"  {_place(guilty)}"
        others = len(found.suspects) - 1
        if others:
            yield f"  {others} other ops are further off than an honest implementation is (more than {SUSPECT:g} times)"
    elif found.layers:
        yield f"each op of {where} is as near as an honest implementation is, but a compiler made another function"
    elif found.lacks:
        yield f"whether an op of {where} is off is not known: the recording is {reason_of(found.lacks)}"
    elif found.ops and found.dtype == "float64":
        worst = found.ops[0]
        yield f"no op of {where} is further off than an honest implementation is"
        yield f"  the worst is {worst.name}: {_verdict(worst.worst)}"
    elif found.ops:
        yield f"replayed {where} in the recorded dtypes"
    else:
        yield f"no op of {where} could be replayed"
    yield from (f"  Layer: {fault}" for fault in found.layers)
    yield from _counts(found)


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


def _counts(found: Replay) -> Iterator[str]:
    same = sum(op.bit_equal for op in found.ops)
    drew = sum(op.drew for op in found.ops)
    yield (
        f"{len(found.ops)} ops replayed on {found.device}: {same} bit-equal in the recorded dtype"
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
