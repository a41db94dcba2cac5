"""Paths of modules and parameters in the models of the program."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import ConfigError
from ..values.tensor_subclasses import describe_subclass

_Known = tuple[weakref.ref[Any], str, weakref.ref[nn.Module]]  # a module or parameter, its path, and the model it is of


class ModulePaths:
    """Paths (fqn) of modules and parameters. Holds no module alive.

    Args:
        model: the model, or several under names of their own, or under their numbers; None learns models as they are
            called. The first gets plain paths; a model learnt later has its class's name in front, as its paths could
            meet the first one's. Of a model that is gone, such as a ``ModuleDict`` that was made for this, the parts
            that live on keep their paths.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None = None) -> None:
        self._modules: dict[int, _Known] = {}
        self._parameters: dict[int, _Known] = {}
        self._sharded: list[_Known] = []
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []
        if isinstance(model, nn.Module):
            self._add_root(model, "")
        elif model is not None:
            for name, one in _named(model):
                self._add_root(one, name)

    def path(self, module: nn.Module) -> str:
        """Return the fqn of a module; "" for the model itself."""
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        has_others = bool(self._roots) or any(map(_is_left, self._modules.values()))
        self._add_root(module, type(module).__name__ if has_others else "")
        return self._modules[id(module)][1]

    def parameter(self, number: int) -> tuple[str, torch.Tensor] | None:
        """Return name and tensor of the parameter whose id is `number`."""
        known = self._parameters.get(number)
        tensor = known[0]() if known is not None else None
        return None if known is None or tensor is None else (known[1], tensor)

    def sharded(self) -> list[tuple[str, torch.Tensor]]:
        """Return name and tensor of the parameters that are shards (FSDP2): no autograd node accumulates into them."""
        return [(known[1], tensor) for known in self._sharded if (tensor := known[0]()) is not None]

    def refresh(self) -> None:
        """Read the models anew: modules and parameters may have been added or replaced."""
        roots, self._roots = self._roots, []
        self._modules, self._parameters = _left_of(self._modules), _left_of(self._parameters)
        self._sharded = [known for known in self._sharded if _is_left(known)]
        for reference, name in roots:
            module = reference()
            if module is not None:
                self._add_root(module, name)

    def _add_root(self, root: nn.Module, name: str) -> None:
        reference = weakref.ref(root)
        self._roots.append((reference, name))
        for path, module in root.named_modules(prefix=name):
            if not _is_known(self._modules, module):
                self._modules[id(module)] = (weakref.ref(module), path, reference)
        for path, parameter in root.named_parameters(prefix=name):
            if not _is_known(self._parameters, parameter):
                self._parameters[id(parameter)] = (weakref.ref(parameter), path, reference)
                if describe_subclass(type(parameter)) is not None:
                    self._sharded.append(self._parameters[id(parameter)])


def _named(models: object) -> list[tuple[str, nn.Module]]:
    """Return several models, each with its name.

    Raises:
        ConfigError: they are something else.
    """
    if isinstance(models, Mapping):
        named = list(models.items())
    elif isinstance(models, Iterable) and not isinstance(models, (str, torch.Tensor)):
        named = [(str(at), one) for at, one in enumerate(models)]
    else:
        named = [(None, models)]
    for name, one in named:
        if not isinstance(name, str) or not isinstance(one, nn.Module):
            found = (
                f"the name {name!r} of" if isinstance(one, nn.Module) else f"the {type(one).__name__} {one!r:.100} as"
            )
            raise ConfigError(
                f"DumpMode got {found} a model; allowed: an nn.Module, a list of them, or a mapping of texts to them"
            )
    return named


def _left_of(known: Mapping[int, _Known]) -> dict[int, _Known]:
    """Return what lives of models that are gone."""
    return {number: entry for number, entry in known.items() if _is_left(entry)}


def _is_left(entry: _Known) -> bool:
    return entry[2]() is None and entry[0]() is not None


def _is_known(known: Mapping[int, _Known], item: object) -> bool:
    """Tell whether an entry is of this object, not of one that is gone and whose id it has."""
    entry = known.get(id(item))
    return entry is not None and entry[0]() is item
