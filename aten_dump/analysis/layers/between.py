"""Which layer of a compiler made two steps different functions: said beside the first cause of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...dump import Call, RankDump
from ..evidence.findings import Finding
from .graph_values import graph_calls, part_of
from .layers import layer_faults

_SIDES: Final = ("target", "baseline")
_OF_KERNELS: Final = ("op", "nonfinite")  # findings of a call that is wrong for its own inputs


def layer_notes(ranks: tuple[RankDump, RankDump], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield which layer of the compiler of either side made what differs, in sentences; nothing where none was."""
    for side, rank in enumerate(ranks) if findings else ():
        if not graph_calls(rank):
            continue
        places = [(finding.row.target, finding.row.baseline)[side] for finding in findings]
        calls = [(rank.call(place.id), finding) for place, finding in zip(places, findings, strict=True) if place]
        wrong = [
            (call, finding.row.own_error or 0.0)
            for call, finding in calls
            if call.kernel is not None and finding.kind in _OF_KERNELS
        ]
        faults = layer_faults(rank, wrong)
        yield from (f"layer, in the {_SIDES[side]}: {fault}" for fault in faults)
        if not faults and findings[0].kind not in _OF_KERNELS:
            yield from _captured_otherwise(side, ranks, findings[0])


def _captured_otherwise(side: int, ranks: tuple[RankDump, RankDump], finding: Finding) -> Iterator[str]:
    """Yield which graph does not do what the other side does, though each layer after its capture is right."""
    rank, places = ranks[side], (finding.row.target, finding.row.baseline)
    named = [ranks[at].call(place.id) for at, place in enumerate(places) if place is not None]
    lines = {(frame.file, frame.line) for call in named for frame in call.stack}
    new = {stage.graph for stage in rank.kernels.stages}
    for call in graph_calls(rank):
        if call.phase == "forward" and lines & _lines_of(rank, call):
            number, part = part_of(call)
            if number in new:
                text = f"capture: graph {number}_{part} was compiled in this step, and is not what the program says"
            else:
                text = (
                    f"guard: graph {number}_{part} was compiled in an earlier step and ran again: recompiled too late "
                    "(a number, a flag or a module of the program changed)"
                )
            yield f"layer, in the {_SIDES[side]}: {text}"
            return


def _lines_of(rank: RankDump, graph: Call) -> set[tuple[str, int]]:
    """Return the lines of the program that a compiled graph was made of."""
    nodes = rank.kernels.nodes_of("_".join(part_of(graph)))
    return {(frame.file, frame.line) for node in nodes for frame in node.stack}
