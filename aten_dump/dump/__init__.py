"""The reader: a lazy, memory-mapped view of a dump that every tool stands on.

``open_dump`` gives Dump → Step → RankDump; a RankDump reads its index at first use and hands out Call and Value,
light handles over records. Relations (names, children, producers, consumers, backward) are indexed when first
asked for, bytes are read by ``Value.tensor``. No accelerator is needed to read a dump made on one.
"""

from .argument_decoding import Frame, GeneratorRef, ObjectRef, ReprRef
from .handle_sequences import Calls, Values
from .handles import Call, Value
from .kernels import COMPILED_GRAPH, CompiledKernel, DecomposedOp, GraphNode, GraphStage, NodeRef
from .loss_scale import LossScale
from .rank import RankDump
from .root import Dump, Step, open_dump, rank_at, run_at
from .saved_for_backward import SavedForBackward, SavedValues
from .value_statistics import Stats

__all__ = [
    "COMPILED_GRAPH",
    "Call",
    "Calls",
    "CompiledKernel",
    "DecomposedOp",
    "Dump",
    "Frame",
    "GeneratorRef",
    "GraphNode",
    "GraphStage",
    "LossScale",
    "NodeRef",
    "ObjectRef",
    "RankDump",
    "ReprRef",
    "SavedForBackward",
    "SavedValues",
    "Stats",
    "Step",
    "Value",
    "Values",
    "open_dump",
    "rank_at",
    "run_at",
]
