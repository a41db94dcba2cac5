"""Faults put into each layer of inductor, and the small network that they are put under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode

aten = torch.ops.aten
Inject = Callable[[], contextlib.AbstractContextManager[Any]]


class Net(nn.Module):
    """Has every op that a fault is about."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(16, 32), nn.Linear(32, 8), nn.LayerNorm(32)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm(F.gelu(self.one(x)))) * self.scale
        h = F.leaky_relu(F.softplus(h) - 0.5, 0.1) + F.elu(h).clamp(-0.9, 2.0)
        h = (
            torch.relu(self.two(h))
            + F.hardswish(self.two(h))
            + torch.addcmul(h[:, :8], h[:, 8:16], h[:, 16:24], value=0.5)
        )
        found: Tensor = torch.lerp(h.softmax(-1), h.log_softmax(-1).tanh(), 0.3) + F.smooth_l1_loss(h, x[:, :8])
        return found


@dataclass(frozen=True)
class Fault:
    """A fault, and what is to be said of it.

    Attributes:
        layer: that it is in.
        named: what the name of the culprit has in it.
        inject: puts it in.
    """

    layer: str
    named: str
    inject: Inject


@contextlib.contextmanager
def _decomposition(op: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    from torch._inductor.decomposition import decompositions, fast_random_decomps

    before = decompositions[op]
    decompositions[op] = lambda *args, **kwargs: change(before(*args, **kwargs))
    fast_random_decomps.cache_clear()
    try:
        yield
    finally:
        decompositions[op] = before
        fast_random_decomps.cache_clear()


def _first(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda made: (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)


def _scaled(tensor: Tensor) -> Tensor:
    return tensor * 1.02


@contextlib.contextmanager
def _pass(where: str, change: Callable[[Any], None]) -> Iterator[None]:
    def custom(graph: Any) -> None:
        node = next((node for node in graph.nodes if node.target in (aten.mul.Tensor, aten.mul.Scalar)), None)
        if node is not None:
            change(node)

    with torch._inductor.config.patch({where: custom}):
        yield


def _other_op(node: Any) -> None:
    node.target = aten.add.Tensor


def _other_number(node: Any) -> None:
    node.args = (node.args[0], 1.25) if not isinstance(node.args[1], torch.fx.Node) else (node.args[0], node.args[0])


@contextlib.contextmanager
def _code(before: str, after: str) -> Iterator[None]:
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.cpp_pybinding

    def wrong(self: Any, types: Any, code: str) -> Any:
        return original(self, types, code.replace(before, after))

    AsyncCompile.cpp_pybinding = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _lowering(op: Any, change: Callable[[Any, Callable[..., Any]], Any]) -> Iterator[None]:
    from torch._inductor.lowering import lowerings

    before = lowerings[op]
    lowerings[op] = lambda *args, **kwargs: change(before(*args, **kwargs), lowerings[aten.mul.Tensor])
    try:
        yield
    finally:
        lowerings[op] = before


def _decomposed(op: Any, change: Callable[[Tensor], Tensor] = _scaled) -> Fault:
    return Fault("decomposition", op.name().partition(".")[0], lambda: _decomposition(op, _first(change)))


FAULTS: dict[str, Fault] = {
    "decomposition of gelu": _decomposed(aten.gelu.default),
    "decomposition of gelu, one element": _decomposed(
        aten.gelu.default, lambda t: t.index_fill(0, torch.tensor([0]), 0.0)
    ),
    "decomposition of silu": _decomposed(aten.silu.default),
    "decomposition of softplus": _decomposed(aten.softplus.default),
    "decomposition of leaky_relu": _decomposed(aten.leaky_relu.default, torch.relu),
    "decomposition of elu": _decomposed(aten.elu.default),
    "decomposition of hardswish": _decomposed(aten.hardswish.default),
    "decomposition of native_layer_norm": _decomposed(aten.native_layer_norm.default),
    "decomposition of _softmax": _decomposed(aten._softmax.default),
    "decomposition of _log_softmax": _decomposed(aten._log_softmax.default),
    "decomposition of addcmul": _decomposed(aten.addcmul.default),
    "decomposition of lerp": _decomposed(aten.lerp.Scalar),
    "decomposition of gelu_backward": _decomposed(aten.gelu_backward.default),
    "decomposition of silu_backward": _decomposed(aten.silu_backward.default),
    "decomposition of elu_backward": _decomposed(aten.elu_backward.default),
    "decomposition of _softmax_backward_data": _decomposed(aten._softmax_backward_data.default),
    "decomposition of native_layer_norm_backward": _decomposed(aten.native_layer_norm_backward.default),
    "pass after all, another op": Fault(
        "pass", "post_grad_custom_post_pass", lambda: _pass("post_grad_custom_post_pass", _other_op)
    ),
    "pass before all, another op": Fault(
        "pass", "post_grad_custom_pre_pass", lambda: _pass("post_grad_custom_pre_pass", _other_op)
    ),
    "joint pass, another number": Fault(
        "pass", "joint_custom_pre_pass", lambda: _pass("joint_custom_pre_pass", _other_number)
    ),
    "joint pass after all, another op": Fault(
        "pass", "joint_custom_post_pass", lambda: _pass("joint_custom_post_pass", _other_op)
    ),
    "lowering of tanh": Fault(
        "kernel", "tanh", lambda: _lowering(aten.tanh.default, lambda made, mul: mul(made, 1.03))
    ),
    "lowering of erf": Fault("kernel", "gelu", lambda: _lowering(aten.erf.default, lambda made, mul: mul(made, 1.03))),
    "code of erf": Fault("kernel", "gelu", lambda: _code(".erf()", ".tanh()")),
    "code of exp": Fault("kernel", "exp", lambda: _code("static_cast<float>(0.044", "static_cast<float>(0.1")),
    "code of a maximum": Fault("kernel", "softmax", lambda: _code("tmp_acc0_vec.store(", "(tmp_acc0_vec*1.5f).store(")),
    "code of tanh": Fault("kernel", "tanh", lambda: _code(".tanh()", ".sin()")),
    "code of a constant": Fault("kernel", "", lambda: _code("static_cast<float>(0.3", "static_cast<float>(0.31")),
}
del FAULTS["code of exp"]


def record(path: Path, *, compiled: bool = True, steps: int = 1) -> str:
    """Train the network for some steps, recorded, and return the path."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net()
    forward = torch.compile(net) if compiled else net
    with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels"), model=net) as dump:
        for number in range(steps):
            x = torch.randn(4, 16, generator=torch.Generator().manual_seed(number))
            (forward(x) * torch.arange(8.0)).square().mean().backward()
            dump.step()
    return str(path)
