"""Kernels for the stand-in device: every aten kernel of 'npu' runs the CPU kernel on the same bytes.

Import after ``build_stub_acl.py`` ran and its environment is set; then ``tensor.to("npu")`` works with
the real ``torch_npu`` package, its dispatch keys, its ``torch.npu`` API and its ``npu::`` op schemas.
"""

import ctypes
import warnings
from collections import Counter

import torch
import torch_npu  # noqa: F401  (registers the device)
from torch.utils import _pytree as pytree

warnings.filterwarnings("ignore", message="Cannot create tensor with internal format")

# Ops that torch_npu itself implements without a kernel (allocation, views, metadata).
LAYOUT_OPS = frozenset(
    [
        "empty",
        "empty_strided",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "view",
        "as_strided",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "detach",
        "alias",
        "_reshape_alias",
        "resize_",
        "set_",
        "split",
        "split_with_sizes",
        "unbind",
        "unfold",
        "diagonal",
        "view_as_real",
        "view_as_complex",
        "lift",
        "lift_fresh",
        "record_stream",
        "is_set_to",
        "is_pinned",
        "_pin_memory",
        "_copy_from",
        "_copy_from_and_resize",
        "real",
        "imag",
        "_neg_view",
        "_conj",
    ]
)


def is_npu(x) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "npu"


def host_view(x: torch.Tensor) -> torch.Tensor:
    """The CPU tensor over the same bytes as an npu tensor."""
    storage = x.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    buffer = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    return torch.empty(0, dtype=x.dtype).set_(flat.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def to_npu(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="npu")
    host_view(y).copy_(x)
    return y


def cpu_kernel(op):
    def kernel(*args, **kwargs):
        device_of: dict[int, torch.Tensor] = {}
        alive = []

        def lower(x):
            if is_npu(x):
                h = host_view(x.detach())
                alive.append(h)
                device_of[id(h)] = x
                return h
            return torch.device("cpu") if isinstance(x, torch.device) and x.type == "npu" else x

        asked = kwargs.get("device")
        stays_on_cpu = asked is not None and torch.device(asked).type == "cpu"
        out = op(*pytree.tree_map(lower, args), **pytree.tree_map(lower, kwargs))

        def lift(x):
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in device_of:
                return x if stays_on_cpu else to_npu(x)
            original = device_of[id(x)]
            if original.shape != x.shape:
                original.resize_(x.shape)
                host_view(original).copy_(x)
            return original

        return pytree.tree_map(lift, out)

    return kernel


# What makes the program wait for a device: copies to the host, and numbers read.
waits = Counter()


def copy_(dst, src, non_blocking=False):
    if is_npu(src) and not is_npu(dst):
        waits["copies"] += 1
    (host_view(dst) if is_npu(dst) else dst).copy_(host_view(src) if is_npu(src) else src)
    return dst


def matmul_backward(grad, self, other, mask):
    """torch_npu keeps matmul whole and has its own backward op for it; operands of two or more dims."""
    g, a, b = host_view(grad), host_view(self), host_view(other)
    grad_a = (g @ b.mT).sum_to_size(a.shape) if mask[0] else None
    grad_b = (a.mT @ g).sum_to_size(b.shape) if mask[1] else None
    return tuple(None if x is None else to_npu(x) for x in (grad_a, grad_b))


def read_number(x):
    waits["numbers"] += 1
    return host_view(x).item()


SPECIAL = {
    "copy_": copy_,
    "matmul_backward": matmul_backward,
    "_local_scalar_dense": read_number,
}
_library = torch.library.Library("aten", "IMPL")


def register() -> int:
    """Register a kernel for each aten op that has one on CPU; returns how many."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    count = 0
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten" or base in LAYOUT_OPS or has(name, "CompositeImplicitAutograd"):
            continue
        if base not in SPECIAL and not any(
            has(name, key) for key in ("PrivateUse1", "CPU", "CompositeExplicitAutograd")
        ):
            continue
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if op is None:
            continue
        _library.impl(rest, SPECIAL.get(base) or cpu_kernel(op), "PrivateUse1", allow_override=True)
        count += 1
    return count


register()
