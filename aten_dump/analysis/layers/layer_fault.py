"""What is said of a layer of a compiler that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ...dump import GraphNode

Layer = Literal["decomposition", "pass", "kernel", "runtime"]
_TEXTS: Final[dict[Layer, str]] = {
    "decomposition": "decomposition of {}",
    "pass": "{}",
    "kernel": "lowering or generated code: {}",
    "runtime": "runtime: {}",
}


@dataclass(frozen=True, slots=True)
class LayerFault:
    """A layer of a compiler that made another function.

    Attributes:
        layer: which one; "kernel" is the lowering to a kernel, or its generated code.
        name: the op that was decomposed, the pass, the call of the kernel, or the node that was returned otherwise.
        graph: the compiled graph, as torch's logs have it (``"0_forward"``, or ``"0_joint"`` before it is parted).
        source: ``"file:line in function"`` of the program, ``""`` where it is not known.
        error: how far off, relative to the greatest element; None of a write to memory that is not the graph's, and of
            a graph that cannot be run.
        fact: what is wrong with its memory, or why the graph cannot be run, a clause; "" where it is off.
    """

    layer: Layer
    name: str
    graph: str
    source: str
    error: float | None
    fact: str = ""

    def __str__(self) -> str:
        what = " ".join(filter(None, (_TEXTS[self.layer].format(self.name), self.fact)))
        at = f", {self.source}" if self.source else ""
        off = "" if self.error is None else f", off by {self.error:.3g}"
        return f"{what} (graph {self.graph}{at}){off}"


def source_of(node: GraphNode | None) -> str:
    """Return the line of the program that a node is of."""
    frame = None if node is None else next(iter(node.stack), None)
    return "" if frame is None else f"{frame.file}:{frame.line} in {frame.function}"
