"""The tensors that an autograd node saved for its backward, read without unpacking them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from .packed_tensors import PackedTensor

_TENSOR: Final = torch.Tensor
_PACKED: Final = PackedTensor
# An older torch shows only that a node saved something, which may be under hooks.
SHOWS_SAVED: Final = hasattr(getattr(torch._C._autograd, "SavedTensor", None), "unpack_hook")
_saved_attributes: Final[dict[type, tuple[str, ...]]] = {}  # of torch's own nodes, which are there for good
_SAVED_BY_FUNCTION: Final = ("_raw_saved_tensors",)


def saved_tensors_of(node: Any) -> tuple[list[torch.Tensor], list[PackedTensor], bool]:
    """Return the tensors that a node saved for its backward, those under our hooks, and whether others are under hooks.

    Those are left alone. Reads ``SavedTensor.data``, which neither unpacks nor checks versions. Of a torch without it
    no tensors are returned, and all that is saved counts as being under hooks.
    """
    kind = type(node)
    names = _saved_attributes.get(kind)
    if names is None:
        if issubclass(kind, BackwardCFunction):  # of the program's, made with the autograd function that it is of
            names = _SAVED_BY_FUNCTION
        else:
            names = _saved_attributes[kind] = tuple(n for n in dir(node) if n.startswith("_raw_saved_"))
    if not SHOWS_SAVED:
        return [], [], bool(names)
    tensors: list[torch.Tensor] = []
    packed: list[PackedTensor] = []
    is_hooked = False
    for name in names:
        try:
            saved = getattr(node, name)
        except RuntimeError:  # a pass has freed it; of torch's own nodes there is nothing to read then
            continue
        several: tuple[Any, ...] = tuple(saved) if isinstance(saved, (tuple, list)) else (saved,)
        for one in several:
            hook, data = getattr(one, "unpack_hook", None), getattr(one, "data", None)
            if hook is None and type(data) is _TENSOR:
                tensors.append(data)
            elif isinstance(data, _PACKED):
                packed.append(data)
            elif hook is not None:
                is_hooked = True
            elif isinstance(data, _TENSOR):
                tensors.append(data)
    return tensors, packed, is_hooked
