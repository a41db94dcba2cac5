"""Which ops of a dump may be run: those that compute, and those of libraries that the user named.

Theory of operation
    A dump names ops by text, and may come from a stranger. Torch's registry has ops that open files, and a library may
    register anything. So an op is run only if torch's dispatcher has it (not the interpreter of TorchScript, which can
    save, format and raise), it belongs to a namespace of computing ops or to one that was allowed by name, and it is no
    op that does something else: none of a list, none whose schema asks for the name of a file. What computing ops may
    do with wrong arguments is for `arguments`.
    The permission belongs to what a user asks of `replay` and `compare`, so these set it for all that runs under them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import torch

from ...errors import ConfigError, ReplayError
from ...references.fused_op import FusedOp
from ...store.op_names import read_op_name
from ...torch_names import OpOverload, has_kernel
from ..composed_ops import fused_ops
from ..given_device import why_no_op

COMPUTING_NAMESPACES: Final = frozenset(
    ("aten", "prims", "quantized", "_quantized", "quantized_decomposed", "mkldnn", "onednn", "torchvision", "npu")
)
_PART: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME: Final = re.compile(rf"{_PART}::{_PART}(\.{_PART})?")
_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*::[A-Za-z0-9_.*?]+")
_CHOOSES: Final = ("where",)  # among numbers, by a mask that has to be one
_FILE_ARGUMENTS: Final = re.compile(r"(file|path|dir|url|lib|library)(_?name)?|.*(_file|filename|_path|_dir|_url)")
_NOT_COMPUTING: Final = frozenset(
    {
        "from_file",
        "set_data",
        "requires_grad_",
        "retain_grad",
        "record_stream",
        "_backward",
        "_print",
        "_cufft_clear_plan_cache",
        "_cufft_set_plan_cache_max_size",
        "_cudnn_init_dropout_state",
        "_make_dep_token",
        "_nested_view_from_buffer",  # offsets into memory that nothing checks
        "_nested_view_from_buffer_copy",
    }
)

_allowed: ContextVar[tuple[str, ...]] = ContextVar("allowed_ops", default=())


@contextmanager
def allowing(patterns: Sequence[str]) -> Iterator[None]:
    """Let ops of other namespaces run within a block: patterns such as ``mylib::*``.

    Raises:
        ConfigError: a pattern is not ``namespace::name``.
    """
    checked = allowed_patterns(patterns)
    token = _allowed.set(checked)
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of ops as they are kept.

    Raises:
        ConfigError: one is not ``namespace::name``.
    """
    given = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    wrong = next((pattern for pattern in given if _PATTERN.fullmatch(pattern) is None), None)
    if wrong is not None:
        raise ConfigError(f"allow_ops has {wrong!r}; allowed: a namespace and a name or pattern, such as 'mylib::*'")
    return given


def registered_op(op: str) -> Any:
    """Return the OpOverload of a name, to ask about it; None where torch's dispatcher has none."""
    namespace, name, overload = read_op_name(op)
    try:
        is_known = _NAME.fullmatch(op) is not None and has_kernel(op)
    except RuntimeError:  # the parser of names refuses Python's keywords
        is_known = False
    if not is_known:
        return None
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:  # a package has registered a kernel for it, and nobody an op
        return None


def is_by_element(op: Any) -> bool:
    """Return True if an op computes each element of its result of the same element of what it is given."""
    return torch.Tag.pointwise in op.tags and read_op_name(op.name()).name not in _CHOOSES


def allowed_op(op: str) -> Any:
    """Return the OpOverload of a name in a dump.

    Raises:
        ReplayError: it may not be run, or this process does not have it; the message says which.
    """
    if not _allowed.get() and op.startswith("aten::"):
        return _aten_op(op)
    return _checked_op(op)


@lru_cache(maxsize=4096)
def _aten_op(op: str) -> Any:
    """Return an op of torch's own, which is the same for as long as the process lives."""
    return _checked_op(op)


def _checked_op(op: str) -> Any:
    namespace, _, _ = parts = read_op_name(op)
    if _NAME.fullmatch(op) is None:
        raise ReplayError(f"{op!a} is no name of an op, as in 'aten::add.Tensor'")
    by_name = any(fnmatchcase(text, pattern) for pattern in _allowed.get() for text in (op, parts.without_overload))
    if namespace not in COMPUTING_NAMESPACES and not by_name and op not in fused_ops():
        raise ReplayError(
            f"ops of {namespace} are run only where they are allowed: --allow-ops '{namespace}::*', if you trust the "
            "dump and the library"
        )
    found = registered_op(op) or fused_ops().get(op)
    if found is None:
        raise ReplayError(f"torch {torch.__version__} here has no op {op}; {why_no_op(op)}")
    reason = "" if by_name else _why_not(found)
    if reason:
        raise ReplayError(f"{op} is not run: {reason}")
    return found


@lru_cache(maxsize=4096)
def _why_not(op: OpOverload | FusedOp) -> str:
    """Return why an op is none that only computes, ``""`` where it is one."""
    if read_op_name(op.name()).name in _NOT_COMPUTING:
        return "it does something else than computing"
    for argument in op._schema.arguments:
        if _FILE_ARGUMENTS.fullmatch(argument.name) and "str" in str(argument.type):
            return f"its argument {argument.name} names a file"
    return ""


__all__ = ["allowed_op", "allowed_patterns", "allowing", "registered_op"]
