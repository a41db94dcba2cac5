"""Compare tensors bit by bit and walk the argument trees of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def raw(tensor: Tensor) -> bytes:
    """The elements in row-major order, as bytes; NaN payloads and signs of zero included."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.numel() == 0:
        return b""
    # A dtype without a copy kernel (float4) has no gaps to close when it is contiguous already.
    flat = tensor if tensor.is_contiguous() else tensor.contiguous()
    # as_strided: one element is contiguous whatever its stride, but only stride 1 can be viewed as bytes.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def difference(expected: Tensor, found: Tensor, stride: bool = True) -> str | None:
    """What differs between two tensors, None where they are the same bit by bit."""
    if expected.dtype != found.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if expected.shape != found.shape:
        return f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if stride and expected.stride() != found.stride():
        return f"stride {found.stride()}, expected {expected.stride()}"
    if raw(expected) != raw(found):
        if expected.dtype.is_floating_point and expected.dtype.itemsize >= 2:
            return f"bits differ, by at most {(expected.double() - found.double()).abs().max().item()}"
        return f"bits differ: {found.flatten()[:8]}, expected {expected.flatten()[:8]}"
    return None


def assert_same(expected: Tensor, found: Tensor, what: str = "tensor", stride: bool = False) -> None:
    assert isinstance(found, Tensor), f"{what}: not a tensor but {type(found)}"
    problem = difference(expected, found, stride)
    assert problem is None, f"{what}: {problem}"


def is_value(item: Any) -> bool:
    """Whether a leaf of an argument tree is a Value."""
    return hasattr(item, "producer") and hasattr(item, "tensor")


def leaves(tree: Any) -> Iterator[Any]:
    """Leaves of nested lists, tuples and dicts, in order."""
    if isinstance(tree, Mapping):
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, (list, tuple)) and not isinstance(tree, torch.Size):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def values(tree: Any) -> list[Any]:
    """The Values of an argument tree, in order."""
    return [leaf for leaf in leaves(tree) if is_value(leaf)]


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of an argument tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def calls(rank: Any, kind: str | None = None, phase: str | None = None, op: str | None = None) -> list[Any]:
    """The calls of a rank that match, in execution order."""
    return [
        call
        for call in rank.calls
        if (kind is None or call.kind == kind)
        and (phase is None or call.phase == phase)
        and (op is None or call.op == op)
    ]


def only(items: list[Any]) -> Any:
    assert len(items) == 1, f"expected one, found {len(items)}: {[getattr(i, 'name', i) for i in items]}"
    return items[0]


def api_call(rank: Any, api: str, n: int = 0, phase: str = "forward") -> Any:
    """The n-th Python-level call of a torch function, whatever its prefix."""
    return [call for call in calls(rank, kind="api", phase=phase) if call.name.split(".")[1] == api][n]


def backward_of(rank: Any, call: Any) -> Any:
    """The call that records the backward of a forward call, found by its name."""
    stem, _, phase = call.name.rpartition(".")
    assert phase == "forward"
    return rank[f"{stem}.backward"]
