"""Honest pairs: the same mathematics in another form, on other kernels, in another arrangement. None may raise an alarm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from .calls_in_forward import Edit, Site, Slip, is_floating
from .slips import NORMS
from .training import Batch, Training

Change = Callable[[Training], bool]  # tells whether it applies

# -- other forms of single calls ----------------------------------------------------------------------------------------

FORMS: dict[str, Slip] = {}


def form(name: str, functions: str, applies: Callable[[Site], bool] = lambda site: True) -> Callable[[Edit], Edit]:
    def add(edit: Edit) -> Edit:
        FORMS[name] = Slip(name, frozenset(functions.split()), lambda site: bool(site.args) and applies(site), edit)
        return edit

    return add


@form("linear as product and sum", "linear")
def _(site: Site) -> Any:
    x, weight, bias = site.args[0], site.arg(1, "weight"), site.arg(2, "bias")
    y = x @ weight.t()
    return y if bias is None else y + bias


@form("linear as einsum", "linear")
def _(site: Site) -> Any:
    x, weight, bias = site.args[0], site.arg(1, "weight"), site.arg(2, "bias")
    y = torch.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias


@form("softmax in parts", "softmax")
def _(site: Site) -> Any:
    dim = site.arg(1, "dim", -1)
    e = (site.args[0] - site.args[0].amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@form("layer norm in parts", "layer_norm")
def _(site: Site) -> Any:
    x, shape, weight, bias = site.args[0], site.arg(1, "normalized_shape"), site.arg(2, "weight"), site.arg(3, "bias")
    dims = tuple(range(-len(shape), 0))
    off = x - x.mean(dims, keepdim=True)
    y = off * torch.rsqrt(off.square().mean(dims, keepdim=True) + site.arg(NORMS["layer_norm"], "eps", 1e-5))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@form("silu as product", "silu")
def _(site: Site) -> Any:
    return site.args[0] * torch.sigmoid(site.args[0])


@form("gelu by erf", "gelu", lambda s: s.kwargs.get("approximate", "none") == "none")
def _(site: Site) -> Any:
    return 0.5 * site.args[0] * (1 + torch.erf(site.args[0] / math.sqrt(2.0)))


@form(
    "cross entropy in parts",
    "cross_entropy",
    lambda s: s.kwargs.get("label_smoothing", 0.0) == 0 and s.args[0].dim() == 2 and bool((s.args[1] >= 0).all()),
)
def _(site: Site) -> Any:
    logs = site.args[0] - torch.logsumexp(site.args[0], -1, keepdim=True)
    return -logs.gather(1, site.args[1].unsqueeze(1)).mean()


@form("tanh by sigmoid", "tanh", lambda s: is_floating(s.args[0]))
def _(site: Site) -> Any:
    return 2 * torch.sigmoid(2 * site.args[0]) - 1


@form("mean as sum", "mean", lambda s: is_floating(s.args[0]))
def _(site: Site) -> Any:
    total = site.args[0].sum(*site.args[1:], **site.kwargs)
    return total / (site.args[0].numel() / total.numel())


@form("division as product", "div truediv", lambda s: len(s.args) > 1 and isinstance(s.args[1], float))
def _(site: Site) -> Any:
    return site.args[0] * (1.0 / site.args[1])


@form("attention in parts", "scaled_dot_product_attention")
def _(site: Site) -> Any:
    q, k, v = site.args[:3]
    if site.kwargs.get("enable_gqa"):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (site.kwargs.get("scale") or q.shape[-1] ** -0.5)
    mask = site.arg(3, "attn_mask")
    if site.kwargs.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


@form("convolution in two halves", "conv2d conv1d", lambda s: s.arg(6, "groups", 1) == 1 and s.args[0].shape[1] > 1)
def _(site: Site) -> Any:
    x, weight = site.args[0], site.args[1]
    half = x.shape[1] // 2
    rest = site.args[3:]
    one = site.func(
        x[:, :half],
        weight[:, :half],
        site.arg(2, "bias"),
        *rest,
        **{n: v for n, v in site.kwargs.items() if n != "bias"},
    )
    return one + site.func(
        x[:, half:], weight[:, half:], None, *rest, **{n: v for n, v in site.kwargs.items() if n != "bias"}
    )


@form("relu as maximum", "relu")
def _(site: Site) -> Any:
    return site.args[0].clamp(min=0)


@form("mse in parts", "mse_loss", lambda s: "reduction" not in s.kwargs or s.kwargs["reduction"] == "mean")
def _(site: Site) -> Any:
    return (site.args[0] - site.args[1]).square().mean()


@form("embedding by selecting rows", "embedding", lambda s: isinstance(s.args[1], Tensor))
def _(site: Site) -> Any:
    at, weight = site.args[0], site.args[1]
    return weight.index_select(0, at.reshape(-1)).view(*at.shape, -1)


# -- other arrangements --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrangement:
    name: str
    change: Change


ARRANGEMENTS: dict[str, Arrangement] = {}


def arrangement(name: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        ARRANGEMENTS[name] = Arrangement(name, change)
        return change

    return add


@arrangement("itself")
def _(training: Training) -> bool:
    return True


@arrangement("two threads")
def _(training: Training) -> bool:
    training.threads = 2
    return True


@arrangement("loop over parameters")
def _(training: Training) -> bool:
    training.settings = {**training.settings, "foreach": False}
    return True


@arrangement("fused optimizer")
def _(training: Training) -> bool:
    training.settings = {**training.settings, "foreach": None, "fused": True}
    return training.optimizer in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)


@arrangement("set to zero in place")
def _(training: Training) -> bool:
    make = training.make_optimizer

    def make_optimizer() -> Any:
        optimizer = make()
        zero = optimizer.zero_grad
        optimizer.zero_grad = lambda: zero(set_to_none=False)
        return optimizer

    training.make_optimizer = make_optimizer  # type: ignore[method-assign]
    return training.clears_gradients


class Wrapped(nn.Module):
    """A module that only hands on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


