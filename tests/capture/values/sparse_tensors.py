"""A small tensor in each sparse layout."""

from __future__ import annotations

import torch


def sparse(layout: torch.layout) -> torch.Tensor:
    x = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 5], [0, 6, 0, 0]])
    block = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return x.to_sparse(layout=layout, **block)
