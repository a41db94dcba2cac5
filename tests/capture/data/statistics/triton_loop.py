"""A kernel with a loop and nothing more: can Triton's interpreter run one with the numpy that is installed?"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _count(out, numbers):  # type: ignore[no-untyped-def]
    for number in range(numbers):
        tl.store(out + number, number)


def counts() -> bool:
    """Return True if it can: an older one makes an int of an array of one element, which a newer numpy refuses."""
    out = torch.zeros(2, dtype=torch.int64)
    try:
        _count[(1,)](out, 2)
    except triton.runtime.errors.InterpreterError as error:
        if isinstance(error.__cause__, TypeError):
            return False
        raise
    return out.tolist() == [0, 1]
