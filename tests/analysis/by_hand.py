"""What analysis judges, made by hand: how close values are, what is known of inputs, one recorded call, two recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aten_dump import open_dump
from aten_dump.analysis.by_distance.rank_evidence import divide
from aten_dump.analysis.by_distance.result_judge import ResultJudge
from aten_dump.analysis.by_distance.sources import Outside
from aten_dump.analysis.by_distance.walk import Walk
from aten_dump.analysis.distance.metrics import Metrics
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.findings import Status
from aten_dump.analysis.evidence.judgement import Inputs
from aten_dump.analysis.rerun.op_errors import Replays
from aten_dump.analysis.tasks import Settings, pair_calls
from aten_dump.dump import Call, RankDump
from aten_dump.store import records as r
from tests.dump.building import Builder, value

ROUNDOFF = 2.0**-24  # of float32

EQUAL = Metrics(
    count=4,
    dtype="float32",
    rel_l2=0.0,
    max_abs=0.0,
    max_abs_at=None,
    max_rel=0.0,
    max_rel_at=None,
    max_scaled=0.0,
    cosine=1.0,
    rmse=0.0,
    exact=1.0,
    within_1e3=1.0,
    within_5e3=1.0,
    ulp=(),
    nonfinite=0,
    nonfinite_at=None,
    target_nonfinite=0,
    baseline_nonfinite=0,
)


def apart(rel_l2: float, **changes: Any) -> Closeness:
    """Return what is found of tensors that are so far apart."""
    found = replace(EQUAL, **{"rel_l2": rel_l2, "exact": 0.0, "rmse": 1.0, **changes})
    return Closeness("tensor", found.bitwise, rel_l2, found, nonfinite=found.nonfinite > 0)


def inputs(worst: Status = "same", error: float = 0.0, depth: int = 0, **changes: Any) -> Inputs:
    return replace(Inputs(worst, error, depth, True, True), **changes)


def one_call(
    path: Path,
    op: str,
    given: Sequence[Any],
    results: Sequence[torch.Tensor],
    *,
    arguments: Sequence[str] = (),
    keywords: Mapping[str, Any] | None = None,
    kind: str = "aten",
    **options: Any,
) -> Call:
    """Return a call as if a program had made it: whatever is said to be its result was recorded as that.

    Args:
        path: of the dump to make.
        op: its op.
        given: tensors, lists of them, and plain values.
        results: one, or several that make a tuple.
        arguments: names of what is given.
        keywords: plain values.
        kind: of the call.
        options: of Builder.value, for the results.
    """
    b = Builder(path)
    trees = [_tree(b, item) for item in given]
    made = [value(b.value(tensor, **options)) for tensor in results]
    name = op.partition("::")[2].partition(".")[0] or op
    number = b.op(kind, op, "Aten" if kind == "aten" else "Torch", name, tuple(arguments))
    id = b.call(
        number,
        args=trees,
        kwargs=dict(keywords or {}) or None,
        outputs=made[0] if len(made) == 1 else [r.TREE_TUPLE, *made],
    )
    return open_dump(b.finish()).rank(0, 0).call(id)


def _tree(b: Builder, item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return value(b.value(item))
    if isinstance(item, torch.dtype):
        return [r.TREE_DTYPE, str(item).removeprefix("torch.")]
    return [r.TREE_LIST, *(_tree(b, entry) for entry in item)] if isinstance(item, list) else item


def walked(target: RankDump, baseline: RankDump, settings: Settings | None = None, *, exact: bool = True) -> Walk:
    """Return the walk over the pairs of two recordings."""
    settings = settings or Settings()
    pairs, _ = divide(pair_calls(target, baseline, settings.mapping))
    judge = ResultJudge(settings.rules, Replays(enabled=settings.replay), None)
    kind = pairs[0].target.kind if pairs else ""
    walk = Walk((target, baseline), kind, judge, Outside((0, 0), exact=exact), read_data=settings.data)
    walk.run(pairs)
    return walk
