"""Batch norm as cuDNN has it, against torch's own and its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aten_dump.references import norms as cudnn_norms

from .leaves import WIDE, gradients, leaf


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    x, weight, bias = leaf(4, 3, 5, 5), leaf(3), leaf(3)
    stats, others = ([torch.zeros(3, dtype=WIDE), torch.ones(3, dtype=WIDE)] for _ in range(2))
    out = F.batch_norm(x, *stats, weight, bias, training)
    given = [one.detach() for one in (x, weight, bias)]
    found = cudnn_norms.batch_norm(*given, *others, training, 0.1, 1e-5)
    torch.testing.assert_close(found[0], out)
    assert all(map(torch.equal, stats, others))
    if training:
        narrow = [one.detach().float() for one in (*given, *others)]
        by_torch = torch.ops.aten.cudnn_batch_norm(*(one.to("meta") for one in narrow), True, 0.1, 1e-5)
        for mine, theirs in zip(cudnn_norms.batch_norm(*narrow, True, 0.1, 1e-5), by_torch, strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        grad = torch.randn_like(out)
        mine = cudnn_norms.batch_norm_backward(given[0], grad, given[1], *others, *found[1:3], 1e-5, found[3])
        torch.testing.assert_close(mine, gradients(out, grad, x, weight, bias))
