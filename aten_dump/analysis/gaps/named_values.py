"""Find the values that a user names: saved by the program, or a slot of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from ...dump import RankDump, Value
from ...errors import ConfigError, MissingDataError

_MOST_NAMES: Final = 8


def parse_at(at: str | tuple[str, str]) -> tuple[str, str]:
    """Return the names of the target and of the baseline in ``NAME=NAME``; one name is that of both.

    Raises:
        ConfigError: a name is empty.
    """
    names = at.split("=", 1) if isinstance(at, str) else list(at)
    if len(names) not in (1, 2) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f"at is {at!r}; allowed: NAME=NAME, of the target and of the baseline, or one name of both")
    return names[0].strip(), names[-1].strip()


def named_values(rank: RankDump, name: str) -> list[Value]:
    """Return the value of a name; several, in order, if the program saved it more than once.

    Args:
        rank: a recorded step and rank.
        name: as `DumpMode.save` was given it; the same in a scope alone (``request-7/logp``); a slot
            (``Aten.addmm.3.forward.output.0``); or a call with one result.

    Raises:
        MissingDataError: there is none.
    """
    saved = rank.saved
    scope, slash, bare = name.rpartition("/")
    within = {call.id for call in rank.calls.in_scope(scope)} if slash and scope in rank.scopes else None
    wanted = name if within is None else bare
    found = [one for one in saved.values() if one.call.api == f"Saved.{wanted}"]
    found = [one for one in found if within is None or one.call.id in within]
    if not found and name in saved:  # one of several
        found = [saved[name]]
    if found:
        return [one.value for one in found]
    if name in rank:
        results = [value for _, value in rank[name].output_values()]
        if len(results) == 1:
            return results
    try:
        return [rank.value(name)]
    except MissingDataError as error:
        known = (
            f"saved are {', '.join(list(saved)[:_MOST_NAMES])}" if saved else "DumpMode.save(name, tensor) saves one"
        )
        raise MissingDataError(f"{error}; {known}") from None


def joined(tensors: Sequence[torch.Tensor], shape: torch.Size | None) -> torch.Tensor:
    """Return tensors as one; with a shape, along the dimension that gives it: positions of a whole sequence."""
    if len(tensors) == 1:
        return tensors[0] if shape is None or shape.numel() != tensors[0].numel() else tensors[0].reshape(shape)
    like = {tensor.ndim for tensor in tensors} == {tensors[0].ndim}
    for dim in range(tensors[0].ndim) if like and shape is not None else ():
        rest = {tensor.shape[:dim] + tensor.shape[dim + 1 :] for tensor in tensors}
        if len(rest) == 1 and (whole := torch.cat(list(tensors), dim)).shape == shape:
            return whole
    if shape is not None and len({tensor.shape for tensor in tensors}) == 1:
        whole = torch.stack(list(tensors), -1)
        if whole.shape.numel() == shape.numel():
            return whole.reshape(shape)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
