"""Faults put into each layer of inductor, each with a small function that shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode

aten = torch.ops.aten
Inject = Callable[[], contextlib.AbstractContextManager[Any]]


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fault:
    """A fault, and what is to be said of it.

    Attributes:
        layer: that it is in.
        named: what the name of the culprit has in it.
        inject: puts it in.
        function: that is compiled while it is there.
        is_trained: a backward is run too.
    """

    layer: str
    named: str
    inject: Inject
    function: Function
    is_trained: bool = False


@contextlib.contextmanager
def decomposition(op: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    from torch._inductor.decomposition import decompositions, fast_random_decomps

    before = decompositions[op]
    decompositions[op] = lambda *args, **kwargs: change(before(*args, **kwargs))
    fast_random_decomps.cache_clear()
    try:
        yield
    finally:
        decompositions[op] = before
        fast_random_decomps.cache_clear()


def first(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda made: (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)


def _scaled(tensor: Tensor) -> Tensor:
    return tensor * 1.02


@contextlib.contextmanager
def custom_pass(where: str, change: Callable[[Any], None]) -> Iterator[None]:
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
def lowering(op: Any, change: Callable[[Any, Callable[..., Any]], Any]) -> Iterator[None]:
    from torch._inductor.lowering import lowerings

    before = lowerings[op]
    lowerings[op] = lambda *args, **kwargs: change(before(*args, **kwargs), lowerings[aten.mul.Tensor])
    try:
        yield
    finally:
        lowerings[op] = before


def _decomposed(
    op: Any, function: Function, change: Callable[[Tensor], Tensor] = _scaled, *, is_trained: bool = False
) -> Fault:
    name = op.name().partition(".")[0]
    return Fault("decomposition", name, lambda: decomposition(op, first(change)), function, is_trained)


def _in_pass(where: str, change: Callable[[Any], None], *, is_trained: bool = False) -> Fault:
    return Fault("pass", where, lambda: custom_pass(where, change), lambda x: torch.sin(x) * 1.5 + x, is_trained)


def _in_lowering(op: Any, function: Function) -> Fault:
    return Fault("kernel", "cpp_fused", lambda: lowering(op, lambda made, mul: mul(made, 1.03)), function)


def _in_code(before: str, after: str, function: Function, *, is_trained: bool = False) -> Fault:
    return Fault("kernel", "cpp_fused", lambda: _code(before, after), function, is_trained)


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (16,))


FAULTS: dict[str, Fault] = {
    "decomposition of gelu": _decomposed(aten.gelu.default, F.gelu),
    "decomposition of gelu, negative numbers": _decomposed(aten.gelu.default, F.gelu, torch.relu),
    "decomposition of silu": _decomposed(aten.silu.default, F.silu),
    "decomposition of softplus": _decomposed(aten.softplus.default, F.softplus),
    "decomposition of leaky_relu": _decomposed(aten.leaky_relu.default, F.leaky_relu, torch.relu),
    "decomposition of elu": _decomposed(aten.elu.default, F.elu),
    "decomposition of hardswish": _decomposed(aten.hardswish.default, F.hardswish),
    "decomposition of native_layer_norm": _decomposed(aten.native_layer_norm.default, _norm),
    "decomposition of _softmax": _decomposed(aten._softmax.default, lambda x: x.softmax(-1)),
    "decomposition of _log_softmax": _decomposed(aten._log_softmax.default, lambda x: x.log_softmax(-1)),
    "decomposition of gelu_backward": _decomposed(aten.gelu_backward.default, F.gelu, is_trained=True),
    "decomposition of silu_backward": _decomposed(aten.silu_backward.default, F.silu, is_trained=True),
    "decomposition of elu_backward": _decomposed(aten.elu_backward.default, F.elu, is_trained=True),
    "decomposition of native_layer_norm_backward": _decomposed(
        aten.native_layer_norm_backward.default, _norm, is_trained=True
    ),
    "pass after all, another op": _in_pass("post_grad_custom_post_pass", _other_op),
    "pass before all, another op": _in_pass("post_grad_custom_pre_pass", _other_op),
    "pass after all, another number": _in_pass("post_grad_custom_post_pass", _other_number),
    "joint pass before all, another number": _in_pass("joint_custom_pre_pass", _other_number, is_trained=True),
    "joint pass after all, another op": _in_pass("joint_custom_post_pass", _other_op, is_trained=True),
    "lowering of tanh": _in_lowering(aten.tanh.default, lambda x: x.tanh() + 1),
    "lowering of erf": _in_lowering(aten.erf.default, F.gelu),
    "lowering of sigmoid": _in_lowering(aten.sigmoid.default, lambda x: x.sigmoid() + 1),
    "code of erf": _in_code(".erf()", ".tanh()", F.gelu),
    "code of tanh": _in_code(".tanh()", ".sin()", lambda x: x.tanh() + 1),
    "code of a constant": _in_code("static_cast<float>(0.5)", "static_cast<float>(0.51)", F.gelu),
    "code of a loop": _in_code("x1<static_cast<int64_t>(8L)", "x1<static_cast<int64_t>(7L)", lambda x: x.cos().sum(0)),
    "code of a backward": _in_code(".exp()", ".sin()", F.elu, is_trained=True),
}


def record(path: Path, fault: Fault, *, compiled: bool = True) -> str:
    """Run the function of a fault once, recorded, and return the path."""
    torch._dynamo.reset()
    function = torch.compile(fault.function) if compiled else fault.function
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(3)).requires_grad_(fault.is_trained)
    with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels")):
        found = function(x) * 2.0
        if fault.is_trained:
            found.square().sum().backward()
    return str(path)
