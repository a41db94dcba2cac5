"""Shapes that some kernels take for granted, as in a program another op made them.

Theory of operation
    The kernel of a backward op often trusts that its gradient, indices and saved statistics have the shapes that the
    forward gave them, and reads beyond them where a dump says otherwise. For these ops, which were found by giving
    those of op_db wrong shapes in processes of their own, the shapes are held against each other before they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from ....errors import ReplayError
from .named_rules import Named, rule_for, rule_of


class Expected(NamedTuple):
    """What a dimension or a number of elements of an argument must be."""

    what: str
    found: Any  # a size or a shape
    wanted: Any


Rule = Callable[[Named], Iterator[Expected]]


def check_shapes(name: str, given: Named) -> None:
    """Check the shapes of what an aten op is given, where its kernel does not.

    Args:
        name: of the op, without overload: ``"native_layer_norm_backward"``.
        given: its arguments.

    Raises:
        ReplayError: they do not fit together.
    """
    rule = rule_of(SHAPE_RULES, name)
    for expected in rule(given) if rule is not None else ():
        if expected.found != expected.wanted:
            raise ReplayError(
                f"{name} is not run: {expected.what} is {_text(expected.found)}, by its other arguments "
                f"it must be {_text(expected.wanted)}, or it would reach beyond a tensor"
            )


def _text(size: Any) -> str:
    return str(list(size)) if isinstance(size, (tuple, list)) else str(size)


def _alike(given: Named, names: str, like: str) -> Iterator[Expected]:
    for name in names.split():
        if given.get(name) is not None:
            yield Expected(f"the shape of {name}", given[name].shape, given[like].shape)


def _counts(given: Named, names: str, count: int) -> Iterator[Expected]:
    for name in names.split():
        if given.get(name) is not None:
            yield Expected(f"the number of elements of {name}", given[name].numel(), count)


def _batch_norm(given: Named) -> Iterator[Expected]:
    data = given["input"]
    channels = data.shape[1] if data.dim() > 1 else 0
    yield from _counts(given, "weight bias running_mean running_var", channels)


def _batch_norm_backward(given: Named) -> Iterator[Expected]:
    yield from _batch_norm(given)
    yield from _alike(given, "grad_out", "input")
    channels = given["input"].shape[1] if given["input"].dim() > 1 else 0
    if given.get("train", given.get("update")):  # else they are not read
        yield from _counts(given, "save_mean save_invstd save_var", channels)


def _layer_norm_backward(given: Named) -> Iterator[Expected]:
    data, inner = given["input"], torch.Size(given["normalized_shape"])
    yield from _alike(given, "grad_out", "input")
    yield Expected("the end of the shape of input", data.shape[data.dim() - len(inner) :], inner)
    rows = data.shape[: data.dim() - len(inner)].numel()
    for name in ("mean", "rstd"):
        yield Expected(f"the number of elements of {name}", given[name].numel(), rows)
    yield from _counts(given, "weight bias", inner.numel())


def _group_norm_backward(given: Named) -> Iterator[Expected]:
    yield from _alike(given, "grad_out", "input")
    items, channels, groups = (int(given[name]) for name in ("N", "C", "group"))
    yield Expected("the number of elements of input", given["input"].numel(), items * channels * int(given["HxW"]))
    for name in ("mean", "rstd"):
        yield Expected(f"the number of elements of {name}", given[name].numel(), items * groups)
    yield from _counts(given, "weight", channels)


def _pooled(dims: int) -> Rule:
    """The gradient and indices of a pooling: its input but for the last dims."""

    def rule(given: Named) -> Iterator[Expected]:
        grad, data = given["grad_output"], given["self"]
        yield Expected("the number of dimensions of grad_output", grad.dim(), data.dim())
        yield Expected("the number of dimensions, at least", data.dim() >= dims, True)
        yield Expected("the start of the shape of grad_output", grad.shape[:-dims], data.shape[:-dims])
        yield from _alike(given, "indices", "grad_output")

    return rule


def _grid_backward(given: Named) -> Iterator[Expected]:
    data, grid = given["input"], given["grid"]
    yield Expected("the number of dimensions of grid", grid.dim(), data.dim())
    wanted = (*data.shape[:2], *grid.shape[1:-1])
    yield Expected("the shape of grad_output", tuple(given["grad_output"].shape), wanted)


def _margin_backward(given: Named) -> Iterator[Expected]:
    data, grad = given["self"], given["grad_output"]
    rows = data.shape[0] if data.dim() > 1 else 1
    each = given.get("reduction", 1) == 0 and data.dim() > 1
    yield Expected("the number of elements of grad_output", grad.numel(), rows if each else 1)
    yield from _alike(given, "is_target", "self")
    yield Expected("the number of elements of target", given["target"].numel(), _of_target(given, rows))


def _of_target(given: Named, rows: int) -> int:
    return int(given["self"].numel()) if "is_target" in given else rows


def _ctc_backward(given: Named) -> Iterator[Expected]:
    steps, items = given["log_probs"].shape[:2] if given["log_probs"].dim() == 3 else (0, 0)
    lengths = [int(length) for length in given["target_lengths"]]
    yield from _counts(given, "grad neg_log_likelihood", items)
    yield Expected(
        "the shape of log_alpha", tuple(given["log_alpha"].shape), (items, steps, 2 * max(lengths, default=0) + 1)
    )


def _segments_backward(given: Named) -> Iterator[Expected]:
    yield from _alike(given, "grad", "output")
    data, output, axis = given["data"], given["output"], int(given.get("axis", 0))
    yield Expected("the start of the shape of output", output.shape[:axis], data.shape[:axis])
    yield Expected("the end of the shape of output", output.shape[axis + 1 :], data.shape[axis + 1 :])
    lengths, offsets = given.get("lengths"), given.get("offsets")
    marks = lengths if lengths is not None else offsets
    if marks is not None and marks.dim():
        count = marks.shape[-1] - (0 if lengths is not None else 1)
        yield Expected("the segments of output", output.shape[axis] if axis < output.dim() else 0, count)


def _bags_backward(given: Named) -> Iterator[Expected]:
    yield Expected("the number of columns of grad", given["grad"].shape[1:], given["weight"].shape[1:])


def _unpacked(given: Named) -> Iterator[Expected]:
    matrix = given["LU_data"].shape
    yield Expected(
        "the shape of LU_pivots", tuple(given["LU_pivots"].shape), (*matrix[:-2], min(matrix[-2:], default=0))
    )


def _fused_step(given: Named) -> Iterator[Expected]:
    """Lists of an optimizer's step: each parameter's tensors are of one size."""
    shapes = [tensor.shape for tensor in given["self"]]
    for name, items in given.items():
        if isinstance(items, (list, tuple)) and items and name not in ("self", "state_steps"):
            yield Expected(f"the shapes of {name}", [tensor.shape for tensor in items], shapes)
    if "state_steps" in given:
        yield Expected("the number of state_steps", len(given["state_steps"]), len(shapes))


def _reaching(given: Named) -> Iterator[Expected]:
    """A geometry that is laid over memory without a look at its size."""
    if "size" not in given:
        return  # that of another tensor
    source = given["source"] if "source" in given else given["self"]
    sizes, steps = given["size"], given.get("stride") or ()
    first = given.get("storage_offset")
    first = source.storage_offset() if first is None else first
    yield Expected("the number of strides", len(steps), len(sizes))
    yield Expected("the least of sizes and strides", min([0, first, *sizes, *steps]), 0)
    reach = 0 if 0 in sizes else 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    held = source.untyped_storage().nbytes() // max(1, source.element_size())
    yield Expected("the memory that it reaches over", max(first + reach, held) if reach else held, held)


SHAPE_RULES: Final[dict[str, Rule]] = {
    **rule_for("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional", _batch_norm),
    **rule_for("_batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update", _batch_norm),
    **rule_for("native_batch_norm_backward batch_norm_backward", _batch_norm_backward),
    **rule_for("native_layer_norm_backward", _layer_norm_backward),
    **rule_for("native_group_norm_backward", _group_norm_backward),
    **rule_for(
        "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward max_pool2d_with_indices_backward", _pooled(2)
    ),
    **rule_for("fractional_max_pool2d_backward", _pooled(2)),
    **rule_for(
        "_adaptive_avg_pool3d_backward adaptive_max_pool3d_backward max_pool3d_with_indices_backward", _pooled(3)
    ),
    **rule_for("fractional_max_pool3d_backward", _pooled(3)),
    **rule_for("grid_sampler_2d_backward grid_sampler_3d_backward", _grid_backward),
    **rule_for("multi_margin_loss_backward multilabel_margin_loss_backward", _margin_backward),
    **rule_for("_ctc_loss_backward", _ctc_backward),
    **rule_for("_segment_reduce_backward", _segments_backward),
    **rule_for("_embedding_bag_per_sample_weights_backward", _bags_backward),
    **rule_for("lu_unpack", _unpacked),
    **rule_for("_fused_adam _fused_adamw _fused_sgd _fused_adagrad", _fused_step),
    **rule_for("_reshape_alias set", _reaching),
}
