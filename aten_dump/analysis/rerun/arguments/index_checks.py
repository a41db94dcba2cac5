"""Indices, lengths and offsets that an op is given must lie within what they point into.

Theory of operation
    Some kernels on the CPU, and all on devices, follow an index without a look at it: one out of range ends the process
    or reads foreign memory, and a dump may hold any. So before an op runs, its indices are held against the sizes of
    its other arguments. Which these are no schema tells: there is a rule for each op that takes indices, by its name.
    The ops whose kernels do not look were found by giving those of op_db wrong indices in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from ....errors import ReplayError
from .named_rules import Named, rule_for, rule_of


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
