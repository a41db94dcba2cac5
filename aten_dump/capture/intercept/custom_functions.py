"""Custom autograd functions as calls: `torch.autograd.Function.apply` is wrapped while a step is recorded.

Theory of operation
    ``apply`` is no torch function: no mode sees it, only the ops in its ``forward``. It is looked up on the class at
    each call, so one wrapper around ``torch.autograd.Function.apply``, there only while a step is recorded, sees all
    of them but those whose bound method the program took earlier (``f = MyFunction.apply`` at import): the node of
    such a one belongs to the first op of its ``forward``.

    A module's full backward hooks are built on a Function of torch's own, which computes nothing: it is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.modules._functions import BackwardHookFunction

from ..naming.call_name import CallName

FunctionCall = Callable[[Callable[..., Any], CallName, tuple[Any, ...], dict[str, Any], Any], Any]

_LEFT_OUT: Final = (BackwardHookFunction,)
_names: dict[type, CallName] = {}


def name_of_function(kind: type) -> CallName:
    """Return the name of a subclass of torch.autograd.Function."""
    name = _names.get(kind)
    if name is None:
        name = _names[kind] = CallName(f"{kind.__module__}.{kind.__qualname__}", "Torch", kind.__name__)
    return name


class FunctionCalls:
    """Wraps `torch.autograd.Function.apply` while installed; `watch` is handed every call."""

    def __init__(self, watch: FunctionCall) -> None:
        self._watch = watch
        self._original: Any = None
        self._wrapper: Any = None

    def install(self) -> None:
        original = self._original = vars(torch.autograd.Function)["apply"]
        watch = self._watch

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(None, cls)
            if issubclass(cls, _LEFT_OUT):
                return bound(*args, **kwargs)
            return watch(bound, name_of_function(cls), args, kwargs, sys._getframe(1))

        self._wrapper = classmethod(apply)
        torch.autograd.Function.apply = self._wrapper  # type: ignore[method-assign]

    def remove(self) -> None:
        """Put back what was there; if somebody wrapped our wrapper since, it stays below theirs and only passes
        through.
        """
        if self._original is not None and vars(torch.autograd.Function)["apply"] is self._wrapper:
            torch.autograd.Function.apply = self._original  # type: ignore[method-assign]
        self._original = self._wrapper = None
