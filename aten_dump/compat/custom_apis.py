"""Functions of the program's own as calls: msprobe's `register_custom_api`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..capture.mode import DumpMode
from ..capture.naming.call_name import CallName
from ..errors import ConfigError


class CustomApis:
    """Functions that are recorded as calls, by the object that holds them and their name."""

    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Callable[..., Any]]] = {}

    def register(self, module: Any, api: str, prefix: str | None) -> None:
        """Record the calls of a function as ``prefix.api``.

        Raises:
            ConfigError: there is no such function.
        """
        original = getattr(module, api, None)
        if not callable(original):
            raise ConfigError(f"register_custom_api: {module!r} has no function {api!r}")
        if (id(module), api) in self._originals:
            return
        self._originals[id(module), api] = module, original
        setattr(module, api, recorded(original, prefix or str(getattr(module, "__name__", "Custom")), api))

    def restore(self, module: Any, api: str) -> None:
        """Put a function back; one that was not registered stays as it is."""
        if (id(module), api) in self._originals:
            setattr(module, api, self._originals.pop((id(module), api))[1])


def recorded(original: Callable[..., Any], prefix: str, api: str) -> Callable[..., Any]:
    """Return a function that does the same, and is recorded as a call where there is a DumpMode."""
    name = CallName(f"{prefix}.{api}", prefix, api)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        mode = DumpMode.current()
        return original(*args, **kwargs) if mode is None else mode.run_as_call(original, name, args, kwargs)

    return run
