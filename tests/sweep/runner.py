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

from .fingerprints import Fingerprint, fingerprint
from .memory_dump import StepSink
from .samples import DTYPES, Outcome, run, samples_of
from .trace import Trace, TracedOp


@dataclass
class Report:
    """What a sweep found; `problems` is empty when every promise held."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    undetermined: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    unlinked: Counter[str] = field(default_factory=Counter)
    hidden_writes: Counter[str] = field(default_factory=Counter)
    opaque: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        self.problems += other.problems
        self.excluded |= other.excluded
        for name in ("counts", "undetermined", "undefined", "unlinked", "hidden_writes", "opaque"):
            getattr(self, name).update(getattr(other, name))


def sweep_op(op: Any, limit: int | None = None, data: str = "full", level: str = "mix") -> Report:
    """Run the samples of one entry of op_db in every dtype it supports."""
    report = Report()
    for name, dtype in DTYPES.items():
        if not op.supports_dtype(dtype, "cpu"):
            continue
        where = f"{full_name(op)}[{name}]"
        try:
            _sweep_dtype(op, dtype, where, limit, DumpConfig(path="unused", data=data, level=level), report)
        except Exception:
            report.problems.append(f"{where}: {traceback.format_exc(limit=-6)}")
    report.counts["ops"] += 1
    return report


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _sweep_dtype(op: Any, dtype: torch.dtype, where: str, limit: int | None, config: DumpConfig, report: Report) -> None:
    bare = [run(op, sample) for sample in samples_of(op, dtype, limit)]
    traced, traces = [], []
    for sample in samples_of(op, dtype, limit):
        with Trace() as trace:
            traced.append(run(op, sample))
        traces.append(trace.ops)
    samples, dumped, sink = samples_of(op, dtype, limit), [], StepSink()
    with DumpMode(config, sink=sink) as dump:
        for sample in samples:
            dumped.append(run(op, sample))
            dump.step()
    report.counts["ops and dtypes"] += 1
    for i, (expected, other, found) in enumerate(zip(bare, traced, dumped)):
        _compare_outcomes(expected, other, found, f"{where}#{i}", report)
        rank = sink.rank(i)
        _compare_records(traces[i], rank, f"{where}#{i}", report)
        _compare_api(op, rank, found, f"{where}#{i}", report)


def _compare_outcomes(expected: Outcome, other: Outcome, found: Outcome, where: str, report: Report) -> None:
    report.counts["samples"] += 1
    if expected.error != found.error:
        report.problems.append(f"{where}: error {found.error}, expected {expected.error}")
    report.counts["samples that raise"] += expected.error is not None
    assert expected.rng is not None and found.rng is not None
    if not torch.equal(expected.rng, found.rng):
        report.problems.append(f"{where}: the random generator is elsewhere")
    for kind in ("results", "gradients", "inputs"):
        report.counts[kind] += len(getattr(expected, kind))
        three = [[None if t is None else fingerprint(t) for t in getattr(o, kind)] for o in (expected, other, found)]
        if three[0] == three[2]:
            continue
        if three[0] != three[1] and [_shape(p) for p in three[0]] == [_shape(p) for p in three[2]]:
            report.undetermined[where.partition("[")[0]] += 1  # two runs without the dump differ as well
        else:
            report.problems.append(f"{where}: {kind} differ: {three[2]}, expected {three[0]}")


def _shape(print: Fingerprint | None) -> Fingerprint | None:
    return print and print._replace(digest="")


def _compare_records(trace: list[TracedOp], rank: Any, where: str, report: Report) -> None:
    calls = [call for call in rank.calls if call.kind == "aten"]
    if [c.op for c in calls] != [t.op for t in trace]:
        report.problems.append(f"{where}: recorded {[c.op for c in calls]}, expected {[t.op for t in trace]}")
        return
    for call, traced in zip(calls, trace):
        report.counts["aten ops"] += 1
        written = traced.written | (traced.changed & set(call.mutated))
        if hidden := traced.changed - traced.written:
            report.hidden_writes[f"{traced.op} {sorted(hidden)}"] += 1
            if not hidden <= set(call.mutated):
                report.problems.append(f"{where}: {call.name} writes {sorted(hidden)} unsaid; recorded {call.mutated}")
        quiet = set(call.mutated) - written  # written, but with the bits that were there: batch_norm with momentum 0
        if call.error is None and (written - set(call.mutated) or (quiet and "batch_norm" not in call.op)):
            report.problems.append(f"{where}: {call.name} mutated {call.mutated}, expected {sorted(written)}")
        _compare_values(values(call.inputs), traced.inputs, f"{where}: {call.name}.input", report)
        _compare_values(values([call.outputs]), traced.outputs, f"{where}: {call.name}.output", report)
        if call.phase == "backward":
            report.counts["backward aten ops"] += 1
            report.unlinked[call.op] += call.forward is None


def _compare_values(found: list[Any], expected: list[Fingerprint], where: str, report: Report) -> None:
    if len(found) != len(expected):
        report.problems.append(f"{where}: {len(found)} values, expected {len(expected)}")
        return
    for i, (value, print) in enumerate(zip(found, expected)):
        report.counts["values"] += 1
        if value.undefined:
            report.undefined[where.partition(": ")[2].split(".")[1]] += 1
            continue
        problem = _compare_value(value, print, report)
        if problem:
            report.problems.append(f"{where}.{i}: {problem}")


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
    if outcome.error is not None or not isinstance(op.op, (BuiltinFunctionType, MethodDescriptorType)):
        return
    calls = [c for c in rank.roots if c.kind == "api" and c.phase == "forward"]
    if not calls:
        return
    recorded = values([calls[0].outputs])
    _compare_values(recorded, list(map(fingerprint, outcome.results)), f"{where}: {calls[0].name}.output", report)
    report.counts["Python-level calls"] += 1
