"""The answer to ``compare --at`` in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
