"""What each rank must get of a collective, from what all ranks sent.

Theory of operation
    `sent[j]` has the tensors that the j-th rank of the group gave, in order. What the i-th gets is computed twice: in
    float64, and as plainly as can be in the dtype of the tensors, which says how far an honest sum may be off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...dump import Call, ReprRef
from ...store.op_names import read_op_name
from .process_groups import leaves

Sent = Sequence[Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one rank asks a collective for."""

    mine: int  # its place in the group
    root: int | None
    reduction: str  # "sum", "" where nothing is reduced
    splits: tuple[tuple[int, ...], ...]  # input splits of each rank's, of an all-to-all


def got(name: str, sent: Sent, asked: Asked) -> list[Tensor] | None:
    """Return what a rank must get, in the order of its results; None where nothing is known of such a collective.

    Args:
        name: of the op without namespace and overload, as in ``allreduce_``.
        sent: what each rank of the group gave.
        asked: by the rank in question.
    """
    plain = name.rstrip("_").removesuffix("_out").replace("_", "")
    rule = _RULES.get(plain)
    if rule is None or any(len(given) != len(sent[0]) for given in sent if plain in _SAME_NUMBER):
        return None
    return rule(sent, asked)


def reduction_of(call: Call) -> str:
    """Return how a collective reduces: ``"sum"``; ``""`` where it does not."""
    for item in leaves(call.inputs):
        text = item.text if isinstance(item, ReprRef) else item
        if isinstance(text, str) and text.removeprefix("ReduceOp.").lower() in _REDUCTIONS:
            return text.removeprefix("ReduceOp.").lower()
    return ""


def input_splits_of(call: Call) -> tuple[int, ...]:
    """Return the sizes into which a rank divides what it gives to an all-to-all; empty for equal ones."""
    names, args = call.arguments, call.inputs[0]
    if "input_split_sizes" not in names or names.index("input_split_sizes") >= len(args):
        return ()
    return tuple(args[names.index("input_split_sizes")])


def name_of(call: Call) -> str:
    """Return the name of a collective without namespace and overload."""
    return read_op_name(call.op).name


def _reduced(terms: Sequence[Tensor], asked: Asked) -> Tensor:
    fold = _REDUCTIONS[asked.reduction]
    total = terms[0]
    for term in terms[1:]:
        total = fold(total, term)
    return total / len(terms) if asked.reduction == "avg" else total


def _all_reduced(sent: Sent, asked: Asked) -> list[Tensor] | None:
    if not asked.reduction:
        return None
    return [_reduced(terms, asked) for terms in zip(*sent, strict=True)]


def _reduced_at_root(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return _all_reduced(sent, asked) if asked.mine == asked.root else None  # what others hold then, nobody says


def _from_root(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return None if asked.root is None else list(sent[asked.root])


def _gathered(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return [tensor for given in sent for tensor in given]


def _gathered_at_root(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return _gathered(sent, asked) if asked.mine == asked.root else None


def _joined(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return [torch.cat([tensor.reshape(-1) for tensor in parts]) for parts in zip(*sent, strict=True)]


def _scattered(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return None if asked.root is None else [sent[asked.root][asked.mine]]


def _reduced_list(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return [_reduced([given[asked.mine] for given in sent], asked)] if asked.reduction else None


def _reduced_parts(sent: Sent, asked: Asked) -> list[Tensor] | None:
    if not asked.reduction:
        return None
    return [_reduced(terms, asked).reshape(-1).chunk(len(sent))[asked.mine] for terms in zip(*sent, strict=True)]


def _exchanged(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return [given[asked.mine] for given in sent]


def _exchanged_parts(sent: Sent, asked: Asked) -> list[Tensor] | None:
    parts = []
    for given, splits in zip(sent, asked.splits, strict=True):
        sizes = splits or (given[0].shape[0] // len(sent),) * len(sent)
        parts.append(given[0].split(list(sizes))[asked.mine].reshape(-1))
    return [torch.cat(parts)]


_RULES: Final[dict[str, Callable[[Sent, Asked], list[Tensor] | None]]] = {
    "allreduce": _all_reduced,
    "allreducecoalesced": _all_reduced,
    "reduce": _reduced_at_root,
    "broadcast": _from_root,
    "recv": _from_root,
    "allgather": _gathered,
    "allgathercoalesced": _gathered,
    "gather": _gathered_at_root,
    "allgatherbase": _joined,
    "allgatherintotensor": _joined,
    "allgatherintotensorcoalesced": _joined,
    "scatter": _scattered,
    "reducescatter": _reduced_list,
    "reducescatterbase": _reduced_parts,
    "reducescattertensor": _reduced_parts,
    "reducescattertensorcoalesced": _reduced_parts,
    "alltoall": _exchanged,
    "alltoallbase": _exchanged_parts,
    "alltoallsingle": _exchanged_parts,
}
_SAME_NUMBER: Final = frozenset(_RULES) - {"scatter", "broadcast", "recv"}  # of tensors from each rank
_REDUCTIONS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
