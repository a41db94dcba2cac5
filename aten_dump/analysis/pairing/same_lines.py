"""Which lines of two versions of a program are the same one.

Theory of operation
    An edit moves the lines below it, and a copy of a file has another name. Calls that were paired say which line
    stands for which: within one function of both, the lines of a file keep their order. Of the lines that pairs
    connect, the longest chain in one order is taken. A line with the same number and the same calls is itself. A line
    without such calls is moved as those around it are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dump import Call, RankDump
from ...dump.shown.source_lines import source_lines


class _Line(NamedTuple):
    """A line of a program: ``train.py:12 in step``."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


def name_lines_alike(target: RankDump, baseline: RankDump, pairs: Iterable[tuple[Call, Call]]) -> None:
    """Give the lines of the target, in `line_of`, the names of those of the baseline that they stand for.

    Args:
        target: a step and rank.
        baseline: its counterpart.
        pairs: of their calls.
    """
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for call, other in pairs:
        if call.kind == "aten" and call.op == other.op and call.phase != "backward":
            votes[call.where][other.where] += 1
    is_moved = any(line not in others for line, others in votes.items())
    theirs = {str(line) for line in _lines_of(baseline)} if is_moved else set()
    target.line_names = dict(_names(votes, _lines_of(target), theirs)) if is_moved else {}


def _lines_of(rank: RankDump) -> list[_Line]:
    stacks = np.unique(rank.tables.calls.column("stack")).tolist()
    return [line for stack in stacks if (line := _parsed(rank.tables.told(stack, source_lines))) is not None]


def _names(votes: Mapping[str, Counter[str]], lines: Sequence[_Line], theirs: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the target that have another name, and the name."""
    moved = _moved(votes)
    named = {line: _Line(moved[line.file].file, line.number + by, line.function) for line, by in _offsets(moved, lines)}
    named = {line: other for line, other in named.items() if line in moved[line.file].offsets or str(other) in theirs}
    taken = set(named.values())
    for line in lines:
        other = named.get(line)
        if other is not None and other != line:
            yield str(line), str(other)
        elif other is None and (line in taken or str(line) in theirs):
            yield str(line), f"{line} of the target"  # another line of the baseline has its name


class _File(NamedTuple):
    """A file of the baseline that stands for one of the target, and by how much lines of that are moved."""

    file: str
    offsets: dict[_Line, int]


def _moved(votes: Mapping[str, Counter[str]]) -> dict[str, _File]:
    """Return the files of the baseline that stand for those of the target, by name."""
    found: dict[tuple[str, str], list[tuple[_Line, _Line]]] = defaultdict(list)
    for text, others in votes.items():
        line, other = _parsed(text), _parsed(text if text in others else others.most_common(1)[0][0])
        if line is not None and other is not None and line.function == other.function:
            found[line.file, other.file].append((line, other))
    chains = sorted((files, _in_order(pairs)) for files, pairs in found.items())
    chains.sort(key=lambda item: len(item[1]))  # if several files line up with one, the longest chain is the last
    return {ours: _File(its, {one: two.number - one.number for one, two in chain}) for (ours, its), chain in chains}


def _offsets(moved: Mapping[str, _File], lines: Sequence[_Line]) -> Iterator[tuple[_Line, int]]:
    """Yield by how much each line is moved: as those of its function around it are, if they agree."""
    known = sorted((line, by) for file in moved.values() for line, by in file.offsets.items())
    for line in lines:
        at = bisect_left(known, (line, -line.number))
        around = known[max(0, at - 1) : at + 1]
        beside = {by for one, by in around if (one.file, one.function) == (line.file, line.function)}
        if line in dict(around):
            yield line, dict(around)[line]
        elif len(beside) == 1:
            yield line, beside.pop()


def _in_order(lines: list[tuple[_Line, _Line]]) -> list[tuple[_Line, _Line]]:
    """Return the longest chain of pairs of lines that are in one order on both sides."""
    ordered = sorted(lines, key=lambda pair: (pair[0].number, -pair[1].number))
    ends: list[int] = []  # the least last line of the baseline, by the length of a chain
    last: list[int] = []  # the pair at which it ends
    before: list[int] = []
    for at, (_, other) in enumerate(ordered):
        length = bisect_left(ends, other.number)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [other.number]
        last[length : length + 1] = [at]
    found, at = [], last[-1] if last else -1
    while at >= 0:
        found.append(ordered[at])
        at = before[at]
    return found


def _parsed(text: str) -> _Line | None:
    place, _, function = text.partition(" in ")
    file, _, number = place.rpartition(":")
    return _Line(file, int(number), function) if number.isdecimal() else None
