"""Which weight of a target became which of a baseline, by contents."""

from __future__ import annotations

from ..errors import MissingDataError
from .checkpoints.finder import Finder, Progress
from .checkpoints.found_weights import Weights
from .checkpoints.stored_tensors import Checkpoint, Given, open_checkpoint
from .host_default import made_on_the_host


@made_on_the_host
def weights(target: Given | Checkpoint, baseline: Given | Checkpoint, *, progress: Progress | None = None) -> Weights:
    """Match the weights of a target to those of a baseline by their contents.

    Names do not matter. A weight may be equal, cast, transposed, permuted, fused, split, padded, tied, scaled,
    moved by a constant, or merged of several tensors; others are altered, exchanged, extra or missing. A weight that is
    laid out unlike the same weight of most other layers is accounted for, and ``unlike`` is among its kinds. One or two
    tensors are in memory at a time.

    Args:
        target: the weights in question: a safetensors file or a folder of them, a state dict of ``torch.save``, a dump,
            a module, tensors by name, or a result of `open_checkpoint`.
        baseline: the trusted weights, in the same forms.
        progress: called with the amount that is done, and of all.

    Returns:
        A row for each tensor, and the exit code: 0 if every weight is matched.

    Raises:
        FormatError: a file is damaged, or is none of these.
        MissingDataError: no such file exists, a shard is missing, or one side has no tensors.
        StoreError: a file cannot be read.

    Example:
        >>> weights("ported.safetensors", "original/").exit_code
        0
    """
    sides = _opened(target), _opened(baseline)
    found = Finder(*sides, progress).run()
    counts = len(sides[0].tensors), len(sides[1].tensors)
    not_whole = (*sides[0].not_whole, *sides[1].not_whole)
    return Weights((sides[0].label, sides[1].label), counts, tuple(found), not_whole)


def _opened(given: Given | Checkpoint) -> Checkpoint:
    found = given if isinstance(given, Checkpoint) else open_checkpoint(given)
    if not found.tensors:
        raise MissingDataError(f"{found.label} has no tensors")
    return found
