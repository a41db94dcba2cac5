"""Waits for the import of torch. Knows nothing but the standard library: it is loaded in every Python process."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

VARIABLE = "ATEN_DUMP_RUN"  # the configuration of the run, as JSON


class TorchFinder:
    """Stands first on ``sys.meta_path`` until torch is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the loader of torch, which says when it is done; None for any other module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _then(spec.loader, _begin)
        return spec


def watch() -> None:
    """Wait for torch, in a process that ``aten-dump run`` has begun."""
    if os.environ.get(VARIABLE):
        sys.meta_path.insert(0, TorchFinder())


def find_sitecustomize(path: list[str]) -> None:
    """Import the ``sitecustomize`` that Python would have imported without ours, if there is one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _then(loader: object, done: object) -> None:
    """Call `done` when `loader` has executed its module, once."""
    execute = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # type: ignore[attr-defined] # of the instance: its class has the loader's own
        execute(module)
        done()  # type: ignore[operator]

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def _begin() -> None:
    try:
        importlib.import_module("aten_dump.launch.unattended").begin(VARIABLE)
    except ImportError as error:
        sys.stderr.write(
            f"aten_dump: {sys.executable} cannot import aten_dump ({error}), so process {os.getpid()} is not recorded; "
            "install it for that Python too\n"
        )
