"""Programs on two ranks: what is said of honest layouts, and of bugs that one rank alone has.

A layout is compared with a second run of itself, and with one process. What cannot be compared across layouts
(docs/layouts.md) must be said so, and never be a difference.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from aten_dump import AtenDumpError, compare, open_dump, replay
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evidence.findings import Finding
from tests.distributed.launching import launch

from .examine import Said
from .pipelines import PIPELINES, run_whole
from .ranked_training import BUGS, DIVIDED, layouts, prepared, train

NAMES = (*DIVIDED, *PIPELINES)
_SECONDS = 900.0  # for all recordings of a program
_REDUCES = (
    "aten::div_.Tensor",
    "aten::div_.Scalar",
    "aten::div.Tensor",
    "aten::mul_.Tensor",
)  # with what divides gradients
_CLIPS = "aten::_foreach_norm.Scalar"  # of clip_grad_norm_, before the optimizer
_SPOILED = {  # what wrong gradients spoil, where a program may have none
    "fsdp": "the root, whose gradients are divided otherwise, has no parameters of its own",
    "tp": "no gradient is reduced",
}
_LOOKUPS = (AtenDumpError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass(frozen=True)
class RankCase:
    """One layout of a program, honest or with a bug, and what it is compared with."""

    program: str
    layout: str
    run: str  # "b" is honest; else the bug
    against: Literal["itself", "one process"]

    @property
    def group(self) -> str:
        return "honest" if self.run == "b" else "bug"

    def __str__(self) -> str:
        what = "" if self.run == "b" else f", wrong {self.run} on rank 1"
        return f"{self.program}: {self.layout}{what}, against {self.against}"


def cases_of(name: str) -> Iterator[RankCase]:
    """Yield the cases of one program; bugs of pipelines have no counterpart in one process."""
    for layout in layouts(name):
        yield RankCase(name, layout, "b", "itself")
        yield RankCase(name, layout, "b", "one process")
        for bug in BUGS:
            yield RankCase(name, layout, bug, "itself")
            if name not in PIPELINES:
                yield RankCase(name, layout, bug, "one process")


def record_all(name: str, folder: Path) -> dict[str, Any]:
    """Record a program in one process and in all its layouts; return what rank 1 knows of its wrong kernels."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    torch.manual_seed(99)
    if name in PIPELINES:
        run_whole(folder / "single", name)
    else:
        training = prepared(name)
        train(folder / "single", training, training.model)
    launched = launch(name.replace(" ", "_"), folder, _SECONDS, "tests.trial.ranked_training")
    return launched.results[1]


def examine_ranks(case: RankCase, folder: Path, kernel: dict[str, Any]) -> Said:
    """Say what the tool makes of a case that has been recorded."""
    if case.run == "kernel" and not kernel["changed"]:
        return Said("no effect", f"the result of {kernel['op']}.{kernel['number']} is what it was")
    path = folder / f"{case.layout}.{case.run}"
    if case.run == "gradients" and case.layout in _SPOILED and not _is_changed(path, folder / f"{case.layout}.b"):
        return Said("no effect", _SPOILED[case.layout])
    whole = case.against == "one process"
    shard = 0 if whole and case.group == "bug" and case.layout in ("ddp", "fsdp") else None
    own = "ddp.hook" if case.layout == "ddp" and case.run == "gradients" else f"{case.layout}.a"
    try:
        found = compare(path, folder / ("single" if whole else own), batch_shard=shard)
        if case.group == "honest":
            return _honest(case, found, path)
        honest = folder / f"{case.layout}.b"
        guilty = _changed_calls(case, path, honest, kernel["op"]) if case.run == "kernel" else None
        return _bug(case, found, guilty, open_dump(path))
    except _LOOKUPS as error:
        return Said("crash", f"{type(error).__name__}: {error}".replace("\n", " ")[:200])


def _honest(case: RankCase, found: Comparison, path: Path) -> Said:
    text = _said(found)
    if found.exit_code == 2:
        return Said("incomparable" if case.against == "one process" else "alarm", text)
    if case.against == "itself":
        suspects = replay(open_dump(path).step(0).rank(1)).suspects
        if suspects:
            return Said("contradiction", f"{text}; replay: {suspects[0].name} x{suspects[0].ratio:.3g}")
    return Said("alarm" if found.exit_code else "agrees", text)


