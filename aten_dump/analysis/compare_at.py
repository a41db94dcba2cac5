"""Compare one named value of two programs: from which op on it differs, and what makes up the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dump import RankDump
from ..errors import MissingDataError
from .compare_steps import has_all
from .explanation.both_sides import evaluate
from .flow.flat_memory import with_parts
from .gaps.gap import Gap, GapFinder, gap_lines, gap_record
from .gaps.named_values import named_values, parse_at
from .given_dumps import Given, chosen, opened, rank_of
from .host_default import made_on_the_host
from .rerun.allowed_ops import allowed_patterns, allowing


@dataclass(frozen=True, slots=True)
class ComparisonAt:
    """What came of comparing one value: its `gap`, and the answer in words."""

    gap: Gap

    @property
    def exit_code(self) -> int:
        """0 if both are equal or rounding explains the gap; 1 otherwise."""
        return 0 if self.gap.is_rounding else 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, as docs/json/compare-at.schema.json has it."""
        return gap_record(self.gap)

    def answer(self) -> str:
        """Return the answer in lines."""
        return "\n".join(gap_lines(self.gap))


@made_on_the_host
def compare_at(
    target: Given, baseline: Given, at: str | tuple[str, str], *, step: str | int | None = None,
    rank: str | int | None = None, allow_ops: tuple[str, ...] = (),
) -> ComparisonAt:  # fmt: skip
    """Compare one named value of two programs, such as the log-probabilities of a trainer and of an engine.

    Args:
        target: the dump in question: a path, a `Dump`, a `Step` or a `RankDump`.
        baseline: the trusted dump, in the same forms.
        at: ``"NAME=NAME"``, of the target and of the baseline: names of `DumpMode.save`, or slots of calls.
        step: ``"3:0"`` takes step 3 of the target and step 0 of the baseline; None the first with calls.
        rank: the same for ranks.
        allow_ops: patterns of library ops to run too: ``["mylib::*"]``.

    Returns:
        The two values, and the gap between them in its parts, as relative L2 distances.

    Raises:
        MissingDataError: no such value exists, or bytes of some ops are missing.

    Example:
        >>> found = compare_at("dump", "baseline", "loss=loss")
        >>> found.gap.is_rounding
        False
    """
    names = parse_at(at)
    ranks = _rank(target, baseline, step, rank, 0), _rank(target, baseline, step, rank, 1)
    for one in ranks:
        if not has_all(one):
            raise MissingDataError(f'{one.where} lacks bytes of ops; record with data="tensor" or "full", all ops')
    sides = with_parts(ranks[0]), with_parts(ranks[1])
    values = named_values(sides[0], names[0]), named_values(sides[1], names[1])
    with allowing(allowed_patterns(allow_ops)):
        found = evaluate(sides, None, by_role=False)
        return ComparisonAt(GapFinder(found, values).find(names))


def _rank(target: Given, baseline: Given, step: str | int | None, rank: str | int | None, side: int) -> RankDump:
    """Return the recording of one side that is asked for."""
    (one, *named), (other, *others) = opened(target), opened(baseline)
    steps, ranks = chosen("step", step, (named[0], others[0])), chosen("rank", rank, (named[1], others[1]))
    dump = (one, other)[side]
    if steps is None and ranks is None:
        return rank_of(dump)
    numbers = [
        None if asked is None else int(str(asked).split(":")[side if ":" in str(asked) else 0])
        for asked in (steps, ranks)
    ]
    found = dump.step(dump.steps[0] if numbers[0] is None else numbers[0])
    return found.rank(found.ranks[0] if numbers[1] is None else numbers[1])
