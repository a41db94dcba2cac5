"""Ops that hand on elements of what they are given, or leave them out, and compute no others."""

from typing import Final

from ...store.op_names import read_op_name

_MOVES: Final = frozenset(
    (
        *(
            "where",
            "masked_fill",
            "masked_select",
            "masked_scatter",
            "index",
            "index_select",
            "index_put",
            "index_copy",
        ),
        *("gather", "take", "embedding", "scatter", "slice_scatter", "select_scatter", "copy", "clone", "_to_copy"),
        *("cat", "stack", "split", "chunk", "flip", "roll", "repeat", "tril", "triu", "constant_pad_nd", "unfold_copy"),
        *("_unsafe_view", "_reshape_copy", "slice_backward", "select_backward", "repeat_interleave"),
    )
)


def moves_elements(op: str) -> bool:
    """Return True if an op, in place or not, only hands on elements of what it is given."""
    return read_op_name(op).name.rstrip("_") in _MOVES
