"""Attention as GPUs have it, against torch's own and its gradients, in the shapes of torch's meta kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_dump import open_dump, replay
from aten_dump.analysis.composed_ops import composed
from aten_dump.references import gpu_attention
from tests import forked

from .leaves import gradients, leaf

ATEN = torch.ops.aten
SHAPES = {"square": (7, 7, 4), "cross": (5, 9, 4), "shared heads": (6, 6, 2)}


def inputs(shape: str) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, heads = SHAPES[shape]
    return leaf(2, 4, rows, 8), leaf(2, heads, columns, 8), leaf(2, heads, columns, 8)


def expected(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=k.shape[1] != q.shape[1], **options)


def on_meta(tree: Any) -> Any:
    return [item.detach().to("meta") if isinstance(item, Tensor) else item for item in tree]


def assert_shaped_as(found: tuple[Any, ...], op: Any, *args: Any, **options: Any) -> None:
    """Hold shapes and dtypes of what is data against those of torch's own meta kernel."""
    by_torch = op(*on_meta(args), **options)
    assert len(found) == len(by_torch)
    for mine, theirs in zip(found[:2], by_torch[:2], strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_flash(shape: str, is_causal: bool, scale: float | None) -> None:
    q, k, v = inputs(shape)
    lower_right = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    out = expected(q, k, v, attn_mask=lower_right if is_causal else None, scale=scale)
    given = [x.detach() for x in (q, k, v)]
    found = gpu_attention.flash(*given, 0.0, is_causal, scale=scale)
    torch.testing.assert_close(found[0], out)
    grad = torch.randn_like(out)
    kept = (*found[:6], 0.0, is_causal, None, None)
    mine = gpu_attention.flash_backward(grad, *given, *kept, scale=scale)
    torch.testing.assert_close(mine, gradients(out, grad, q, k, v))
    halves = [x.bfloat16() for x in given]
    if shape != "shared heads":
        assert_shaped_as(
            gpu_attention.flash(*halves, 0.0, is_causal),
            ATEN._scaled_dot_product_flash_attention,
            *halves,
            0.0,
            is_causal,
        )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kernel", ["efficient", "cudnn"])
@pytest.mark.parametrize("shape", ["square", "cross"])
def test_with_a_bias(shape: str, kernel: str, has_bias: bool, is_causal: bool) -> None:
    q, k, v = inputs(shape)
    bias = leaf(2, 1, q.shape[2], k.shape[2]) if has_bias else None
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1) & is_causal
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, -torch.inf)  # of float32, AVX2 misreads it
    out = expected(q, k, v, attn_mask=mask if bias is None else mask + bias)
    given = [x.detach() for x in (q, k, v)]
    plain_bias = None if bias is None else bias.detach()
    forward = getattr(gpu_attention, kernel)
    found = forward(*given, plain_bias, True, 0.0, is_causal)
    torch.testing.assert_close(found[0], out)
    op = getattr(ATEN, f"_scaled_dot_product_{kernel}_attention")
    narrow = [None if one is None else one.float() for one in (*given, plain_bias)]
    assert_shaped_as(forward(*narrow, True, 0.0, is_causal), op, *narrow, True, 0.0, is_causal)
    grad, wanted = torch.randn_like(out), [q, k, v] + ([bias] if bias is not None else [])
    if kernel == "efficient":
        assert found[1][..., q.shape[2] :].eq(torch.inf).all()
        asked = [True, True, False, bias is not None]
        mine = gpu_attention.efficient_backward(
            grad, *given, plain_bias, *found[:2], None, None, 0.0, asked, is_causal=is_causal
        )
        assert mine[3] is not None or bias is None
        torch.testing.assert_close(mine[: len(wanted)], gradients(out, grad, *wanted))
        assert forward(*given, plain_bias, False, 0.0, is_causal)[1].shape == (2, 4, 0)
    else:
        kept = (*found[:2], None, None, plain_bias, None, None, q.shape[2], k.shape[2], 0.0, is_causal)
        torch.testing.assert_close(gpu_attention.cudnn_backward(grad, *given, *kept), gradients(out, grad, q, k, v))
        assert forward(*given, plain_bias, False, 0.0, is_causal)[1] is None


