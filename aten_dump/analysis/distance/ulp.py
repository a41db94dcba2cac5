"""Units of the last place: how many floats lie between two.

Theory of operation
    The bits of floats of one sign, read as integers, are in order of size. With those of negative floats turned about
    the order holds across zero, where both zeros are one place.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_INTEGERS: Final = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_EXACT: Final = 2**53


def has_ulp(dtype: torch.dtype) -> bool:
    """Tell whether distances are known in a dtype: not in integers, complex numbers and float8."""
    return dtype in _INTEGERS


def ulp_distance(one: Tensor, two: Tensor) -> Tensor:
    """Return the steps from each element to that of another tensor of its dtype; of NaN they mean nothing.

    Returns:
        int64; for float64 tensors, whose distances may leave int64, float64 that is exact below 2**53.
    """
    bits = _INTEGERS[one.dtype]
    least = torch.iinfo(bits).min
    places = [side.view(bits).to(torch.int64) for side in (one, two)]
    places = [torch.where(place < 0, least - place, place) for place in places]
    steps = (places[0] - places[1]).abs()
    if bits != torch.int64:
        return steps
    rounded = (places[0].double() - places[1].double()).abs()
    return torch.where(rounded < _EXACT, steps.double(), rounded)
