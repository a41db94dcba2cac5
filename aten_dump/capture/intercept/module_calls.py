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
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _global_forward_pre_hooks

from ..values.tensor_subclasses import describe_subclass


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
        self._sharded: list[tuple[weakref.ref[torch.Tensor], str]] = []
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

    def sharded(self) -> list[tuple[str, torch.Tensor]]:
        """Return name and tensor of the parameters that are shards (FSDP2): no autograd node accumulates into them."""
        return [(name, tensor) for reference, name in self._sharded if (tensor := reference()) is not None]

    def refresh(self) -> None:
        """Read the models anew: modules and parameters may have been added or replaced."""
        roots, self._roots = self._roots, []
        self._modules.clear()
        self._parameters.clear()
        self._sharded.clear()
        for reference, name in roots:
            module = reference()
            if module is not None:
                self._add_root(module, name)

    def _add_root(self, root: nn.Module, name: str) -> None:
        self._roots.append((weakref.ref(root), name))
        for path, module in root.named_modules(prefix=name):
            self._modules.setdefault(id(module), (weakref.ref(module), path))
        for path, parameter in root.named_parameters(prefix=name):
            if id(parameter) not in self._parameters:
                self._parameters[id(parameter)] = (weakref.ref(parameter), path)
                if describe_subclass(type(parameter)) is not None:
                    self._sharded.append(self._parameters[id(parameter)])


class PreHooks:
    """Lets the recorder see what a module's forward pre-hooks made of its arguments.

    torch copies the list of a module's pre-hooks when a call begins. While `watch` stands as the last of them it is
    called after the program's own, with what ``forward`` will get; it takes itself away at once, so that only the
    program's own pre-hooks could see it. Modules without pre-hooks are left alone.
    """

    __slots__ = ("_module", "_watch")

    def __init__(self, module: nn.Module, watch: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        self._module = module
        self._watch = watch

    def __enter__(self) -> None:
        self._module._forward_pre_hooks[id(self)] = self
        self._module._forward_pre_hooks_with_kwargs[id(self)] = True

    def __exit__(self, *error: object) -> None:
        self._module._forward_pre_hooks.pop(id(self), None)
        self._module._forward_pre_hooks_with_kwargs.pop(id(self), None)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self._module and id(self) in module._forward_pre_hooks:
            self.__exit__()
            self._watch(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing  # a pre-hook of the program's copies its module


def _nothing(*args: Any) -> None:
    """Stand where a hook of ours was copied."""


def has_pre_hooks(module: nn.Module) -> bool:
    """Tell whether hooks may replace the arguments of this module's next call."""
    own = vars(module).get("_forward_pre_hooks")
    return own is not None and bool(own or _global_forward_pre_hooks) and module._compiled_call_impl is None


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
            if is_dynamo_compiling():  # True to dynamo, where it traces this: what it compiles is not recorded
                return original(self, *args, **kwargs)
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
