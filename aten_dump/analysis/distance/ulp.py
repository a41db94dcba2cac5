"""Units of the last place: how many floats lie between two.

Theory of operation
    The bits of floats of one sign, read as integers, are in order of size. With those of negative floats turned about
    the order holds across zero, where both zeros are one place.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Steps = NDArray[Any]

_INTEGERS: Final = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_EXACT: Final = 2**53


def has_ulp(dtype: torch.dtype) -> bool:
    """Return True if distances are known in a dtype: not in integers, complex numbers and float8."""
    return dtype in _INTEGERS


def ulp_distance(one: Tensor, two: Tensor) -> Tensor:
    """Return the steps from each element to that of another tensor of its dtype; of NaN they mean nothing.

    Returns:
        int64; for float64 tensors, whose distances may leave int64, float64 that is exact below 2**53.
    """
    return torch.from_numpy(ulp_steps(one, two))


def ulp_steps(one: Tensor, two: Tensor) -> Steps:
    """Return the same as an array."""
    bits = _INTEGERS[one.dtype]
    least = torch.iinfo(bits).min
    places = [side.view(bits).numpy().astype(np.int64) for side in (one, two)]
    places = [np.where(place < 0, least - place, place) for place in places]
    steps: Steps = np.abs(places[0] - places[1])
    if bits != torch.int64:
        return steps
    rounded = np.abs(places[0].astype(np.float64) - places[1].astype(np.float64))
    found: Steps = np.where(rounded < _EXACT, steps.astype(np.float64), rounded)
    return found
