"""Tensors as numpy arrays, for formats that know numpy's dtypes only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...torch_names import with_numbers

_WIDER = {torch.complex32: torch.complex64}


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the elements as an array; a dtype that numpy lacks becomes the next wider one, bfloat16 float32.

    Elements that torch cannot read as numbers, as those of float4, stay the bytes that they are.
    """
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = with_numbers(tensor.detach().resolve_conj().resolve_neg())
    try:
        return np.asarray(tensor.numpy())
    except TypeError:
        return np.asarray(tensor.to(_WIDER.get(tensor.dtype, torch.float32)).numpy())
