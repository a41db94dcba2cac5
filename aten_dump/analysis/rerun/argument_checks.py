"""What is asked of the arguments of an op before it runs: sizes, shapes, indices, so that none ends the process.

Theory of operation
    Some kernels on the CPU, and all on devices, follow an index without a look at it: one out of range ends the process
    or reads foreign memory, and a dump may hold any. So before an op runs, its indices are held against the sizes of
    its other arguments. No schema says which: there is a rule for each op that takes indices, by its name.
    The ops whose kernels do not look were found by giving those of op_db wrong indices in processes of their own.

    The kernel of a backward op often trusts that its gradient, indices and saved statistics have the shapes that the
    forward gave them, and reads beyond them where a dump says otherwise. For these ops, which were found by giving
    those of op_db wrong shapes in processes of their own, the shapes are held against each other before they run.

    A child process with limits on memory and time would not do: of the wrong arguments in its tests that torch lets
    through, most run to the end, having read memory that is not theirs, or written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import torch

from ...errors import ReplayError
from ...store.op_names import read_op_name
from .memory_need import Named, arguments_of, check_made

_Rule = TypeVar("_Rule")


def rule_for(names: str, rule: _Rule) -> dict[str, _Rule]:
    """Return a table that has one rule for each of these ops, without overload: ``"gather scatter"``."""
    return dict.fromkeys(names.split(), rule)


def rule_of(rules: Mapping[str, _Rule], name: str) -> _Rule | None:
    """Return the rule for an op; ops in place have that of the op that they are named after."""
    return rules.get(name) or rules.get(name.rstrip("_"))


def check_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that an op can be run with these arguments.

    Raises:
        ReplayError: it would take more memory than there is, or reach beyond its tensors.
    """
    name, is_checked = _asked_of(op)
    if is_checked:
        names, defaults = arguments_of(op)
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        try:
            check_shapes(name, given)
            check_indices(name, given)
        except ReplayError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ReplayError(f"its arguments are none of {op.name()}: {type(error).__name__}: {error}") from error
    check_made(op, args, kwargs)


@lru_cache(maxsize=4096)
def _asked_of(op: Any) -> tuple[str, bool]:
    """Return the name of an op without overload, and True if there is a rule about its arguments."""
    namespace, name, _ = read_op_name(op.name())
    is_checked = any(rule_of(rules, name) is not None for rules in (SHAPE_RULES, INDEX_RULES))
    return name, namespace == "aten" and is_checked


class Bound(NamedTuple):
    """Elements of an argument must be at least `low` and below `high`."""

    name: str
    index: Any  # a tensor, or numbers
    low: int
    high: int
    free: int | None = None  # a value that is allowed beside these


Rule = Callable[[Named], Iterator[Bound]]
_MAXIMUM: Final = 2  # embedding_bag's mode "max"


def check_indices(name: str, given: Named) -> None:
    """Check the indices that an aten op is given.

    Args:
        name: of the op, without overload: ``"gather"``.
        given: its arguments.

    Raises:
        ReplayError: one is out of range.
    """
    rule = rule_of(INDEX_RULES, name)
    for bound in rule(given) if rule is not None else ():
        _check(name, bound)


def _check(op: str, bound: Bound) -> None:
    index = bound.index
    if index is None:
        return
    tensor = index if isinstance(index, torch.Tensor) else torch.tensor(list(index), dtype=torch.int64)
    if tensor.numel() == 0 or tensor.dtype is torch.bool or tensor.layout is not torch.strided:
        return
    if bound.free is not None:
        tensor = tensor[tensor != bound.free]
        if tensor.numel() == 0:
            return
    least, most = (int(found) for found in torch.aminmax(tensor))
    if least < bound.low or most >= bound.high:
        raise ReplayError(
            f"{op} is not run: {bound.name} has values from {least} to {most}; allowed are {bound.low} to "
            f"{bound.high - 1}, or it would reach beyond its tensor"
        )


