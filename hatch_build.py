"""Compiles the recorder's hot modules with mypyc where ATEN_DUMP_COMPILE=1 is set; without it the wheel is pure Python.

Theory of operation
    The compiled modules lie beside their sources in the wheel, and Python's import takes a `.so` before a `.py`. Torch
    and all else that is not this package is opaque to the compiler, so that it need not be there to build, and the
    same code comes out where it is.

    Not compiled is what others see as Python functions: the methods that torch calls on a mode, which dynamo must be
    able to skip; the wrappers around torch's own methods; whatever runs the program's code, as its frames would lack
    in a traceback. A class can be derived from a compiled one only in a compiled module: all batches are here, or none.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = [
    "autograd/backward_calls",
    "autograd/graph_links",
    "autograd/node_runs",
    "autograd/node_tags",
    "autograd/sequence_claims",
    "calls/op_entries",
    "calls/op_writes",
    "calls/ops",
    "calls/places",
    "calls/python_calls",
    "calls/watched_ops",
    "data/device_batches",
    "data/flushing",
    "data/keeper",
    "data/small_tensor_batches",
    "data/statistics/on_device",
    "data/stored_bytes",
    "memory/storage_table",
    "memory/storages",
    "naming/api_names",
    "naming/call_name",
    "naming/interned_tables",
    "naming/op_schemas",
    "naming/selection",
    "recorder",
    "step/call_counters",
    "step/open_calls",
    "step/own_code",
    "step/program_frames",
    "step/step",
    "step/threads",
    "torch_internals/engine",
    "torch_internals/saved_tensors",
    "torch_internals/tracing",
    "values/argument_encoding",
    "values/containers",
    "values/encoded_trees",
    "values/tensors_without_memory",
    "values/value_ids",
    "values/value_records",
    "values/value_table",
]
OPTIONS = [
    "--config-file=",
    "--follow-imports=silent",
    "--no-site-packages",  # torch and numpy
    "--ignore-missing-imports",
    "--disallow-subclassing-any",  # the layout of such a base is not known: memory would be corrupted
]


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel."""

    def dependencies(self) -> list[str]:
        return ["mypy>=1.18", "setuptools>=77"] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_wanted():
            return
        if version == "editable":
            raise SystemExit(
                "ATEN_DUMP_COMPILE=1 cannot compile an editable install: the compiled modules would stay as they are "
                "when their sources are edited; install without --editable, or without ATEN_DUMP_COMPILE"
            )
        folder = Path(tempfile.mkdtemp(prefix="aten-dump-compile-"))
        atexit.register(shutil.rmtree, folder)
        built = compile_modules(folder)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(path): str(path.relative_to(folder / "lib")) for path in built}


def compile_modules(folder: Path) -> list[Path]:
    """Compile the modules, from the checkout's root as the present folder; return the files, all in `folder`/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    hot = [f"aten_dump/capture/{name}.py" for name in COMPILED]
    extensions = mypycify(
        [*OPTIONS, f"--cache-dir={folder / 'cache'}", *hot],
        target_dir=str(folder / "c"),
        group_name="aten_dump",
    )
    command = Distribution({"name": "aten_dump", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return [path for path in (folder / "lib").rglob("*") if path.is_file()]


def _is_wanted() -> bool:
    return os.environ.get("ATEN_DUMP_COMPILE", "") not in ("", "0")
