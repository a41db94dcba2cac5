"""Paths of modules and parameters in the models of the program."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ...errors import ConfigError
from ..values.tensor_subclasses import describe_subclass

_Known = tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module]]  # a module, its path, and the model it is of


class _Parameter(NamedTuple):
    reference: weakref.ref[torch.Tensor]
    path: str
    is_subclass: bool  # with a dispatch of its own


class ModulePaths:
    """Paths (fqn) of modules and parameters. Holds no module alive, and refers to no parameter but while a step is
    recorded: `torch.utils.swap_tensors`, by which ``Module.to`` converts DTensors, refuses those that are referred to.

    Args:
        model: the model, or several under names of their own, or under their numbers; None learns models as they are
            called. The first gets plain paths; a model learnt later has its class's name in front, as its paths could
            meet the first one's. Of a model that is gone, such as a ``ModuleDict`` that was made for this, the parts
            that live on keep their paths.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None = None) -> None:
        self._modules: dict[int, _Known] = {}
        self._parameters: dict[int, _Parameter] | None = None  # while a step is recorded
        self._strangers: set[int] = set()  # ids that were looked for in vain since the last `refresh`
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
        known = (self._parameters or {}).get(number)
        tensor = None if known is None else known.reference()
        return None if known is None or tensor is None else (known.path, tensor)

    def look_for(self, numbers: Iterable[int]) -> None:
        """Learn parameters that models were given since `refresh`, as ``load_state_dict(assign=True)`` does.

        Args:
            numbers: ids of leaves: of those that were never looked for, some may be such parameters.
        """
        strangers = {number for number in numbers if self.parameter(number) is None} - self._strangers
        if strangers:
            for reference, name in self._roots:
                root = reference()
                if root is not None:
                    self._learn(root.named_parameters(prefix=name))
            self._strangers.update(strangers)

    def sharded(self) -> list[tuple[str, torch.Tensor]]:
        """Return name and tensor of the parameters that are shards (FSDP2): no autograd node accumulates into them."""
        shards = [known for known in (self._parameters or {}).values() if known.is_subclass]
        return [(known.path, tensor) for known in shards if (tensor := known.reference()) is not None]

    def models(self) -> list[nn.Module]:
        """Return the models that are known and alive."""
        return [model for reference, _ in self._roots if (model := reference()) is not None]

    def trainable(self) -> list[str]:
        """Return the names of the parameters that require grad."""
        known = (self._parameters or {}).values()
        return [one.path for one in known if (tensor := one.reference()) is not None and tensor.requires_grad]

    def refresh(self) -> None:
        """Read the models anew: modules and parameters may have been added or replaced."""
        roots, self._roots = self._roots, []
        self._modules = {number: entry for number, entry in self._modules.items() if _is_left(entry)}
        self._parameters = {}
        self._strangers.clear()
        for left, path, _ in self._modules.values():
            module = left()
            if module is not None:
                self._learn(module.named_parameters(prefix=path, recurse=False))
        for reference, name in roots:
            module = reference()
            if module is not None:
                self._add_root(module, name)

    def let_go(self) -> None:
        """Refer to no parameter until `refresh`."""
        self._parameters = None

    @contextlib.contextmanager
    def unreferred(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Refer to none of these inside this block, after which each has the path that it had."""
        paths = [self._forget(tensor) for tensor in tensors]
        try:
            yield
        finally:
            self._learn((path, tensor) for path, tensor in zip(paths, tensors, strict=True) if path is not None)

    def _forget(self, parameter: torch.Tensor) -> str | None:
        """Refer to a parameter no more; return its path."""
        known = None if self._parameters is None else self._parameters.pop(id(parameter), None)
        return None if known is None or known.reference() is not parameter else known.path

    def _add_root(self, root: nn.Module, name: str) -> None:
        reference = weakref.ref(root)
        self._roots.append((reference, name))
        for path, module in root.named_modules(prefix=name):
            known = self._modules.get(id(module))
            if known is None or known[0]() is not module:
                self._modules[id(module)] = (weakref.ref(module), path, reference)
        self._learn(root.named_parameters(prefix=name))

    def _learn(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._parameters is None:
            return
        for path, parameter in parameters:
            known = self._parameters.get(id(parameter))
            if known is None or known.reference() is not parameter:
                kind = type(parameter)
                is_subclass = kind is not nn.Parameter and describe_subclass(kind) is not None
                self._parameters[id(parameter)] = _Parameter(weakref.ref(parameter), path, is_subclass)


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


def _is_left(entry: _Known) -> bool:
    return entry[2]() is None and entry[0]() is not None