def _size(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else 1 if tensor.dim() == 0 else 0


def _along(wraps: bool = False) -> Rule:
    """``index`` goes along ``dim`` of ``self``; with `wraps` it may count from the end."""

    def rule(given: Named) -> Iterator[Bound]:
        size = _size(given["self"], given["dim"])
        yield Bound("index", given["index"], -size if wraps else 0, size)

    return rule


def _flat(given: Named) -> Iterator[Bound]:
    count = given["self"].numel()
    yield Bound("index", given["index"], -count, count)


def _advanced(given: Named) -> Iterator[Bound]:
    dim = 0
    for index in given["indices"]:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        if isinstance(index, torch.Tensor) and not is_mask:
            size = _size(given["self"], dim)
            yield Bound("indices", index, -size, size)
        dim += index.dim() if is_mask else 1


def _embedding(given: Named) -> Iterator[Bound]:
    weight = given["weight"] if "weight" in given else given["self"]
    yield Bound("indices", given["indices"], 0, _size(weight, 0))


def _embedding_backward(given: Named) -> Iterator[Bound]:
    count = given.get("num_weights", given.get("num_embeddings"))
    yield Bound("indices", given["indices"], 0, int(count or 0), given.get("padding_idx"))


def _bags(given: Named) -> Iterator[Bound]:
    indices = given["indices"]
    count = _size(given["weight"], 0) if "weight" in given else int(given["num_weights"])
    yield Bound("indices", indices, 0, count)
    offsets = given.get("offsets")
    if offsets is not None:
        yield Bound("offsets", offsets, 0, indices.numel() + 1)
        yield Bound("steps of offsets", offsets.diff(), 0, indices.numel() + 1)
    if "offset2bag" in given:
        bags = _size(given["grad"], 0)
        yield Bound("offset2bag", given["offset2bag"], 0, bags)
        yield Bound("numbers of offset2bag", [given["offset2bag"].numel()], indices.numel(), indices.numel() + 1, 0)
        if given.get("mode") == _MAXIMUM:
            yield Bound("maximum_indices", given.get("maximum_indices"), -1, count)


def _classes(low: int = 0) -> Rule:
    def rule(given: Named) -> Iterator[Bound]:
        scores = given["self"]
        classes = _size(scores, 1 if scores.dim() > 1 else 0)
        yield Bound("target", given["target"], low, classes, given.get("ignore_index"))

    return rule


def _planes(dims: int) -> Rule:
    """``indices`` go into the last dims of ``self``, the input of a pooling."""

    def rule(given: Named) -> Iterator[Bound]:
        yield Bound("indices", given["indices"], 0, given["self"].shape[-dims:].numel())

    return rule


def _unpooled(given: Named) -> Iterator[Bound]:
    yield Bound("indices", given["indices"], 0, torch.Size(given["output_size"]).numel())


def _ctc(given: Named) -> Iterator[Bound]:
    steps, items, classes = given["log_probs"].shape if given["log_probs"].dim() == 3 else (0, 0, 0)
    targets, lengths = given["targets"], torch.as_tensor(given["target_lengths"]).cpu()
    yield Bound("input_lengths", given["input_lengths"], 0, steps + 1)
    yield Bound("numbers of lengths", [lengths.numel(), len(given["input_lengths"])], items, items + 1)
    if targets.dim() == 2:
        longest = targets.shape[1]
        yield Bound("target_lengths", lengths, 0, longest + 1)
        used = torch.arange(longest) < lengths[:, None]
        targets = targets.cpu()[used] if used.shape == targets.shape else targets
    else:
        yield Bound("target_lengths", lengths, 0, targets.numel() + 1)
        yield Bound("sum of target_lengths", [int(lengths.sum())], 0, targets.numel() + 1)
    yield Bound("targets", targets, 0, classes)
    yield Bound("blank", [int(given.get("blank", 0))], 0, max(classes, 1))


def _segments(given: Named) -> Iterator[Bound]:
    data, axis = given["data"], given.get("axis", 0)
    size = _size(data, axis)
    lengths, offsets = given.get("lengths"), given.get("offsets")
    if lengths is not None:
        yield Bound("lengths", lengths, 0, size + 1)
        yield Bound("sums of lengths", lengths.sum(-1), 0, size + 1)
    if offsets is not None:
        yield Bound("offsets", offsets, 0, size + 1)
        yield Bound("steps of offsets", offsets.diff(), 0, size + 1)


def _pivots(name: str, matrix: str, signed: bool = False) -> Rule:
    def rule(given: Named) -> Iterator[Bound]:
        size = _size(given[matrix], -2)
        yield Bound(name, given[name], -size if signed else 1, size + 1)

    return rule


def _packed(given: Named) -> Iterator[Bound]:
    sizes, rows = given["batch_sizes"], _size(given["data"], 0)
    yield Bound("batch_sizes", sizes, 1, rows + 1)
    yield Bound("sum of batch_sizes", [int(sizes.sum())], rows, rows + 1)
    yield Bound("steps of batch_sizes", sizes.diff(), -rows, 1)


def _jagged(rows: str) -> Rule:
    def rule(given: Named) -> Iterator[Bound]:
        for offsets in given["offsets"]:
            yield Bound("offsets", offsets, 0, _size(given[rows], 0) * _size(given[rows], 1) + 1)
            yield Bound("steps of offsets", offsets.diff(), 0, 1 << 62)

    return rule


def _rows_of_coo(given: Named) -> Iterator[Bound]:
    yield Bound("self", given["self"], 0, int(given["size"]))


def _rows_of_csr(given: Named) -> Iterator[Bound]:
    count = given["col_indices"].shape[-1]
    yield Bound("crow_indices", given["crow_indices"], 0, count + 1)
    yield Bound("steps of crow_indices", given["crow_indices"].diff(), 0, count + 1)


def _sorter(given: Named) -> Iterator[Bound]:
    yield Bound("sorter", given.get("sorter"), 0, _size(given["sorted_sequence"], -1))


def _sparse(given: Named) -> Iterator[Bound]:
    """Each row of ``indices`` goes into a dimension of ``size``."""
    for dim, size in zip(range(_size(given["indices"], 0)), given.get("size") or (), strict=False):
        yield Bound(f"indices[{dim}]", given["indices"][dim], 0, size)


def _dims(given: Named) -> Iterator[Bound]:
    count = given["self"].dim()
    yield Bound("dim", given["dim"], -count, count)


INDEX_RULES: Final[dict[str, Rule]] = {
    **rule_for("gather scatter scatter_add scatter_reduce index_select index_add index_copy index_reduce", _along()),
    **rule_for("index_fill", _along(wraps=True)),
    **rule_for("take put", _flat),
    **rule_for("index index_put _index_put_impl _unsafe_index _unsafe_index_put", _advanced),
    **rule_for("embedding embedding_renorm", _embedding),
    **rule_for("embedding_dense_backward embedding_sparse_backward embedding_backward", _embedding_backward),
    **rule_for("embedding_bag _embedding_bag _embedding_bag_forward_only _embedding_bag_backward", _bags),
    **rule_for("_embedding_bag_dense_backward _embedding_bag_sparse_backward", _bags),
    **rule_for("_embedding_bag_per_sample_weights_backward", _bags),
    **rule_for("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", _classes()),
    **rule_for("nll_loss nll_loss2d multi_margin_loss multi_margin_loss_backward", _classes()),
    **rule_for("multilabel_margin_loss_forward multilabel_margin_loss_backward", _classes(-1)),
    **rule_for(
        "max_pool2d_with_indices_backward adaptive_max_pool2d_backward fractional_max_pool2d_backward", _planes(2)
    ),
    **rule_for(
        "max_pool3d_with_indices_backward adaptive_max_pool3d_backward fractional_max_pool3d_backward", _planes(3)
    ),
    **rule_for("max_unpool2d max_unpool3d", _unpooled),
    **rule_for("_ctc_loss _ctc_loss_backward", _ctc),
    **rule_for("segment_reduce _segment_reduce_backward", _segments),
    **rule_for("linalg_lu_solve", _pivots("pivots", "LU")),
    **rule_for("lu_unpack", _pivots("LU_pivots", "LU_data")),
    **rule_for("linalg_ldl_solve", _pivots("pivots", "LD", signed=True)),
    **rule_for("_pad_packed_sequence", _packed),
    **rule_for("_jagged_to_padded_dense_forward", _jagged("values")),
    **rule_for("_padded_dense_to_jagged_forward", _jagged("dense")),
    **rule_for("_convert_indices_from_coo_to_csr", _rows_of_coo),
    **rule_for("_convert_indices_from_csr_to_coo", _rows_of_csr),
    **rule_for("searchsorted", _sorter),
    **rule_for("_fft_c2c _fft_c2r _fft_r2c", _dims),
    **rule_for("_sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe sparse_coo_tensor", _sparse),
}


class Expected(NamedTuple):
    """What a dimension or a number of elements of an argument must be."""

    what: str
    found: Any  # a size or a shape
    wanted: Any


_ShapeRule = Callable[[Named], Iterator[Expected]]


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


def _pooled(dims: int) -> _ShapeRule:
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


SHAPE_RULES: Final[dict[str, _ShapeRule]] = {
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
