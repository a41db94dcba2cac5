"""In which precision each side computes: what differs by that counts as rounding, so it must be said."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...dump import Call, RankDump


def precision_notes(target: RankDump, baseline: RankDump) -> Iterator[str]:
    """Yield a sentence for each dtype of one side that is coarser than all in which the other computes."""
    sides = [calls_by_dtype(rank) for rank in (target, baseline)]
    names = ("target", "baseline")
    for side, (ours, theirs) in enumerate((sides, sides[::-1])):
        coarsest = max((torch.finfo(dtype).eps for dtype in theirs), default=1.0)
        for dtype, calls in ours.items():
            if torch.finfo(dtype).eps > coarsest:
                yield (
                    f"the {names[side]} computes in {str(dtype).removeprefix('torch.')} ({len(calls)} calls, "
                    f"{calls[0].name} the first), the {names[1 - side]} does not: "
                    "what differs by that counts as rounding"
                )


def calls_by_dtype(rank: RankDump) -> dict[torch.dtype, list[Call]]:
    """Return the aten calls that return a floating tensor, by the dtype of the first one."""
    found: dict[torch.dtype, list[Call]] = {}
    for call in rank.calls.filter(kind="aten"):
        value = next((value for _, value in call.output_values()), None)
        if value is not None and value.is_floating and not value.dtype.is_complex:
            found.setdefault(value.dtype, []).append(call)
    return found
