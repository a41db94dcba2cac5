"""Module paths, and module calls as they are: `nn.Module.__call__` is wrapped while a step is recorded.

Hooks on the modules would travel into ``copy.deepcopy(model)`` and break ``torch.save(model)`` inside the block, and
hooks for all modules see neither keyword arguments nor what later hooks replace. One wrapper around
``nn.Module.__call__``, process-wide and only while a step is recorded, sees what the caller gave and what it got.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Models = "nn.Module | Mapping[str, nn.Module] | None"


class ModulePaths:
    """Paths (fqn) of modules and parameters. Holds no module alive.

    Args:
        model: the model, or several under names of their own; None learns models as they are called. The first
            gets plain paths; a model learnt later has its class's name in front, as its paths could meet the first
            one's.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module] | None = None) -> None:
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []
        if isinstance(model, nn.Module):
            self._add_root(model, "")
        elif model is not None:
            for name, one in model.items():
                self._add_root(one, name)

    def path(self, module: nn.Module) -> str:
        """Return the fqn of a module; "" for the model itself."""
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._add_root(module, type(module).__name__ if self._roots else "")
        return self._modules[id(module)][1]

    def parameter(self, number: int) -> tuple[str, torch.Tensor] | None:
        """Return name and tensor of the parameter whose id is `number`."""
        known = self._parameters.get(number)
        tensor = known[0]() if known is not None else None
        return None if known is None or tensor is None else (known[1], tensor)

    def refresh(self) -> None:
        """Read the models anew: modules and parameters may have been added or replaced."""
        roots, self._roots = self._roots, []
        self._modules.clear()
        self._parameters.clear()
        for reference, name in roots:
            module = reference()
            if module is not None:
                self._add_root(module, name)

    def _add_root(self, root: nn.Module, name: str) -> None:
        self._roots.append((weakref.ref(root), name))
        for path, module in root.named_modules(prefix=name):
            self._modules.setdefault(id(module), (weakref.ref(module), path))
        for path, parameter in root.named_parameters(prefix=name):
            self._parameters.setdefault(id(parameter), (weakref.ref(parameter), path))


ModuleCall = Callable[[Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


class ModuleCalls:
    """Wraps `nn.Module.__call__` while installed; `watch` is handed every call."""

    def __init__(self, watch: ModuleCall) -> None:
        self._watch = watch
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def install(self) -> None:
        original = self._original = nn.Module.__call__
        watch = self._watch

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return watch(original, self, args, kwargs, sys._getframe(1))

        self._wrapper = __call__
        nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def remove(self) -> None:
        """Put back what was there; if somebody wrapped our wrapper since, it stays below theirs and only passes
        through.
        """
        if self._original is not None and nn.Module.__call__ is self._wrapper:
            nn.Module.__call__ = self._original  # type: ignore[method-assign]
        self._original = self._wrapper = None
