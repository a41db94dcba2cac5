"""How much memory an op will take, from the shapes of its arguments, before it runs.

Theory of operation
    A dump of a few bytes can ask for terabytes: a factory with large sizes, an expanded tensor, an outer product. So an
    op runs on the meta device first, which computes shapes only; where torch has no such kernel, the op is judged by
    its arguments. More than the machine has free is refused.
"""

from __future__ import annotations

import resource
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from ...dump import Value
from ...errors import ReplayError
from ...store.op_names import read_op_name
from ...torch_names import tree_leaves, without_compiler

Named = Mapping[str, Any]  # arguments by the names of the schema
_ALWAYS: Final = 256 << 20  # bytes that any machine has
_META: Final = torch.device("meta")
_DECIDED_BY_DATA: Final = {"repeat_interleave": "repeats", "bincount": "self", "one_hot": "self"}
_RAN_OUT: Final = ("can't allocate memory", "not enough memory")
_CGROUP: Final = Path("/sys/fs/cgroup")


@lru_cache(maxsize=4096)
def arguments_of(op: Any) -> tuple[tuple[str, ...], Named]:
    """Return the names of an op's arguments in order, and their defaults; torch makes the schema anew when asked."""
    arguments = op._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return tuple(argument.name for argument in arguments), defaults


def check_given(values: Iterable[Value], *, cast: bool) -> None:
    """Check that the tensors of a call fit into memory.

    Raises:
        ReplayError: they do not.
    """
    size = 8 if cast else 0
    need = sum(value.numel * max(size, value.dtype.itemsize) for value in values)
    _check(need, "its arguments take")


def check_made(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that what an op will make fits into memory.

    Raises:
        ReplayError: it does not.
    """
    if _deciding(op) is not None:
        _check(_decided_by_data(op, args, kwargs), "its results take")
    if 16 * _most_elements((*args, *kwargs.values())) < _ALWAYS:
        return
    names, _ = arguments_of(op)
    given = dict(kwargs)
    if "device" in names[len(args) :]:
        given["device"] = _META  # a factory without a device would make it here
    elif not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs))):
        return  # nothing says that it makes shapes only
    _check(
        _made_bytes(op, _key(list(args)), tuple((name, _key(item)) for name, item in given.items())), "its results take"
    )


def _most_elements(arguments: Any) -> float:
    """Return more elements than any op makes of its arguments: the product of all sizes and numbers in them."""
    if isinstance(arguments, torch.Tensor):
        return max(1, arguments.numel())
    if isinstance(arguments, (int, float)):
        if isinstance(arguments, bool) or arguments != arguments or not arguments:
            return 1.0
        return max(1.0, abs(arguments), 1 / abs(arguments))  # a step of 1e-9 makes as many as a size of 1e9
    most = 1.0
    if isinstance(arguments, (list, tuple)):
        for item in arguments:
            most *= _most_elements(item)
    elif isinstance(arguments, dict):
        return _most_elements(list(arguments.values()))
    return most


class _Shape(NamedTuple):
    """A tensor without its memory."""

    shape: torch.Size
    stride: tuple[int, ...] | None
    dtype: torch.dtype


def _key(item: Any) -> Hashable:
    """Return an argument as what a call is known by; the same layers run again and again."""
    if isinstance(item, torch.Tensor):
        if item.layout is not torch.strided or item.is_quantized:
            return _Shape(item.shape, None, torch.float32)
        return _Shape(item.shape, item.stride(), item.dtype)
    if isinstance(item, (list, tuple)):
        return tuple(_key(entry) for entry in item)
    if isinstance(item, dict):  # no op of torch takes one: it will say so
        return tuple((name, _key(entry)) for name, entry in item.items())
    if isinstance(item, torch.Generator):
        return None
    return _META if isinstance(item, torch.device) else item


@lru_cache(maxsize=8192)
def _made_bytes(op: Any, args: Sequence[Hashable], kwargs: Sequence[tuple[str, Hashable]]) -> int:
    """Return the bytes of the results of an op, as it says itself of shapes; 0 where it cannot."""
    try:
        with torch.no_grad(), without_compiler():
            made = op(*(_on_meta(item) for item in args), **{name: _on_meta(item) for name, item in kwargs})
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - no kernel for shapes alone, or arguments that the op itself will refuse
        return 0
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor))


def _on_meta(item: Any) -> Any:
    if isinstance(item, _Shape):
        if item.stride is None:
            return torch.empty(item.shape, dtype=item.dtype, device=_META)
        return torch.empty_strided(item.shape, item.stride, dtype=item.dtype, device=_META)
    return [_on_meta(entry) for entry in item] if isinstance(item, tuple) else item


@lru_cache(maxsize=4096)
def _deciding(op: Any) -> str | None:
    """Return the argument whose elements decide the size of a result."""
    return _DECIDED_BY_DATA.get(read_op_name(op.name()).name)


def _decided_by_data(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the bytes of a result whose size is in the elements of an argument."""
    name = read_op_name(op.name()).name
    names, _ = arguments_of(op)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    data = given.get(_DECIDED_BY_DATA[name])
    if not isinstance(data, torch.Tensor) or data.numel() == 0 or data.is_floating_point():
        return 0
    elements = int(data.sum()) if name == "repeat_interleave" else int(data.max())
    return 8 * max(0, elements) * (data.numel() if name == "one_hot" else 1)


def _check(need: int, what: str) -> None:
    if need > _ALWAYS and need > (free := free_bytes()):
        raise ReplayError(f"{what} {need / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free here: it is not run")


def ran_out(error: BaseException) -> bool:
    """Return True if an error says that memory could not be had; torch's allocator on the host has no class for it."""
    first = first_cause(error)
    if isinstance(first, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(first, RuntimeError) and any(text in str(first) for text in _RAN_OUT)


def first_cause(error: BaseException) -> BaseException:
    """Return the error that led to others, the last of which is given."""
    return error if error.__cause__ is None else first_cause(error.__cause__)


def free_bytes() -> int:
    """Return the bytes of memory that a process may still take."""
    limits = [_system_bytes()]
    most, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if most is not None and used is not None:
        limits.append(max(0, most - used + _entry(_CGROUP / "memory.stat", "inactive_file", 0)))
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit != resource.RLIM_INFINITY:
        limits.append(max(0, limit - (_entry(Path("/proc/self/status"), "VmData:", 0) << 10)))
    return min(limits)


def _system_bytes() -> int:
    return _entry(Path("/proc/meminfo"), "MemAvailable:", 16 << 20) << 10


def _entry(path: Path, name: str, default: int) -> int:
    """Return the number behind a name in a file of the kernel's."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return default
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), default)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
