"""What PyTorch computes otherwise while any dispatch mode is on, run with ours off the stack.

Theory of operation
    Some formulas in PyTorch's C++ ask ``isTensorSubclassLike``, which is true of every tensor while a
    TorchDispatchMode is on, and then take a way round that gives other bits; that of ``linalg.pinv`` for complex
    numbers even gives wrong ones. The program must get the bits of the bare run, so for these few our mode leaves the
    stack while they run (see `mode_stack`). Their node or Python-level call is recorded whole, the ops inside it are
    not, and the dump says so. Where the user has a mode on the stack as well, the bare program takes the way round too,
    and nothing is done.

    Some functions of PyTorch's write to an argument by its address, between ops that read it there. No mode sees that,
    and what these ops read would be recorded as it was before. Below autograd such a function reaches a mode as one op,
    which declares what it writes.
"""

from __future__ import annotations

from typing import Final

import torch

# Autograd nodes, and full names of Python-level calls, that the op sweep found to compute otherwise.
_ALIKE: Final = frozenset(("CumprodBackward0",))  # divides by another kernel, which rounds real numbers alike on a CPU
OWN_FORMULA_NODES: Final = _ALIKE | frozenset(
    ("ProdBackward0", "ProdBackward1", "MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
)
OWN_FORMULA_APIS: Final = frozenset(("torch.linalg.pinv", "torch.pinverse", "torch.Tensor.pinverse"))
# Full names of Python-level calls that write by address between ops; they know integers alone, and no gradient.
WRITES_BETWEEN_APIS: Final = frozenset(
    f"torch._VariableFunctionsClass._sobol_engine_{name}" for name in ("initialize_state_", "scramble_", "ff_", "draw")
)
# Of those that write what a function in Python returns for each element, and run no op at all.
WRITES_AS_PYTHON_APIS: Final = frozenset(f"torch.Tensor.{name}" for name in ("apply_", "map_", "map2_"))


def computes_otherwise(node: str, gradients: tuple[torch.Tensor | None, ...]) -> bool:
    """Return True if one of OWN_FORMULA_NODES computes otherwise under a mode with what it is given."""
    return node not in _ALIKE or any(grad is not None and (grad.is_complex() or not grad.is_cpu) for grad in gradients)
