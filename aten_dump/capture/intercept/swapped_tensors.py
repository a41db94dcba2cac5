"""`torch.utils.swap_tensors`, wrapped while a step is recorded: it refuses tensors that anybody refers to weakly."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..interrupts import runs_program
from ..step.module_paths import ModulePaths
from ..torch_internals.patches import Patch


class SwappedTensors:
    """Has the recorder's references to parameters taken away while these are swapped, and at the step's end."""

    def __init__(self, paths: ModulePaths) -> None:
        self._paths = paths
        self._patch: Patch | None = None

    def install(self) -> None:
        """Wrap it; does nothing where it is wrapped already."""
        if self._patch is not None:
            return
        paths = self._paths
        original: Callable[[torch.Tensor, torch.Tensor], None] = torch.utils.swap_tensors

        @functools.wraps(original)
        @runs_program
        def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
            with paths.unreferred(t1, t2):
                original(t1, t2)

        self._patch = Patch(torch.utils, "swap_tensors", swap_tensors)

    def remove(self) -> None:
        """Put back what was there."""
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.undo()
        self._paths.let_go()
