"""References of fused attention, against torch's own and its gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_dump.references.attention import (
    attention,
    attention_grad,
    attention_grad_v2,
    attention_v3,
)

from .leaves import WIDE, gradients, leaf

BATCH, HEADS, ROWS, COLUMNS, SIZE = 2, 4, 5, 7, 8


def in_layout(x: Tensor, layout: str) -> Tensor:
    """Return [batch, heads, sequence, dim] in a layout."""
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2)
    if layout == "BSND":
        return x
    return x.flatten(2) if layout == "BSH" else x.flatten(2).transpose(0, 1)


def kept(found: tuple[Any, ...]) -> dict[str, Tensor]:
    return {"softmax_max": found[1], "softmax_sum": found[2], "attention_in": found[0]}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_layouts_and_heads(layout: str, masked: bool, kv_heads: int) -> None:
    q, k, v = leaf(BATCH, HEADS, ROWS, SIZE), leaf(BATCH, kv_heads, COLUMNS, SIZE), leaf(BATCH, kv_heads, COLUMNS, SIZE)
    mask = torch.ones(ROWS, COLUMNS, dtype=torch.bool).triu(2) if masked else None
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if mask is None else ~mask, scale=0.3, enable_gqa=True
    )
    expected = in_layout(expected, layout)
    given = [in_layout(x.detach(), layout) for x in (q, k, v)]
    found = attention(*given, HEADS, layout, atten_mask=mask, scale=0.3)
    torch.testing.assert_close(found[0], expected)
    assert found[1].shape == found[2].shape == (BATCH, HEADS, ROWS, 8)
    grad = torch.randn_like(expected)
    mine = attention_grad(*given, grad, HEADS, layout, atten_mask=mask, scale_value=0.3, **kept(found))
    torch.testing.assert_close(mine[:3], tuple(in_layout(g, layout) for g in gradients(expected, grad, q, k, v)))
    assert all(x.is_contiguous() for x in (found[0], *mine))


def banded(mode: int, before: int, after: int) -> Tensor:
    """Return where a row sees a column, told by the two's own numbers."""
    shift = 0 if mode == 2 else COLUMNS - ROWS
    far = [[column - row - shift for column in range(COLUMNS)] for row in range(ROWS)]
    return torch.tensor([[-before <= one <= after for one in row] for row in far])


@pytest.mark.parametrize(("mode", "before", "after"), [(2, 99, 0), (3, 99, 0), (4, 2, 1), (4, 99, -1)])
def test_masks_that_are_told_by_a_mode(mode: int, before: int, after: int) -> None:
    """A piece of a mask stands for one of any size."""
    q, k, v = leaf(1, 2, ROWS, SIZE), leaf(1, 2, COLUMNS, SIZE), leaf(1, 2, COLUMNS, SIZE)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=banded(mode, before, after), scale=0.3)
    given, piece = [x.detach() for x in (q, k, v)], torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    asked = {"atten_mask": piece, "sparse_mode": mode, "pre_tockens": before, "next_tockens": after}
    found = attention(*given, 2, "BNSD", scale=0.3, **asked)
    torch.testing.assert_close(found[0], expected)
    grad = torch.randn_like(expected)
    mine = attention_grad(*given, grad, 2, "BNSD", scale_value=0.3, **asked, **kept(found))
    torch.testing.assert_close(mine[:3], gradients(expected, grad, q, k, v))


def test_a_row_that_sees_nothing_is_zero() -> None:
    q = torch.randn(1, 1, 3, 4, dtype=WIDE)
    hidden = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    found = attention(q, q, q, 1, "BNSD", atten_mask=hidden)
    assert not found[0][0, 0, 0].any() and found[0].isfinite().all()
    mine = attention_grad(q, q, q, torch.ones_like(q), 1, "BNSD", atten_mask=hidden, **kept(found))
    assert not mine[0][0, 0, 0].any() and all(x.isfinite().all() for x in mine)


