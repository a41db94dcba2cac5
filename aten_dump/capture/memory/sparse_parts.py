"""The memory of sparse tensors: they have no storage of their own, but are made of strided tensors that have."""

from __future__ import annotations

from typing import Final

import torch

from ..torch_internals.quiet import quiet

PARTS: Final = {  # layout -> name of a part, and the method that returns it
    torch.sparse_coo: {"indices": "_indices", "values": "_values"},
    torch.sparse_csr: {"crow_indices": "crow_indices", "col_indices": "col_indices", "values": "values"},
    torch.sparse_bsr: {"crow_indices": "crow_indices", "col_indices": "col_indices", "values": "values"},
    torch.sparse_csc: {"ccol_indices": "ccol_indices", "row_indices": "row_indices", "values": "values"},
    torch.sparse_bsc: {"ccol_indices": "ccol_indices", "row_indices": "row_indices", "values": "values"},
}


def sparse_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the strided tensors that a sparse tensor is made of, by name; nothing for one that is not sparse."""
    names = PARTS.get(tensor.layout)
    if names is None:
        return {}
    with quiet():
        return {name: getattr(tensor, method)() for name, method in names.items()}
