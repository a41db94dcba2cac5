"""Imports that a command needs only when it runs: help and mistakes in options are answered without torch.

Theory of operation
    Importing torch takes seconds. While `later` is open, a module of the command line does not import from `LATE`: each
    name is bound to a `_Later`, which knows what it stands for. `import_now` binds the real ones, and runs before the
    function of a command does. Python asks `builtins.__import__` at each import statement; Mercurial starts quickly by
    the same means.

    So no command has to know of it. But its module may use a late name only inside functions and in annotations: what
    an option shows (a default, a choice) comes from `aten_dump.choices`. A test reads the sources for that.

    Where torch is imported already, nothing is put off: there is no time to win.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import resolve_name
from typing import Any, Final

import click

from .ending import ended_by_sigint

LATE: Final = (
    "aten_dump.analysis",
    "aten_dump.cli.worker_processes",
    "aten_dump.dump",
    "aten_dump.export.chosen_calls",
    "aten_dump.export.formats",
    "aten_dump.export.job",
    "aten_dump.report",
    "aten_dump.store.recovery",
    "aten_dump.store.spool",
    "concurrent.futures",
    "multiprocessing",
    "rich",
    "torch",
)
_HOME: Final = __package__ or "aten_dump.cli"


class _Later:
    """Stands for a module, or for a name in one, until `import_now`."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module = module
        self._name = name

    def __getattr__(self, name: str) -> _Later:
        return _Later(self._module, name)

    def real(self) -> Any:
        """Import what this stands for."""
        if not self._name:
            return __import__(self._module)
        return getattr(__import__(self._module, fromlist=[self._name]), self._name)


@contextmanager
def later() -> Iterator[None]:
    """Put off what modules of the command line import from `LATE` inside this block."""
    if "torch" in sys.modules:
        yield
        return
    usual = builtins.__import__

    def put_off(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        package = str((globals or {}).get("__package__"))
        if _is_in(package, (_HOME,)):
            module = resolve_name("." * level + name, package)
            if _is_in(module, LATE):
                return _Later(module)
        return usual(name, globals, locals, fromlist or (), level)

    builtins.__import__ = put_off
    try:
        yield
    finally:
        builtins.__import__ = usual


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def import_now() -> None:
    """Import all that was put off."""
    with ended_by_sigint():
        for name, module in list(sys.modules.items()):
            if _is_in(name, (_HOME,)):
                for key, value in list(vars(module).items()):
                    if isinstance(value, _Later):
                        setattr(module, key, value.real())


def import_before(command: click.Command) -> None:
    """Wrap the code of a command, or of each of a group: what was put off is imported before it runs."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            import_before(one)
    elif command.callback is not None:
        command.callback = _after_imports(command.callback)


def _after_imports(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        import_now()
        return function(*arguments, **options)

    return run
