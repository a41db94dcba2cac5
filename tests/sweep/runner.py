"""Runs each sample three times: bare, in a DumpMode, and under an independent trace; compares them bit by bit.

The trace says what the ops are, what they were given and what they gave; only what two runs without the dump agree on is
asked of the dump, so an op whose result is not determined (memory that nobody wrote) is told from one that the dump changed.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
import xxhash

from aten_dump import DumpConfig, DumpMode
from aten_dump.errors import MissingDataError
from tests.capture.bits import raw, values

from .exclusions import PARTLY_WRITTEN, READS_UNDEFINED, RECORDED_WHOLE, UNDETERMINED, WRITES
from .fingerprints import Fingerprint, fingerprint
from .memory_dump import StepSink
from .samples import DTYPES, Outcome, full_name, run, samples_of
from .trace import Trace, TracedOp


@dataclass
class Report:
    """What a sweep found; `problems` is empty when every promise held."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    undetermined: Counter[str] = field(default_factory=Counter)
    recorded_whole: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    unlinked: Counter[str] = field(default_factory=Counter)
    hidden_writes: Counter[str] = field(default_factory=Counter)
    opaque: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        self.problems += other.problems
        self.excluded |= other.excluded
        for name in ("counts", "undetermined", "recorded_whole", "undefined", "unlinked", "hidden_writes", "opaque"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True)
class Settings:
    """What is run of each op, where, and how it is recorded."""

    limit: int | None = None  # samples of an op in a dtype
    device: str = "cpu"
    data: Any = "full"
    level: Any = "mix"


def sweep_op(op: Any, settings: Settings) -> Report:
    """Run the samples of one entry of op_db in every dtype it supports."""
    report = Report()
    for name, dtype in DTYPES.items():
        if not op.supports_dtype(dtype, settings.device):
            continue
        where = f"{full_name(op)}[{name}]"
        try:
            _sweep_dtype(op, dtype, where, settings, report)
        except Exception:
            report.problems.append(f"{where}: {traceback.format_exc(limit=-6)}")
    report.counts["ops"] += 1
    return report


def _sweep_dtype(op: Any, dtype: torch.dtype, where: str, settings: Settings, report: Report) -> None:
    def samples() -> list[Any]:
        return samples_of(op, dtype, settings.limit, settings.device)

    def run_one(sample: Any) -> Outcome:
        return run(op, sample, settings.device)

    bare = list(map(run_one, samples()))
    again = list(map(run_one, samples()))
    traced, traces = [], []
    for sample in samples():
        with Trace() as trace:
            traced.append(run_one(sample))
        traces.append(trace.ops)
    given, dumped, sink = samples(), [], StepSink()
    with DumpMode(DumpConfig(path="unused", data=settings.data, level=settings.level), sink=sink) as dump:
        for sample in given:
            dumped.append(run_one(sample))
            dump.step()
    report.counts["ops and dtypes"] += 1
    for i, runs in enumerate(zip(bare, again, traced, dumped, strict=True)):
        _compare_outcomes(*runs, f"{where}#{i}", report)
        rank = sink.rank(i)
        _compare_records(traces[i], rank, f"{where}#{i}", report)
        _compare_api(op, rank, dumped[i], f"{where}#{i}", report)


def _compare_outcomes(
    expected: Outcome, again: Outcome, traced: Outcome, found: Outcome, where: str, report: Report
) -> None:
    report.counts["samples"] += 1
    if expected.error != traced.error:
        report.problems.append(f"{where}: the trace itself failed: {traced.error}, expected {expected.error}")
    if expected.error != found.error:
        report.problems.append(f"{where}: error {found.error}, expected {expected.error}")
    report.counts["samples that raise"] += expected.error is not None
    if not all(map(torch.equal, expected.rng, found.rng)):
        report.problems.append(f"{where}: the random generator is elsewhere")
    name = where.partition("[")[0]
    for kind in ("results", "gradients", "inputs"):
        report.counts[kind] += len(getattr(expected, kind))
        prints = [
            [None if t is None else fingerprint(t) for t in getattr(run, kind)]
            for run in (expected, again, traced, found)
        ]
        if prints[0] == prints[3]:
            continue
        same_shapes = [_shape(p) for p in prints[0]] == [_shape(p) for p in prints[3]]
        if same_shapes and (prints[0] != prints[1] or name in UNDETERMINED):
            report.undetermined[name] += 1  # two bare runs differ as well
        else:
            as_traced = "as under any mode" if prints[2] == prints[3] else "not as under another mode"
            report.problems.append(f"{where}: {kind} differ, {as_traced}: {prints[3]}, expected {prints[0]}")


