"""What a step's dump could not see, counted while it is recorded and written as Note records at its end.

Each code is explained in docs/limitations.md, with the way round.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ..store.records import NOTE, Note

# code -> what happened; "{n}" is the count, "{names}" are the first few distinct names given with it.
_MESSAGES: Final[dict[str, str]] = {
    "selection": "{n} calls were left out by the configuration: {names}",
    "traced": "{n} calls were traced, not run (fake tensors, torch.jit.trace, make_fx, export), and are not recorded",
    "compile_eager": '{n} calls of compiled functions were run as written, not compiled (compile="eager"): {names}',
    "compile_opaque": '{n} calls of compiled functions ran compiled (compile="opaque"), the kernels that the compiler '
    "made in them are not recorded: {names}",
    "kernels_unseen": '{n} kernels in compiled code ran and are not recorded (compile="kernels"), as they were made '
    "before the recording began, or C++ code calls them: {names}",
    "packaged_model": "{n} runs of models that AOTInductor compiled: their inputs and outputs are recorded, "
    "the kernels in them are not",
    "device_graph": "{n} graphs of a device were captured: what is captured does not run, and is recorded without data",
    "graph_replay": "{n} replays of graphs of a device are one call each, the kernels in them are not recorded",
    "compiled_autograd": "compiled autograd was on: the ops of its backward passes name no forward call, and their "
    "nodes and gradients are not recorded",
    "wrapped_tensors": "{n} times a tensor without memory of its own was recorded by its shape alone: {names}",
    "other_threads": "{n} module calls ran where the mode is not on the stack (another thread, or modes turned off) "
    "and are not recorded: {names}",
    "saved_hooks": "{n} autograd nodes keep their tensors under saved-tensor hooks, so what they saved is not listed",
    "custom_ops": "{n} calls of custom ops, whose kernels are recorded as one call each: {names}",
    "own_formula": "{n} calls ran with the mode off, as PyTorch computes otherwise under any dispatch mode; "
    "the ops inside them are not recorded: {names}",
    "higher_order": "{n} calls of higher-order operators whose inner ops could not be seen: {names}",
}
_MOST_NAMES: Final = 5


class Coverage:
    """Counts of what was not seen, by code."""

    __slots__ = ("_counts", "_names")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._names: dict[str, dict[str, None]] = {}

    def add(self, code: str, name: str = "", count: int = 1) -> None:
        """Count something of `code`; `name` is what it was, for people."""
        self._counts[code] += count
        if name:
            self._names.setdefault(code, {})[name] = None

    def notes(self) -> list[Note]:
        """Return a note for each code that has a count."""
        return [Note(NOTE, code, self._message(code, n), n) for code, n in self._counts.items() if n]

    def _message(self, code: str, count: int) -> str:
        names = list(self._names.get(code, ()))
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        return _MESSAGES[code].format(n=count, names=shown)