def test_a_bias_is_added_to_scaled_scores() -> None:
    q, k, v, bias = leaf(2, 2, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8), leaf(1, 2, 5, 5)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
    given = [x.detach() for x in (q, k, v)]
    found = attention(*given, 2, "BNSD", bias.detach(), scale=0.3)
    torch.testing.assert_close(found[0], expected)
    grad = torch.randn_like(expected)
    mine = attention_grad(*given, grad, 2, "BNSD", pse=bias.detach(), scale_value=0.3, **kept(found))
    torch.testing.assert_close(mine[:4], gradients(expected, grad, q, k, v, bias))


def test_packed_sequences() -> None:
    q, k, v = leaf(8, 4, 6), leaf(9, 2, 6), leaf(9, 2, 6)
    rows, columns = [3, 8], [4, 9]
    parts = [
        F.scaled_dot_product_attention(
            *(x[piece].transpose(0, 1)[None] for x, piece in ((q, r), (k, c), (v, c))), scale=0.3, enable_gqa=True
        )[0].transpose(0, 1)
        for r, c in ((slice(0, 3), slice(0, 4)), (slice(3, 8), slice(4, 9)))
    ]
    expected, given = torch.cat(parts), [x.detach() for x in (q, k, v)]
    asked = {"actual_seq_qlen": rows, "actual_seq_kvlen": columns}
    found = attention(*given, 4, "TND", scale=0.3, **asked)
    torch.testing.assert_close(found[0], expected)
    assert found[1].shape == (8, 4, 8)
    grad = torch.randn_like(expected)
    mine = attention_grad(*given, grad, 4, "TND", scale_value=0.3, **asked, **kept(found))
    torch.testing.assert_close(mine[:3], gradients(expected, grad, q, k, v))


def test_causal_attention_of_torch_s_own_function() -> None:
    """What `F.scaled_dot_product_attention` runs on an NPU."""
    q, k, v = leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    given = [x.detach() for x in (q, k, v)]
    piece = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    found = attention_v3(
        *given, 3, "BNSD", None, None, piece, 1 / math.sqrt(8), 1.0, 2**31 - 1, 0, 0, None, None, None, 2
    )
    torch.testing.assert_close(found[0], expected)
    assert [x.dtype for x in found[4:]] == [torch.int64, torch.int64]
    grad = torch.randn_like(expected)
    asked = {"atten_mask": piece, "scale_value": 1 / math.sqrt(8), "next_tockens": 0, "sparse_mode": 2}
    mine = attention_grad(*given, grad, 3, "BNSD", **asked, **kept(found), seed=found[4], offset=found[5])
    torch.testing.assert_close(mine[:3], gradients(expected, grad, q, k, v))


def test_the_second_version() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=WIDE)
    found = attention(x, x, x, 2, "BNSD", scale=0.5, pre_tokens=2**31 - 1, pse_type=1, softmax_layout="", sink=None)
    mine = attention_grad_v2(x, x, x, x, 2, "BNSD", scale_value=0.5, pse_type=1, **kept(found))
    assert len(mine) == 7
    assert all(
        torch.equal(a, b)
        for a, b in zip(mine, attention_grad(x, x, x, x, 2, "BNSD", scale_value=0.5, **kept(found)), strict=False)
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"keep_prob": 0.5}, {"sparse_mode": 5}, {"prefix": [1]}, {"input_layout": "NTD"}, {"pse_type": 2},
        {"sink": torch.ones(2)}, {"input_layout": "TND"}, {"atten_mask": torch.zeros(3, 3), "next_tockens": 0},
        {"input_layout": "TND", "atten_mask": torch.zeros(3, 3), "actual_seq_qlen": [1], "actual_seq_kvlen": [1]},
    ],
    ids=lambda asked: "-".join(asked),
)  # fmt: skip
def test_what_is_not_written_is_refused(asked: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 3, 4)
    options = dict(asked)
    layout = options.pop("input_layout", "BNSD")
    with pytest.raises(NotImplementedError):
        attention(x[0] if layout == "TND" else x, *(2 * [x[0] if layout == "TND" else x]), 2, layout, **options)
