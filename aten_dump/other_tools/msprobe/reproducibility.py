"""msprobe's `seed_all`, which scripts import beside PrecisionDebugger. It changes the program, as it is asked to."""

from __future__ import annotations

import functools
import os
import random
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

_DROPOUTS: Final = ("dropout", "dropout2d", "dropout3d")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Seed all random number generators.

    Args:
        seed: the seed.
        mode: have torch use deterministic algorithms, and raise where it has none.
        rm_dropout: have dropout drop nothing, for the rest of the process.
        is_enhanced: seeds further libraries in msprobe; there is nothing more to seed here.
    """
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of all devices
    torch.use_deterministic_algorithms(mode)
    if rm_dropout:
        for name in _DROPOUTS:
            setattr(functional, name, _dropping_nothing(getattr(functional, name)))


def _dropping_nothing(original: Any) -> Any:
    @functools.wraps(original)
    def run(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        result: torch.Tensor = original(input, 0.0, training, inplace)
        return result

    return run
