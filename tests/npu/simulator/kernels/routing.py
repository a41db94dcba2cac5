"""How each aten op of the device runs: later on a stream, at once, as other ops, or by the real package's own code."""

from __future__ import annotations

import ctypes
import enum

import torch

from .registering import KERNELS

_has = torch._C._dispatch_has_kernel_for_dispatch_key
_ON_CPU = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")

# What the real package does with no kernel of the device's: memory, geometry, streams.
OF_THE_PACKAGE = frozenset(
    [
        "_copy_from_and_resize",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "_local_scalar_dense",
        "_pin_memory",
        "as_strided",
        "as_strided_",
        "copy_",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "is_pinned",
        "is_set_to",
        "new_empty",
        "new_empty_strided",
        "quantize_per_channel",
        "quantize_per_tensor",
        "record_stream",
        "resize_",
        "resize_as_",
        "set_",
        "squeeze",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_complex",
        "view_as_real",
        "_reshape_alias",
    ]
)
# What the package writes in its own C++ with its own copies inside: here it is composed as on a device without it.
COMPOSED = frozenset(["_to_copy", "contiguous", "_lazy_clone"])
# Return numbers of the host, or shapes that only the data tells.
WAITING = frozenset(
    [
        "equal",
        "is_nonzero",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "one_hot",
    ]  # bags: meta and CPU keep different things for the backward
)
# Compute in float32, on a device: the CPU's keep statistics of half precision in half, and count no integers (`histc`).
WIDENED = frozenset(
    [
        "histc",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "_native_batch_norm_legit",
    ]
)
# No gradient passes here, and what the package does above the device's kernel runs kernels behind the dispatcher's back.
NOT_DIFFERENTIABLE = frozenset(("one_hot",))


class Route(enum.IntEnum):
    LATER = 0
    WAITING = 1
    WIDENED = 2
    COMPOSED = 3


def route_of(name: str) -> Route | None:
    """Return how `name` (``aten::add.Tensor``) runs; None where that is not ours to say."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace != "aten" or base in OF_THE_PACKAGE or not _has(name, "PrivateUse1"):
        return None
    op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    if op is None or name in KERNELS:  # no op but a name of one of npu::, or written in Python
        return None
    if not any(_has(name, key) for key in _ON_CPU):
        return None
    schema = op._schema
    if base in COMPOSED:
        return Route.COMPOSED
    if torch.Tag.nondeterministic_seeded in op.tags and all(a.name != "generator" for a in schema.arguments):
        return Route.COMPOSED
    return Route.WAITING if base in WAITING else Route.WIDENED if base in WIDENED else Route.LATER


def install(launcher: ctypes.CDLL) -> dict[str, Route]:
    """Register a kernel for each op that is ours; returns which."""
    routes = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        route = route_of(name)
        if route is None:
            continue
        base, _, overload = name.partition(".")
        # `out=` has no gradient either.
        ends_here = base.removeprefix("aten::") in NOT_DIFFERENTIABLE or (
            overload == "out" and _has(name, "AutogradPrivateUse1")
        )
        if launcher.sim_route(base.encode(), overload.encode(), int(route), int(ends_here)) == 0:
            routes[name] = route
    return routes
