"""What a table of references holds, and an op that is known by its schema alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch_names import parse_schema


@dataclass(frozen=True, slots=True)
class References:
    """What ops compute that a CPU has no kernel for, composed of others.

    Each takes the arguments of its op and returns what the op returns, in the dtype that it is given: float64 too.

    Args:
        functions: by the op's name, ``npu::npu_swiglu``. They stand in for an op where the device has no kernel for it.
        schemas: of ops that this process may lack, as torch prints them: ``npu::npu_silu(Tensor input) -> Tensor``.
        in_float64: by the op's name. They stand in for kernels of the CPU, which do not take float64.
    """

    functions: Mapping[str, Callable[..., Any]]
    schemas: tuple[str, ...] = ()
    in_float64: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


class FusedOp:
    """What is asked of an op, without the package that has it."""

    tags: tuple[torch.Tag, ...] = ()

    def __init__(self, schema: str) -> None:
        self._schema = parse_schema(schema)

    def name(self) -> str:
        """Return its name, as torch writes those of ops."""
        schema = self._schema
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
