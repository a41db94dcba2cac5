"""The answer to ``compare --at`` in words, and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from ...dump import Call
from ..evidence.place_of_call import place_of
from .gap import Gap

_MOST: Final = 5  # elements that are named
_SIDES: Final = ("target", "baseline")
_SHARE: Final = 1e-3  # of the difference: less is left out of a line


def gap_lines(gap: Gap) -> Iterator[str]:
    """Yield the answer: how far, of what it is made, from which op on, where most."""
    yield _headline(gap)
    yield "What makes up the gap (relative L2, of the baseline's value in float64):"
    for name, part in gap.parts.items():
        size = gap.relative(part)
        if size or not name.startswith("kernels"):
            side = 0 if name.endswith("target") else 1
            dtype = f" ({_dtype(gap, side)})" if name.startswith("precision") else ""
            yield f"  {size:<10.3g} {name}{dtype}"
    yield from _where(gap)
    yield from _elements(gap)
    if gap.unproven:
        names = ", ".join(gap.unproven[:_MOST])
        yield f"Note: {len(gap.unproven)} calls behind it were taken as recorded: {names}"


def gap_record(gap: Gap) -> dict[str, Any]:
    """Return the answer as plain values: distances are relative L2, of the baseline's value in float64."""
    apart, cause = gap.relative(gap.difference), gap.cause
    parting = gap.parting
    return {
        "target": gap.names[0],
        "baseline": gap.names[1],
        "verdict": _verdict(gap) if apart else "They are equal.",
        "is_rounding": gap.is_rounding,
        "elements": gap.difference.numel(),
        "distance": apart,
        "greatest": float(gap.difference.abs().nan_to_num(0.0).max()) if gap.difference.numel() else 0.0,
        "parts": {name: gap.relative(part) for name, part in gap.parts.items()},
        "cause": None if cause is None else {**_call_record(cause.named), "text": cause.text},
        "wrong_kernels": [
            {**_call_record(one.call), "slot": one.slot, "error": one.error, "side": _SIDES[one.side]}
            for one in gap.wrong
        ],
        "parting": None if parting is None else {**_call_record(parting.call), "distances": list(parting.distances)},
        "unproven": list(gap.unproven),
    }


def _call_record(call: Call) -> dict[str, str]:
    return {"call": call.name, "place": _place(call)}


def _headline(gap: Gap) -> str:
    one, other = gap.names
    count = gap.difference.numel()
    apart = gap.relative(gap.difference)
    if not apart:
        return f"{one} and {other} of the baseline are equal: {count} elements."
    largest = gap.difference.abs().nan_to_num(0.0)
    at = _index(int(largest.argmax()), largest.shape)
    what = (
        f"{one} is {apart:.3g} from {other} of the baseline: {count} elements, most {float(largest.max()):.3g} at {at}"
    )
    return f"{what}. {_verdict(gap)}"


def _verdict(gap: Gap) -> str:
    if gap.is_other_function:
        return "They are other functions."
    if gap.wrong:
        return "They are the same function, and a kernel is wrong."
    if gap.parting is not None:
        return "They are the same function; precision is lost."
    return "They are the same function, and rounding explains it."


def _where(gap: Gap) -> Iterator[str]:
    if gap.cause is not None:
        cause, named = gap.cause, gap.cause.named
        side = "" if cause.target is not None else " of the baseline"
        beside = f" (baseline {cause.baseline.name})" if cause.target is not None and cause.baseline is not None else ""
        yield f"Other function from {named.name}{side}{beside} on: {cause.text}."
        yield f"  {_place(named)}"
    for wrong in gap.wrong[:_MOST]:
        yield f"Wrong kernel of the {_SIDES[wrong.side]}: {wrong.call.name}, {wrong.slot}, own error {wrong.error:.3g}."
        yield f"  {_place(wrong.call)}"
    if gap.parting is not None:
        parting = gap.parting
        beside = f" (baseline {parting.partner.name})" if parting.partner is not None else ""
        far, near = parting.distances
        yield (
            f"They part by more than rounding from {parting.call.name}{beside} on: its result is {far:.3g} from "
            f"float64, what it read {parting.given:.3g}, the baseline's result {near:.3g}."
        )
        yield f"  {_place(parting.call)}"


def _elements(gap: Gap) -> Iterator[str]:
    """Yield the elements that are most apart, each with its parts."""
    sizes = gap.difference.abs().nan_to_num(0.0).reshape(-1)
    count = min(_MOST, int((sizes > 0).sum()))
    if not count:
        return
    yield "Most apart:"
    parts = {name: part.reshape(-1) for name, part in gap.parts.items()}
    for place in sizes.topk(count).indices.tolist():
        ours, theirs = (float(side.reshape(-1)[place]) for side in gap.recorded)
        least = _SHARE * abs(ours - theirs)
        said = [f"{float(part[place]):+.3g} {name}" for name, part in parts.items() if abs(float(part[place])) > least]
        at = _index(place, gap.difference.shape)
        yield f"  {at} {ours:.6g} against {theirs:.6g}: {ours - theirs:+.3g} = {', '.join(said)}"


def _index(place: int, shape: torch.Size) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return found[::-1]


def _place(call: Call) -> str:
    place = place_of(call)
    where = [f"op {place.op}", f"phase {place.phase}"]
    where += [f"module {place.module}"] if place.module else []
    where += [f"source {place.source}"] if place.source else []
    return ", ".join(where)


def _dtype(gap: Gap, side: int) -> str:
    return str(gap.dtypes[side]).removeprefix("torch.")
