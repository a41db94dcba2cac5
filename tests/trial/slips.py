"""Mistakes at one Python-level call, as operators that combine with any program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .calls_in_forward import Edit, Site, Slip, first_size, is_floating, same_shape

LINEAR = "linear conv1d conv2d matmul bmm baddbmm einsum"
NORMS = {"layer_norm": 4, "group_norm": 4, "batch_norm": 7, "rms_norm": 3}  # where eps is
BIASES = {"linear": 2, "conv1d": 2, "conv2d": 2, "layer_norm": 3, "group_norm": 3, "batch_norm": 4}
LOSSES = "cross_entropy nll_loss mse_loss smooth_l1_loss binary_cross_entropy_with_logits l1_loss kl_div"

SLIPS: dict[str, Slip] = {}


def slip(name: str, functions: str, applies: Callable[[Site], bool] = lambda site: True) -> Callable[[Edit], Edit]:
    def add(edit: Edit) -> Edit:
        assert name not in SLIPS, name
        SLIPS[name] = Slip(name, frozenset(functions.split()), lambda site: bool(site.args) and applies(site), edit)
        return edit

    return add


def _two_tensors(site: Site) -> bool:
    return len(site.args) > 1 and is_floating(site.args[0]) and same_shape(site.args[0], site.args[1])


def _by_number(site: Site) -> bool:
    return len(site.args) > 1 and is_floating(site.args[0]) and isinstance(site.args[1], (int, float))


def _floating(site: Site) -> bool:
    return is_floating(site.args[0])


# -- normalisation, attention ------------------------------------------------------------------------------------------


@slip(
    "softmax over another dim", "softmax log_softmax", lambda s: len(first_size(s)) > 1 and min(first_size(s)[-2:]) > 1
)
def _(site: Site) -> Any:
    dim = site.arg(1, "dim", -1)
    last = dim in (-1, site.args[0].dim() - 1)
    return site.changed(1, "dim", -2 if last else -1)


@slip("eps 1e-2", " ".join(NORMS))
def _(site: Site) -> Any:
    return site.changed(NORMS[site.name], "eps", 1e-2)


@slip("mask dropped", "masked_fill", _floating)
def _(site: Site) -> Any:
    return site.args[0] * 1


@slip("mask inverted", "masked_fill", _floating)
def _(site: Site) -> Any:
    return site.changed(1, "mask", ~site.arg(1, "mask"))


@slip("attention without its mask", "scaled_dot_product_attention")
def _(site: Site) -> Any:
    causal = site.kwargs.get("is_causal", False)
    return site.func(*site.args, **{**site.kwargs, "attn_mask": None, "is_causal": not causal})


@slip("attention scale x1.1", "scaled_dot_product_attention")
def _(site: Site) -> Any:
    scale = site.kwargs.get("scale") or first_size(site)[-1] ** -0.5
    return site.func(*site.args, **{**site.kwargs, "scale": scale * 1.1})


@slip("number x1.02", "mul div truediv", _by_number)
def _(site: Site) -> Any:
    return site.changed(1, "other", site.args[1] * 1.02)


@slip("number left out", "mul div truediv", _by_number)
def _(site: Site) -> Any:
    return site.args[0]


# -- products ----------------------------------------------------------------------------------------------------------


@slip("bias dropped", "linear conv1d conv2d layer_norm group_norm", lambda s: s.arg(BIASES[s.name], "bias") is not None)
def _(site: Site) -> Any:
    return site.changed(BIASES[site.name], "bias", None)


@slip("result x1.02", LINEAR, _floating)
def _(site: Site) -> Any:
    return site.run() * 1.02


@slip("input rolled", "linear conv1d conv2d", _floating)
def _(site: Site) -> Any:
    return site.changed(0, "input", site.args[0].roll(1, -1))


@slip("computed in bfloat16", LINEAR, lambda s: is_floating(s.args[0]) and s.args[0].dtype == torch.float32)
def _(site: Site) -> Any:
    given = [item.bfloat16() if is_floating(item) else item for item in site.args]
    kwargs = {name: item.bfloat16() if is_floating(item) else item for name, item in site.kwargs.items()}
    return site.func(*given, **kwargs).float()


def _is_square(site: Site) -> bool:
    return (
        len(site.args) > 1
        and isinstance(site.args[1], Tensor)
        and site.args[1].shape[-1] == site.args[1].shape[-2 if site.args[1].dim() > 1 else -1]
    )


@slip(
    "weight transposed",
    "linear matmul bmm",
    lambda s: len(s.args) > 1 and isinstance(s.args[1], Tensor) and s.args[1].dim() > 1 and _is_square(s),
)
def _(site: Site) -> Any:
    return site.changed(1, "weight", site.args[1].transpose(-1, -2))


# -- operands, order, views ------------------------------------------------------------------------------------------------


@slip("operands swapped", "sub div truediv", _two_tensors)
def _(site: Site) -> Any:
    return site.func(site.args[1], site.args[0], *site.args[2:], **site.kwargs)


@slip("residual left out", "add iadd", _two_tensors)
def _(site: Site) -> Any:
    return site.args[1] * 1.0


def _alike(items: Any) -> bool:
    return len(items) > 1 and isinstance(items[0], Tensor) and same_shape(items[0], items[-1])


@slip("cat in another order", "cat concat stack", lambda s: _alike(s.args[0]))
def _(site: Site) -> Any:
    return site.changed(0, "tensors", list(site.args[0])[::-1])


@slip("parts in another order", "chunk split unbind", lambda s: isinstance(s.args[0], Tensor))
def _(site: Site) -> Any:
    parts = site.run()
    return parts[::-1] if _alike(parts) else parts


@slip("reshaped for transposed", "transpose permute t", lambda s: len(first_size(s)) > 1 and is_floating(s.args[0]))
def _(site: Site) -> Any:
    return site.args[0].reshape(site.run().shape)


@slip(
    "transposed for reshaped",
    "view reshape flatten",
    lambda s: len(first_size(s)) > 2 and is_floating(s.args[0]) and first_size(s)[-1] == first_size(s)[-2],
)
def _(site: Site) -> Any:
    shape = site.run().shape
    return site.args[0].transpose(-1, -2).reshape(shape)


# -- off by one --------------------------------------------------------------------------------------------------------


@slip("arange from one", "arange")
def _(site: Site) -> Any:
    return site.run() + 1


@slip("diagonal off by one", "triu tril")
def _(site: Site) -> Any:
    return site.changed(1, "diagonal", site.arg(1, "diagonal", 0) + 1)


@slip("sum so far without itself", "cumsum cumprod", _floating)
def _(site: Site) -> Any:
    return site.run() - site.args[0]


@slip("index off by one", "embedding", lambda s: isinstance(s.args[0], Tensor))
def _(site: Site) -> Any:
    return site.changed(0, "input", (site.args[0] + 1) % len(site.arg(1, "weight")))


@slip(
    "indices reversed",
    "index_add gather scatter_add index_select scatter",
    lambda s: len(s.args) > 2 and isinstance(s.args[2], Tensor) and len(s.args[2]) > 1,
)
def _(site: Site) -> Any:
    return site.changed(2, "index", site.args[2].flip(0))


# -- functions ---------------------------------------------------------------------------------------------------------

OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.leaky_relu(x, 0.02),
    "leaky_relu": torch.relu,
    "gelu": F.silu,
    "silu": F.gelu,
    "tanh": F.hardtanh,
    "elu": F.selu,
    "sigmoid": F.hardsigmoid,
    "exp": torch.exp2,
    "log1p": torch.log,
    "sqrt": torch.clone,
    "rsqrt": torch.reciprocal,
    "softplus": F.relu,
    "sin": torch.cos,
}


@slip("another function", " ".join(OTHERS), _floating)
def _(site: Site) -> Any:
    return OTHERS[site.name](site.args[0])


@slip("gelu by tanh", "gelu", lambda s: s.kwargs.get("approximate", "none") == "none")
def _(site: Site) -> Any:
    return F.gelu(site.args[0], approximate="tanh")


@slip("mean for sum", "sum", _floating)
def _(site: Site) -> Any:
    return site.args[0].mean(*site.args[1:], **site.kwargs)


@slip("sum for mean", "mean", _floating)
def _(site: Site) -> Any:
    return site.args[0].sum(*site.args[1:], **site.kwargs)


@slip("biased for unbiased", "std var", _floating)
def _(site: Site) -> Any:
    kwargs = {name: item for name, item in site.kwargs.items() if name != "unbiased"}
    return site.func(*site.args, **kwargs, correction=int(site.kwargs.get("unbiased") is False))


@slip("bounds x1.2", "clamp clamp_", _floating)
def _(site: Site) -> Any:
    bounds = [b * 1.2 if isinstance(b, (int, float)) else b for b in site.args[1:]]
    return site.func(site.args[0], *bounds, **{n: b * 1.2 for n, b in site.kwargs.items()})


@slip("power x1.1", "pow", _by_number)
def _(site: Site) -> Any:
    return site.args[0].abs().pow(site.args[1] * 1.1)


@slip("dropout x1.5", "dropout", lambda s: 0 < (s.arg(1, "p", 0.5) or 0) < 1 and bool(s.arg(2, "training", True)))
def _(site: Site) -> Any:
    return site.changed(1, "p", site.arg(1, "p", 0.5) * 1.5)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _has_gradient(site: Site) -> bool:
    return torch.is_grad_enabled() and any(isinstance(item, Tensor) and item.requires_grad for item in site.args)


@slip("detached", f"{LINEAR} layer_norm rms_norm mul add softmax", _has_gradient)
def _(site: Site) -> Any:
    return site.run().detach()


@slip("not detached", "detach")
def _(site: Site) -> Any:
    return site.args[0]


@slip("gradient x1.02", f"{LINEAR} layer_norm gelu relu silu softmax", _has_gradient)
def _(site: Site) -> Any:
    result = site.run()
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient * 1.02)
    return result


@slip("gradient's sign", f"{LINEAR} layer_norm gelu relu silu tanh", _has_gradient)
def _(site: Site) -> Any:
    result = site.run()
    if result.requires_grad:
        result.register_hook(lambda gradient: -gradient)
    return result


# -- losses ------------------------------------------------------------------------------------------------------------


@slip("loss not averaged", LOSSES)
def _(site: Site) -> Any:
    return site.func(*site.args, **{**site.kwargs, "reduction": "sum"})


@slip("labels rolled", LOSSES, lambda s: isinstance(s.args[1], Tensor))
def _(site: Site) -> Any:
    return site.changed(1, "target", site.args[1].roll(1, 0))


@slip("smoothing 0.2", "cross_entropy")
def _(site: Site) -> Any:
    return site.func(*site.args, **{**site.kwargs, "label_smoothing": 0.2})