def test_what_a_cpu_cannot_do_alike_is_refused() -> None:
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(NotImplementedError, match="dropout of"):
        gpu_attention.flash(q, q, q, 0.1)
    with pytest.raises(NotImplementedError, match="dropout of"):
        gpu_attention.efficient(q, q, q, None, True, dropout_p=0.1)
    with pytest.raises(NotImplementedError, match="dropout of"):
        gpu_attention.flash_backward(q, q, q, q, q, q[..., 0], None, None, 4, 4, 0.1, False)
    hidden = torch.full((4, 4), -torch.inf)
    with pytest.raises(NotImplementedError, match="sees no key"):
        gpu_attention.efficient_backward(q, q, q, q, hidden, q, q[..., 0], None, None, 0.0, [True] * 4)
    with pytest.raises(NotImplementedError, match="sees no key"):
        gpu_attention.efficient(q, q, q, torch.full((4, 4), -torch.inf), True)


def kernel_s_gradient_of_queries(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a kernel for 16 bits computes it: products in float32, of what is rounded to 16 bits before."""
    wide_q, wide_k, wide_v, wide_grad = (x.float() for x in (q, k, v, grad))
    weights = (wide_q @ wide_k.mT * q.shape[-1] ** -0.5).softmax(-1)
    shares = wide_grad @ wide_v.mT
    to_scores = weights * (shares - (shares * weights).sum(-1, keepdim=True))
    return ((to_scores.to(q.dtype).float() @ wide_k) * q.shape[-1] ** -0.5).to(q.dtype)


def test_in_16_bits_it_is_as_far_off_as_a_kernel() -> None:
    """Where keys have much in common, what was rounded does not cancel."""
    q, v, grad = (torch.randn(2, 4, 128, 64).bfloat16() for _ in range(3))
    k = (torch.randn(2, 4, 128, 64) + 10 * torch.randn(64)).bfloat16()
    wide = [x.double() for x in (grad, q, k, v)]
    exact = kernel_s_gradient_of_queries(*wide).double()
    by_kernel = kernel_s_gradient_of_queries(grad, q, k, v).double()
    out, logsumexp, *_ = gpu_attention.flash(q, k, v)
    mine, *_ = gpu_attention.flash_backward(grad, q, k, v, out, logsumexp, None, None, 128, 128, 0.0, False)
    assert (by_kernel - exact).norm() < 3 * (mine.double() - exact).norm()


PROGRAM = """
import sys, torch
from aten_dump import DumpConfig, DumpMode
from aten_dump.references import gpu_attention
library = torch.library.Library("aten", "IMPL")
def kernel(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    found = gpu_attention.flash(q, k, v, dropout_p, is_causal, scale=scale)
    return (found[0] * float(sys.argv[2]), *found[1:])
library.impl("_scaled_dot_product_flash_attention", kernel, "CPU")
torch.manual_seed(0)
with DumpMode(DumpConfig(path=sys.argv[1], data="full", level="aten")):
    q = torch.randn(1, 2, 6, 8)
    torch.ops.aten._scaled_dot_product_flash_attention(q, q * 2, q + 1, 0.0, True)
"""


@pytest.fixture(params=[1.0, 1.01], ids=["right", "wrong"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """A dump of a process that has the kernel, as one with a GPU does; this one does not."""
    done = forked.run(["-c", PROGRAM, str(tmp_path / "dump"), str(request.param)], tmp_path / "said")
    assert done.code == 0, done.said
    return tmp_path / "dump", request.param == 1.0


@pytest.mark.slow
def test_a_call_is_replayed_where_there_is_no_such_kernel(recorded: tuple[Path, bool]) -> None:
    path, is_right = recorded
    rank = open_dump(path).step(0).rank(0)
    (call,) = [call for call in rank.calls if "flash_attention" in call.op]
    (op,) = replay(call).ops
    assert op.ratio <= 1 if is_right else op.ratio > 100, op


NAMES = [f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")]


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}_backward" for name in NAMES), "cudnn_batch_norm"])
def test_the_cpu_gets_them_and_other_devices_run_their_own(name: str) -> None:
    op = getattr(ATEN, name).default
    found: Callable[..., Any] = composed(op, torch.device("cpu"))
    assert found is not op
    assert composed(op, torch.device("cuda")) is op
