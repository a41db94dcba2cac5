"""All that is done with a dump that may be anything: open, list, show, verify, read, write tables.

Each function must end soon, with right data or an `AtenDumpError`; nothing else may come out, whatever the bytes are.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch

from aten_dump.analysis.executors import verify_rank
from aten_dump.analysis.replay import replay_call
from aten_dump.analysis.rerun.repro_script import repro_script
from aten_dump.dump import Dump, RankDump, open_dump
from aten_dump.errors import AtenDumpError
from aten_dump.report.details import call_details, value_details
from aten_dump.report.terminal_tables import note_sentences, run_lines, saved_by_call, saved_by_module, steps_table
from aten_dump.report.tree import call_line, tree_lines
from aten_dump.report.value_rows import columns, value_rows, write_csv, write_json
from aten_dump.store.recovery import recover

FEW = 12

Look = Callable[[RankDump, random.Random], object]


def look_at(path: Path, random: random.Random) -> list[AtenDumpError | str]:
    """Do everything with a dump; return the errors that its readers were given, and the problems that `verify` names."""
    errors: list[AtenDumpError] = []
    try:
        dump = open_dump(path)
    except AtenDumpError as error:
        return [error]
    problems = list(dump.problems)
    for action in (lambda: list(run_lines(dump)), lambda: _summaries(dump)):
        _attempt(action, errors)
    for rank in dump.all_ranks():
        for look in LOOKS:
            _attempt(lambda look=look, rank=rank: look(rank, random), errors)  # type: ignore[misc]
        _attempt(lambda rank=rank: problems.extend(verify_rank(rank).problems), errors)  # type: ignore[misc]
    return [*errors, *problems]


def _attempt(action: Callable[[], object], errors: list[AtenDumpError]) -> None:
    try:
        action()
    except AtenDumpError as error:
        errors.append(error)


def _summaries(dump: Dump) -> None:
    found = [(rank, rank.summary()) for rank in dump.all_ranks()]
    steps_table(found, None)


def _tree(rank: RankDump, random: random.Random) -> None:
    for line in islice(tree_lines(rank), 300):
        call_line(line)


def _calls(rank: RankDump, random: random.Random) -> None:
    names = list(islice(rank.links.names, 2000))
    for name in random.sample(names, min(FEW, len(names))):
        list(call_details(rank[name]))
    rank.calls_by_kind()
    list(note_sentences(rank))
    assert rank.missing is not None and rank.seconds is not None


def _values(rank: RankDump, random: random.Random) -> None:
    for at in random.sample(range(len(rank.values)), min(FEW, len(rank.values))):
        list(value_details("value", rank.values[at]))


def _tensors(rank: RankDump, random: random.Random) -> None:
    for value in rank.values:
        try:
            value.tensor()
        except AtenDumpError:
            continue


def _tables(rank: RankDump, random: random.Random) -> None:
    rows = list(islice(value_rows(rank.calls), 300))
    write_csv(rows, columns([rank]), io.StringIO())
    write_json(rows, columns([rank]), io.StringIO())


def _saved(rank: RankDump, random: random.Random) -> None:
    saved = rank.saved_for_backward()
    saved_by_call(saved, 10)
    saved_by_module(saved, 2, 10)
    assert rank.gradients is not None and rank.loss_scales is not None


def _reruns(rank: RankDump, random: random.Random) -> None:
    """Replay some calls, and write scripts of them: an allow-list and checked arguments are all that is between."""
    calls = [call for call in islice(rank.calls, 2000) if call.kind == "aten"]
    for call in random.sample(calls, min(FEW, len(calls))):
        replay_call(call)
        try:
            repro_script(call)
        except AtenDumpError:
            continue


LOOKS: tuple[Look, ...] = (_tree, _calls, _values, _tensors, _tables, _saved, _reruns)


def mend(path: Path) -> list[AtenDumpError]:
    """Recover every step and rank of a dump, as `aten-dump recover` does; return the errors that it gave."""
    errors: list[AtenDumpError] = []
    try:
        ranks = open_dump(path).all_ranks()
    except AtenDumpError as error:
        return [error]
    for rank in ranks:
        _attempt(lambda rank=rank: recover(rank.directory), errors)  # type: ignore[misc]
    return errors


def wrong_tensors(original: Path, spoiled: Path) -> tuple[int, list[str]]:
    """Return how many tensors of a spoiled dump can be read, and which of them are not those of the original."""
    right = {(rank.step, rank.rank): rank for rank in open_dump(original).all_ranks()}
    read, wrong = 0, []
    try:
        ranks = open_dump(spoiled).all_ranks()
    except AtenDumpError:
        return 0, []
    for rank in ranks:
        try:
            values = rank.values
            for value in values:
                try:
                    found = value.tensor()
                except AtenDumpError:
                    continue
                read += 1
                expected = right[rank.step, rank.rank].value_by_id(value.id).tensor()
                if _bits(found) != _bits(expected):
                    wrong.append(f"value {value.id} of {rank.where}")
        except AtenDumpError:
            continue
    return read, wrong


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