def _shape(print: Fingerprint | None) -> Fingerprint | None:
    return print and print._replace(digest="")


def _compare_records(trace: list[TracedOp], rank: Any, where: str, report: Report) -> None:
    if where.partition("[")[0] in RECORDED_WHOLE and any(note.code == "own_formula" for note in rank.notes):
        report.recorded_whole[where.partition("#")[0]] += 1
        return
    calls = [call for call in rank.calls if call.kind == "aten"]
    if [c.op for c in calls] != [t.op for t in trace]:
        report.problems.append(f"{where}: recorded {[c.op for c in calls]}, expected {[t.op for t in trace]}")
        return
    for call, traced in zip(calls, trace, strict=True):
        report.counts["aten ops"] += 1
        hidden = traced.changed - traced.written
        if hidden:
            report.hidden_writes[f"{traced.op} {sorted(hidden)}"] += 1
        unsaid = WRITES.get(call.op, set())  # written, or not, depending on an argument
        if call.error is None and (set(call.mutated) ^ traced.changed) - (unsaid - hidden):
            report.problems.append(f"{where}: {call.name} mutated {call.mutated}, expected {sorted(traced.changed)}")
        if call.op not in PARTLY_WRITTEN and where.partition("[")[0] not in UNDETERMINED:
            _compare_values(values(call.inputs), traced.inputs, f"{where}: {call.name}.input", report)
            _compare_values(values([call.outputs]), traced.outputs, f"{where}: {call.name}.output", report)
        _check_undefined(call, where, report)
        if call.phase == "backward":
            report.counts["backward aten ops"] += 1
            if call.forward is None:
                report.unlinked[f"{where.partition('#')[0]} {call.op} in {call.parent and call.parent.op}"] += 1


def _compare_values(found: list[Any], expected: list[Fingerprint], where: str, report: Report) -> None:
    if len(found) != len(expected):
        report.problems.append(f"{where}: {len(found)} values, expected {len(expected)}")
        return
    for i, (value, print) in enumerate(zip(found, expected, strict=True)):
        report.counts["values"] += 1
        if value.undefined:
            continue
        problem = _compare_value(value, print, report)
        if problem:
            report.problems.append(f"{where}.{i}: {problem}")


def _check_undefined(call: Any, where: str, report: Report) -> None:
    """Memory that nothing wrote is allocated, viewed and written to, or copied with such memory; nothing computes with it."""
    inputs, outputs = values(call.inputs), values([call.outputs])
    if call.op in READS_UNDEFINED or not any(v.undefined for v in inputs + outputs):
        return
    named = dict(zip(call.arguments, call.inputs[0], strict=False)) | call.inputs[1]
    written = {v.id for name in call.mutated for v in values([named.get(name)])}
    made = {v.storage for v in outputs}
    for value in inputs:
        if value.undefined and value.id not in written and value.storage not in made and "empty" not in call.op:
            report.problems.append(f"{where}: {call.name} reads undefined memory, value {value.id}")
            report.undefined[call.op] += 1
    given = {v.storage for v in inputs if v.undefined}
    for value in outputs:
        if value.undefined and "empty" not in call.op and value.storage not in given:
            report.problems.append(f"{where}: {call.name} makes undefined memory, value {value.id}")
            report.undefined[call.op] += 1


def _compare_value(value: Any, expected: Fingerprint, report: Report) -> str | None:
    if value.opaque or not expected.digest:
        report.opaque[str(value.extra or expected.dtype)] += 1
        return None if value.shape == expected.shape else f"shape {value.shape}, expected {expected.shape}"
    try:
        tensor = value.tensor()
    except MissingDataError as error:
        return str(error)
    found = fingerprint(tensor)
    if found != expected:
        return f"{found}, expected {expected}"
    if value.hash is not None and value.hash != xxhash.xxh3_64_hexdigest(raw(tensor)):
        return "the hash is not of these bits"
    return None


def _compare_api(op: Any, rank: Any, outcome: Outcome, where: str, report: Report) -> None:
    """An op that is one Python-level call: its recorded outputs are what it returned."""
    if (
        where.partition("[")[0] in UNDETERMINED
        or outcome.error is not None
        or not isinstance(op.op, (BuiltinFunctionType, MethodDescriptorType))
    ):
        return
    calls = [c for c in rank.roots if c.kind == "api" and c.phase == "forward" and c.api == op.op.__name__]
    if not calls:
        return
    recorded = values([calls[0].outputs])
    _compare_values(recorded, list(map(fingerprint, outcome.results)), f"{where}: {calls[0].name}.output", report)
    report.counts["Python-level calls"] += 1
