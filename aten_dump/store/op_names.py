"""The names of ops, ``namespace::name.overload``, and what a namespace says of an op."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

# Ops that start a transfer and return before its result is there: somebody waits for it.
TRANSFER_NAMESPACES: Final = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
# Ops whose result other ranks have a part in: they cannot be run by one rank alone.
COLLECTIVE_NAMESPACES: Final = TRANSFER_NAMESPACES | {"c10d_functional", "_dtensor", "symm_mem"}

WAIT_TENSOR: Final = "_c10d_functional::wait_tensor"
LIFT_FRESH: Final = "aten::lift_fresh"  # torch.tensor(...): makes a tensor of literals
UNSCALE_GRADIENTS: Final = "aten::_amp_foreach_non_finite_check_and_unscale_"  # a gradient scaler's


class OpName(NamedTuple):
    """The parts of what a call calls; of anything but an op (an API, a module's class, a node) all is `name`."""

    namespace: str  # "aten"; empty where it is no op
    name: str  # "add_"
    overload: str = ""  # "Tensor"; empty for the default one

    @property
    def without_overload(self) -> str:
        """Return ``aten::add_`` for ``aten::add_.Tensor``."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


@lru_cache(maxsize=8192)
def read_op_name(op: str) -> OpName:
    """Return the parts of `Op.op`."""
    namespace, colons, rest = op.rpartition("::")
    if not colons:
        return OpName("", op)
    name, _, overload = rest.partition(".")
    return OpName(namespace, name, overload)


def is_collective(op: str) -> bool:
    """Tell whether other ranks have a part in what an op returns."""
    return read_op_name(op).namespace in COLLECTIVE_NAMESPACES
