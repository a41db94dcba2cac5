"""Hyperparameters of optimizers: learning rate, weight decay and the like, as their steps begin and as the step ends.

They are written as an optimizer's step begins, where they are not those of its last record, and once more at the end of
the recorded step where something has changed them since, as a scheduler does. Nothing of the optimizer is kept alive.
Which parameters an optimizer holds is written once, as its first step begins; where none of these holds a parameter of
the models, what the other optimizers hold that are alive is written as the step ends.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Final

import torch
from torch.optim import Optimizer

from ...store.records import OPTIMIZER_GROUPS, PARAMETERS, TREE_LIST, TREE_TUPLE, OptimizerGroups, Parameters, Tree
from ..torch_internals.addresses import address_of
from .live_optimizers import LiveOptimizers
from .module_paths import ModulePaths
from .step import Step
from .threads import ThreadState

_OF_MODELS: Final = -1
_OF_OTHERS: Final = -2  # optimizers that have not stepped
_LONGEST_TEXT: Final = 200
_MOST_ITEMS: Final = 16  # of a list, as betas are
_MOST_INTEGER: Final = 1 << 63
_NUMBERS: Final[dict[torch.dtype, Any]] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_Groups = list[tuple[dict[str, Tree], list[int]]]  # settings, and the groups that have them


class OptimizerSettings:
    """What was written of the optimizers of one step."""

    def __init__(self, step: Step, paths: ModulePaths, live: LiveOptimizers) -> None:
        self._step = step
        self._paths = paths
        self._live = live
        self._held: set[str] = set()  # names of what the optimizers hold that have stepped
        self._known: dict[int, tuple[weakref.ref[Optimizer], int, _Groups]] = {}  # by id of the optimizer

    def note(self, optimizer: Optimizer, thread: ThreadState) -> None:
        """Record what an optimizer is set to, as its step begins."""
        try:
            with thread.own:
                self._write(optimizer, ended=False)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self._step.failed(error)

    def close(self) -> None:
        """Record what has changed since, as the recorded step ends."""
        for found, *_ in list(self._known.values()):
            optimizer = found()
            if optimizer is not None:
                self._write(optimizer, ended=True)
        if self._known:
            self._write_others()
        self._known.clear()

    def _write_others(self) -> None:
        """Record what else is held by optimizers that are alive, where those that stepped do not hold everything."""
        left = frozenset(self._paths.trainable()) - self._held
        if left:
            found = self._live.holding(left, self._held_by)
            others = [one for one in found if id(one) not in self._known]
            self._step.emit(Parameters(PARAMETERS, _OF_OTHERS, [name for o in others for name in self._held_by(o)]))

    def _held_by(self, optimizer: Optimizer) -> list[str]:
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        known = (self._paths.parameter(id(parameter)) for parameter in held)
        return ["" if one is None else one[0] for one in known]

    def _write(self, optimizer: Optimizer, *, ended: bool) -> None:
        groups = _groups_of(optimizer)
        known = self._known.get(id(optimizer))
        if known is not None and known[0]() is optimizer and known[2] == groups:
            return
        is_new = known is None or known[0]() is not optimizer
        number = len(self._known) if is_new or known is None else known[1]
        if is_new:
            if not self._known:
                self._step.emit(Parameters(PARAMETERS, _OF_MODELS, self._paths.trainable()))
            held = self._held_by(optimizer)
            self._held.update(held)
            self._step.emit(Parameters(PARAMETERS, number, held))
        self._known[id(optimizer)] = weakref.ref(optimizer), number, groups
        name, at_ns = type(optimizer).__name__, self._step.now_ns()
        for settings, numbers in groups:
            self._step.emit(OptimizerGroups(OPTIMIZER_GROUPS, number, name, numbers, at_ns, ended, settings))


def _groups_of(optimizer: Optimizer) -> _Groups:
    """Return the settings of an optimizer's groups, those of equal groups once."""
    found: dict[str, tuple[dict[str, Tree], list[int]]] = {}
    for number, group in enumerate(optimizer.param_groups):
        settings = {}
        for name, item in group.items():
            if name != "params" and type(name) is str:
                is_said, tree = _literal(item)
                if is_said:
                    settings[name] = tree
        found.setdefault(repr(settings), (settings, []))[1].append(number)
    return list(found.values())


def _number_in(tensor: torch.Tensor) -> tuple[bool, Tree]:
    """Read the number of a tensor with one element where that needs neither an op, which modes see, nor a wait."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.numel() != 1 or tensor.device.type != "cpu":
        return False, None
    try:
        address = address_of(tensor)
    except RuntimeError:  # a stand-in: it has no memory
        return False, None
    return (True, number.from_address(address).value) if address else (False, None)


def _literal(item: Any, *, in_list: bool = False) -> tuple[bool, Tree]:
    """Return True and its tree for a literal, or a number in a tensor that can be read without a wait."""
    kind = type(item)
    if item is None or kind in (bool, float):
        return True, item
    if kind is int:
        return -_MOST_INTEGER <= item < _MOST_INTEGER, item
    if kind is str:
        return len(item) <= _LONGEST_TEXT, item
    if kind is torch.Tensor:
        return _number_in(item)
    if kind in (list, tuple) and not in_list and len(item) <= _MOST_ITEMS:
        items = [_literal(one, in_list=True) for one in item]
        return all(told for told, _ in items), (
            TREE_TUPLE if kind is tuple else TREE_LIST, *(tree for _, tree in items)
        )  # fmt: skip
    return False, None