@arrangement("wrapped model")
def _(training: Training) -> bool:
    training.model = Wrapped(training.model)
    return True


class Recomputed(nn.Module):
    """Runs a module under checkpointing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inner, *args, use_reentrant=False, **kwargs)


def _is_batch_norm(module: nn.Module) -> bool:
    """Return True if its running statistics would be updated twice under checkpointing: then it is another program."""
    return isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))


def _replace(
    model: nn.Module,
    make: Callable[[nn.Module], nn.Module],
    kinds: tuple[type[nn.Module], ...],
    can: Callable[[nn.Module], bool] = lambda module: True,
) -> bool:
    """Replace the children of some kinds in the model's direct or second level."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, kinds) and not isinstance(parent, kinds) and can(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, make(child))
    return bool(found)


@arrangement("checkpointing")
def _(training: Training) -> bool:
    kinds = (nn.Sequential, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
    return _replace(training.model, Recomputed, kinds, lambda m: not any(map(_is_batch_norm, m.modules())))


@arrangement("scripted")
def _(training: Training) -> bool:
    return _replace(training.model, torch.jit.script, (nn.LayerNorm, nn.Linear))


@arrangement("compiled by aot_eager")
def _(training: Training) -> bool:
    torch.compiler.reset()
    return _replace(
        training.model, lambda m: torch.compile(m, backend="aot_eager"), (nn.Sequential, nn.LayerNorm, nn.GroupNorm)
    )


class Batches(Dataset[Batch]):
    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, at: int) -> Batch:
        return self.batches[at]


@arrangement("DataLoader with workers")
def _(training: Training) -> bool:
    def load(batches: list[Batch]) -> Iterable[Batch]:
        return DataLoader(Batches(batches), batch_size=None, num_workers=2, generator=torch.Generator().manual_seed(0))

    training.loader = load
    return True


@arrangement("average of weights kept by deepcopy")
def _(training: Training) -> bool:
    training.after_step = lambda model: [copy.deepcopy(p) for p in model.parameters()] and None
    return True


@arrangement("channels last")
def _(training: Training) -> bool:
    if not any(isinstance(m, nn.Conv2d) for m in training.model.modules()):
        return False
    training.model = training.model.to(memory_format=torch.channels_last)
    return True


@arrangement("autocast to bfloat16")
def _(training: Training) -> bool:
    training.context = lambda: torch.autocast("cpu", torch.bfloat16)
    return all(p.dtype == torch.float32 for p in training.model.parameters())


@arrangement("model in bfloat16")
def _(training: Training) -> bool:
    if any(p.dtype != torch.float32 for p in training.model.parameters()):
        return False
    training.model = training.model.bfloat16()
    training.batches = [
        {n: t.bfloat16() if t.is_floating_point() else t for n, t in b.items()} for b in training.batches
    ]
    return True


@arrangement("sdpa attention")
def _(training: Training) -> bool:
    setter = getattr(training.model, "set_attn_implementation", None)
    if setter is None or training.model.config._attn_implementation != "eager" or not training.model._supports_sdpa:
        return False
    setter("sdpa")
    return True
