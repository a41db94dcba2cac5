"""Compiled autograd: backward passes that torch turns into one function, traces and compiles.

Theory of operation
    While a compiler of passes is set (``torch._dynamo.config.compiled_autograd``), the engine hands it the graph, with
    each hook on a node as a call of that function: the compiler would trace into the recorder. Who sets it asks
    ``set_autograd_compiler``. While that name is ours, whoever has hooks on nodes is called, and takes them off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from .patches import Patch

_MODULE: Final = "torch._dynamo.compiled_autograd"
_SETTER: Final = "set_autograd_compiler"
_settings: Final[Any] = getattr(torch._C._dynamo, "compiled_autograd", None)


class PassCompiler:
    """Knows whether backward passes are compiled, while installed."""

    def __init__(self, changed: Callable[[bool], None]) -> None:
        """Begin; `changed` is called each time it may have changed."""
        self._changed = changed
        self._patch: Patch | None = None

    def install(self) -> None:
        """Begin to watch."""
        original = getattr(_settings, _SETTER, None)
        if original is None or self._patch is not None:
            return

        def set_autograd_compiler(compiler: Any, *settings: Any) -> Any:
            before = original(compiler, *settings)
            self._changed(compiler is not None)
            return before

        self._patch = Patch(_settings, _SETTER, set_autograd_compiler)

    def remove(self) -> None:
        """Watch no more."""
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.undo()


def compiles_passes() -> bool:
    """Return True if a compiler of backward passes is set."""
    return bool(getattr(sys.modules.get(_MODULE), "compiled_autograd_enabled", False))
