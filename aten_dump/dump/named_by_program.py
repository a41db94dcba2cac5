"""What the program itself added to the dump: saved tensors and marks; and one module's calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

import torch

from ..errors import MissingDataError
from .call_filter import SCOPE_OP
from .handle_sequences import Calls
from .handles import Call, Recording, Value

Item = TypeVar("Item")
_MOST_NAMES: Final = 5


class NoSuchName(MissingDataError, KeyError):
    """What `ByName` raises, so that both ``except MissingDataError`` and a dict's ``except KeyError`` see it."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its message


class ByName(dict[str, Item]):
    """Things by name; asking for a missing one lists those that exist."""

    def __init__(self, items: Mapping[str, Item], what: str, if_empty: str) -> None:
        """Take the things; `what` they are and where, and `if_empty` why there may be none, are for the message."""
        super().__init__(items)
        self._what, self._if_empty = what, if_empty

    def __missing__(self, name: object) -> NoReturn:
        near = get_close_matches(name, self, n=_MOST_NAMES) if isinstance(name, str) else []
        names = near or list(self)[:_MOST_NAMES]
        there = (
            f"{'nearest' if near else 'there are'}: {', '.join(names)}" if names else f"there is none: {self._if_empty}"
        )
        raise NoSuchName(f"no {self._what} is named {name!r}; {there}")


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that ``DumpMode.save`` recorded; `gradients` has one for each backward through it."""

    name: str
    call: Call
    value: Value
    gradients: tuple[Value, ...]

    @property
    def gradient(self) -> Value | None:
        """The gradient of the first backward through it; None without one."""
        return self.gradients[0] if self.gradients else None

    def tensor(self) -> torch.Tensor:
        """Read the recorded bytes; see `Value.tensor`."""
        return self.value.tensor()


@dataclass(frozen=True, slots=True)
class Mark:
    """A text that ``DumpMode.mark`` recorded; `call` says where and when."""

    text: str
    call: Call


@dataclass(frozen=True, slots=True)
class RecordedModule:
    """What a module did in a step: its forward calls, in execution order."""

    path: str
    calls: Calls

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of its first call."""
        return self.calls[0].inputs

    @property
    def outputs(self) -> Any:
        """What its first call returned, as a tree of Value and plain literals."""
        return self.calls[0].outputs

    @property
    def gradients(self) -> tuple[Any, ...]:
        """The gradients of those outputs in its first backward; empty without one."""
        backward = [call for call in self.calls[0].backward if call.kind == "module"]
        return backward[0].inputs[0] if backward else ()


def gradients(rank: Recording) -> ByName[Value]:
    """Return the gradients of parameters by the parameters' paths."""
    found = {record.name: rank.value_by_id(record.value) for record in rank.tables.gradients}
    why = "they are taken from the modules in DumpMode(..., model=model), where backward was recorded"
    return ByName(found, f"gradient in {rank.where}", why)


def saved_tensors(rank: Recording, calls: Calls) -> ByName[SavedTensor]:
    """Return the saved tensors by name; of several under one name, the later ones as ``name.1``, ``name.2``, ..."""
    found = {saved.name: saved for saved in _saved(calls)}
    return ByName(found, f"saved tensor in {rank.where}", "DumpMode.save(name, tensor) makes them")


def _saved(calls: Calls) -> Iterator[SavedTensor]:
    for call in calls.filter(op="aten_dump.save", kind="api"):
        values = call.input_values()
        # Of a saved tensor; what a hook saves in a backward pass belongs to the call of another op.
        is_gradient = call.forward is not None and call.forward.op == call.op
        if values and not is_gradient:
            name = call.api.removeprefix("Saved.")
            gradients = tuple(value for backward in call.backward for _, value in backward.input_values())
            yield SavedTensor(f"{name}.{call.n}" if call.n else name, call, values[0][1], gradients)


def marks(calls: Calls) -> list[Mark]:
    """Return the marks in execution order."""
    return [Mark(call.api.removeprefix("Mark."), call) for call in calls.filter(op="aten_dump.mark", kind="api")]


def scopes(calls: Calls) -> dict[str, list[Call]]:
    """Return the calls that stand for scopes, by the names of these; one for each time that a scope was entered."""
    found: dict[str, list[Call]] = {}
    for call in calls.filter(op=SCOPE_OP, kind="api"):
        if call.phase != "backward":
            found.setdefault(call.api.removeprefix("Scope."), []).append(call)
    return found


def recorded_module(rank: Recording, calls: Calls, path: str) -> RecordedModule:
    """Return what the module of a path did.

    Raises:
        MissingDataError: none of its calls was recorded.
    """
    forward = calls.filter(kind="module", phase="forward")
    positions = [rank.tables.positions[call.id] for call in forward if call.module == path]
    if not positions:
        raise MissingDataError(f"no call of a module {path!r} in {rank.where}; {_paths_text(forward)}")
    return RecordedModule(path, Calls(rank, positions))


def _paths_text(forward: Calls) -> str:
    paths = list(dict.fromkeys(call.module for call in forward))
    if not paths:
        return 'it has calls of modules with level "mix" or "module" only'
    return f"it has {', '.join(map(repr, paths[:10]))}" + (f" and {len(paths) - 10} more" if paths[10:] else "")
