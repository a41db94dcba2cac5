"""How large would a result be if nothing in its sums cancelled? By statistics alone, its noise goes by that.

Theory of operation
    A sum is as exact as what it adds up, not as what is left of it: the gradient of a bias before a norm, or of a key's
    bias, is rounding noise, and so is the mean of what a norm is given. Of K terms that share no direction the sum has
    sqrt(K) times their root mean square; a result much smaller than that has cancelled, and may be off by as much as a
    result of that size might. Only ops whose terms follow from their inputs are listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from ...dump import Call, Value
from ...store.op_names import read_op_name

_Given = Mapping[str, Value]


def times_cancelled(call: Call, slot: str, result: Value) -> float:
    """Return how many times larger a result would be if nothing in it cancelled; 1 where that is unknown.

    Args:
        call: made the result.
        slot: of the result.
        result: of one recording.
    """
    size = _size(call, slot)
    rms, whole = _rms(result), None if size is None else size(dict(call.input_values()), result)
    return 1.0 if not rms or whole is None else max(1.0, whole / rms)


def is_sum(call: Call, slot: str) -> bool:
    """Return True if a result of a call is listed: it adds up what the call is given."""
    return _size(call, slot) is not None


def _size(call: Call, slot: str) -> Callable[[_Given, Value], float | None] | None:
    name = read_op_name(call.op).name
    return _SIZES.get((name, slot)) or _SIZES.get((name, ""))


def _rms(value: Value) -> float | None:
    """Return the root mean square of a tensor's elements by its statistics; None where they do not say."""
    norm = None if value.stats is None else value.stats.get("l2norm")
    return None if norm is None or not math.isfinite(norm) or not value.numel else norm / math.sqrt(value.numel)


def _summed(name: str) -> Callable[[_Given, Value], float | None]:
    """Return the size of a sum over a tensor that is given."""

    def size(given: _Given, result: Value) -> float | None:
        value = given.get(name)
        rms = None if value is None else _rms(value)
        return None if value is None or rms is None else rms * math.sqrt(_terms(value, result))

    return size


_added_up: Final = _summed("input.0")


def _averaged(given: _Given, result: Value) -> float | None:
    size = _added_up(given, result)
    return None if size is None else size / _terms(given["input.0"], result)


def _of_both(given: _Given, result: Value) -> float | None:
    """Return the size of a sum or difference of two tensors."""
    sizes = [None if value is None else _rms(value) for value in map(given.get, ("input.0", "input.1"))]
    return None if sizes[0] is None or sizes[1] is None else math.hypot(sizes[0], sizes[1])


def _product(first: str, second: str) -> Callable[[_Given, Value], float | None]:
    """Return the size of a product of two matrices, or of stacks of them."""

    def size(given: _Given, result: Value) -> float | None:
        one, other = given.get(first), given.get(second)
        if one is None or other is None:
            return None
        sizes = _rms(one), _rms(other)
        return None if sizes[0] is None or sizes[1] is None else sizes[0] * sizes[1] * math.sqrt(one.shape[-1])

    return size


def _terms(value: Value, result: Value) -> float:
    return max(1.0, value.numel / max(result.numel, 1))


_SIZES: Final[dict[tuple[str, str], Callable[[_Given, Value], float | None]]] = {
    ("add", ""): _of_both,
    ("sub", ""): _of_both,
    ("sum", ""): _added_up,
    ("mean", ""): _averaged,
    ("mm", ""): _product("input.0", "input.1"),
    ("bmm", ""): _product("input.0", "input.1"),
    ("addmm", ""): _product("input.1", "input.2"),
    ("baddbmm", ""): _product("input.1", "input.2"),
    ("embedding_dense_backward", ""): _added_up,
    ("index_put", ""): _summed("input.2"),
    ("index_add", ""): _summed("input.3"),
    ("scatter_add", ""): _summed("input.3"),
    ("convolution_backward", "output.2"): _added_up,
    ("native_layer_norm", "output.1"): _averaged,
    ("native_group_norm", "output.1"): _averaged,
    ("native_batch_norm", "output.1"): _averaged,
    ("native_batch_norm", "mutated.running_mean"): _averaged,
    ("native_layer_norm_backward", "output.1"): _added_up,
    ("native_layer_norm_backward", "output.2"): _added_up,
    ("native_group_norm_backward", "output.1"): _added_up,
    ("native_group_norm_backward", "output.2"): _added_up,
    ("native_batch_norm_backward", "output.1"): _added_up,
    ("native_batch_norm_backward", "output.2"): _added_up,
}