def _bug(case: RankCase, found: Comparison, guilty: frozenset[str] | None, dump: Any) -> Said:
    text = _said(found)
    if found.exit_code != 1:
        return Said("missed", text)
    first = found.first
    if first is None:
        return Said("elsewhere", text)
    evidence, cause = first
    named = evidence.ranks[0] == 1 if case.against == "itself" else "rank 1" in found.answer().splitlines()[0]
    if not named:
        return Said("elsewhere", f"rank 1 is not named: {text}")
    if guilty is not None:
        return Said("call" if cause.row.place.call in guilty else "elsewhere", f"{text} (guilty: {sorted(guilty)})")
    found_there = cause.kind == "source" if case.run == "data" else _reduces(cause)
    place = cause.row.place
    reads = (
        place.phase == "optimizer" or place.op == _CLIPS or (cause.kind == "rewired" and "Distributed." in cause.text)
    )
    read = case.run == "gradients" and reads  # what first reads gradients, or goes on with what was not reduced
    return Said("call" if found_there else "reader" if read else "elsewhere", text)


def _reduces(cause: Finding) -> bool:
    """Return True if the cause is what reduces or divides gradients."""
    place = cause.row.place
    return "c10d" in place.op or place.call.startswith("Distributed.") or place.op in _REDUCES or cause.kind == "moved"


def _changed_calls(case: RankCase, path: Path, honest: Path, op: str) -> frozenset[str]:
    """Return the first call of an op on rank 1 that returned something else than in the honest run, and those around it and in it."""
    infers_shapes = case.program in PIPELINES  # by a run on memory that nothing had written
    meaningless: set[tuple[int, int, int]] = set()  # memory with what was computed of memory that nothing had written
    for one, two in _calls_of_rank_1(path, honest):
        read = [value for _, value in one.input_values() if value.id in one.read_value_ids()]
        if infers_shapes and one.kind == "aten" and any(v.undefined or _memory_of(v) in meaningless for v in read):
            meaningless |= {_memory_of(value) for _, value in one.result_values() if value.storage}
        elif one.kind == "aten" and one.op.partition("::")[2].partition(".")[0] == op and _differ(one, two):
            around = [] if one.parent is None else [one.parent]
            return frozenset(call.name for call in (one, *around, *one.children))
    raise LookupError(f"no call of {op} on rank 1 differs")


def _memory_of(value: Any) -> tuple[int, int, int]:
    return value.rank.step, value.storage, value.version


def _is_changed(path: Path, honest: Path) -> bool:
    """Return True if rank 1 ran other calls than in the honest run, or one that returned something else."""
    return any(one.name != two.name or _differ(one, two) for one, two in _calls_of_rank_1(path, honest))


def _calls_of_rank_1(path: Path, honest: Path) -> Iterator[tuple[Any, Any]]:
    ours, theirs = (open_dump(p) for p in (path, honest))
    for step in ours.steps:
        yield from zip(ours.step(step).rank(1).calls, theirs.step(step).rank(1).calls, strict=False)


def _differ(one: Any, two: Any) -> bool:
    assert one.name == two.name, (one.name, two.name)
    values = [[value for _, value in call.result_values() if value.has_data] for call in (one, two)]
    return any(not torch.equal(_plain(a.tensor()), _plain(b.tensor())) for a, b in zip(*values, strict=True))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num(12345.0)


def _said(found: Comparison) -> str:
    cause = found.cause
    if cause is None:
        return f"{found.verdict}: {' '.join(found.answer().splitlines())[:200]}" if found.exit_code else found.verdict
    place = cause.row.place
    return f"{found.verdict}: {place.step}|{cause.kind}|{place.call}|{place.module}|{place.phase}| {cause.text[:300]}"


def run_cases(names: Sequence[str], words: Sequence[str], folder: Path) -> Iterator[tuple[RankCase, Said]]:
    """Record each program once, in all layouts, and yield what came of its cases whose text has all of the words."""
    for name in names:
        chosen = [case for case in cases_of(name) if all(word in f"{case.group} {case}" for word in words)]
        if not chosen:
            continue
        try:
            known = record_all(name, folder / "ranks")
        except AssertionError as error:
            yield chosen[0], Said("crash", str(error)[-300:])
            continue
        yield from ((case, examine_ranks(case, folder / "ranks", known[case.layout])) for case in chosen)
