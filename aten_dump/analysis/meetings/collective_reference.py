"""What each rank must get of a collective, from what all ranks sent.

Theory of operation
    What the ranks of a group give is taken rank by rank, so that of a thousand ranks one is in memory at a time: what
    is reduced is added up as it comes, and what is passed on is kept. What the i-th rank gets of it is a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...dump import Call, ReprRef
from ...store.op_names import read_op_name
from .meeting_points import group_of, is_message, leaves, root_of

Sent = Sequence[Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one rank asks a collective for."""

    mine: int  # its place in the group
    root: int | None
    reduction: str  # "sum", "" where nothing is reduced
    splits: tuple[tuple[int, ...], ...]  # input splits of each rank's, of an all-to-all


def asked_by(call: Call, mine: int, ranks: Sequence[int], splits: Sequence[tuple[int, ...]]) -> Asked:
    """Return what a rank asks a collective for; `mine` is its place among the ranks of the group."""
    group = group_of(call)
    root = None if group is None or is_message(call.op) else root_of(call, group)
    place = 0 if is_message(call.op) else None if root is None else ranks.index(root)
    return Asked(mine, place, reduction_of(call), tuple(splits))


class Gathering:
    """What the ranks of a group give to one collective.

    Attributes:
        is_reduced: True if its terms are added up as they are taken, each in its dtype.
    """

    def __init__(self, name: str, reduction: str) -> None:
        """Begin with nothing.

        Args:
            name: of the op without namespace and overload, as in ``allreduce_``.
            reduction: as in ``Asked.reduction``.
        """
        plain = _plain(name)
        self.is_reduced = plain in _REDUCED and reduction in _REDUCTIONS
        self._part = _REDUCED.get(plain) if self.is_reduced else None
        self._rule = _PASSED_ON.get(plain)
        self._reduction = reduction
        self._are_as_many = plain not in _ROOT_ALONE
        self._sent: dict[int, list[Tensor]] = {}  # by place in the group; of what is reduced, the totals at 0
        self._taken = 0
        self._is_uneven = False

    def take(self, place: int, given: list[Tensor]) -> None:
        """Take what one rank of the group gave."""
        self._taken += 1
        known = next(iter(self._sent.values()), given)
        self._is_uneven |= self._are_as_many and len(known) != len(given)
        if not self.is_reduced:
            self._sent[place] = given
        elif not self._is_uneven:
            fold = _REDUCTIONS[self._reduction]
            self._sent[0] = [fold(one, two) for one, two in zip(known, given, strict=True)] if self._sent else given

    def got(self, asked: Asked) -> list[Tensor] | None:
        """Return what a rank must get, in the order of its results; None where nothing is known of the collective."""
        if self._is_uneven or not self._sent:
            return None
        if self._part is not None:
            totals = self._sent[0]
            if self._reduction == "avg":
                totals = [total / self._taken for total in totals]
            return self._part(totals, asked, self._taken)
        return None if self._rule is None else self._rule([self._sent[place] for place in sorted(self._sent)], asked)


def got(name: str, sent: Sent, asked: Asked) -> list[Tensor] | None:
    """Return what a rank must get, in the order of its results; None where nothing is known of such a collective.

    Args:
        name: of the op without namespace and overload, as in ``allreduce_``.
        sent: what each rank of the group gave.
        asked: by the rank in question.
    """
    gathering = Gathering(name, asked.reduction)
    for place, given in enumerate(sent):
        gathering.take(place, list(given))
    return gathering.got(asked)


def brings_all_the_same(name: str) -> bool:
    """Return True if a collective of some name brings the same to all ranks."""
    return _plain(name).startswith(("allreduce", "allgather", "broadcast"))


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


def _plain(name: str) -> str:
    return name.rstrip("_").removesuffix("_out").replace("_", "")


def _all(totals: list[Tensor], asked: Asked, ranks: int) -> list[Tensor] | None:
    return totals


def _all_at_root(totals: list[Tensor], asked: Asked, ranks: int) -> list[Tensor] | None:
    return totals if asked.mine == asked.root else None  # what others hold then, nobody says


def _one_of_list(totals: list[Tensor], asked: Asked, ranks: int) -> list[Tensor] | None:
    return [totals[asked.mine]]


def _chunks(totals: list[Tensor], asked: Asked, ranks: int) -> list[Tensor] | None:
    return [total.reshape(-1).chunk(ranks)[asked.mine] for total in totals]


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


def _exchanged(sent: Sent, asked: Asked) -> list[Tensor] | None:
    return [given[asked.mine] for given in sent]


def _exchanged_parts(sent: Sent, asked: Asked) -> list[Tensor] | None:
    parts = []
    for given, splits in zip(sent, asked.splits, strict=True):
        sizes = splits or (given[0].shape[0] // len(sent),) * len(sent)
        parts.append(given[0].split(list(sizes))[asked.mine].reshape(-1))
    return [torch.cat(parts)]


_REDUCED: Final[dict[str, Callable[[list[Tensor], Asked, int], list[Tensor] | None]]] = {
    "allreduce": _all,
    "allreducecoalesced": _all,
    "reduce": _all_at_root,
    "reducescatter": _one_of_list,
    "reducescatterbase": _chunks,
    "reducescattertensor": _chunks,
    "reducescattertensorcoalesced": _chunks,
}
_PASSED_ON: Final[dict[str, Callable[[Sent, Asked], list[Tensor] | None]]] = {
    "broadcast": _from_root,
    "recv": _from_root,
    "allgather": _gathered,
    "allgathercoalesced": _gathered,
    "gather": _gathered_at_root,
    "allgatherbase": _joined,
    "allgatherintotensor": _joined,
    "allgatherintotensorcoalesced": _joined,
    "scatter": _scattered,
    "alltoall": _exchanged,
    "alltoallbase": _exchanged_parts,
    "alltoallsingle": _exchanged_parts,
}
_ROOT_ALONE: Final = frozenset({"scatter", "broadcast", "recv"})  # other ranks give no tensors
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
