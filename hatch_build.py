"""Compiles the recorder's hot modules with mypyc, and its C files, where there is a compiler.

ATEN_DUMP_COMPILE is "auto" (the default: where it cannot be done, one line says so and the wheel is pure Python), "1"
(or the build fails) or "0". Editable installs are always pure.

Theory of operation
    The compiled modules lie beside their sources in the wheel, and Python's import takes a `.so` before a `.py`. Torch
    and all else that is not this package is opaque to the compiler, so that it need not be there to build, and the
    same code comes out where it is.

    Not compiled is what others see as Python functions: the methods that torch calls on a mode, which dynamo must be
    able to skip; the wrappers around torch's own methods; whatever runs the program's code, as its frames would lack
    in a traceback; what reads memory that only a variable keeps alive, as compiled code lets go of it after its last
    use. A class can be derived from a compiled one only in a compiled module: all batches are here, or none.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = [
    "capture/autograd/backward_calls",
    "capture/autograd/graph_links",
    "capture/autograd/node_runs",
    "capture/autograd/node_tags",
    "capture/autograd/sequence_claims",
    "capture/calls/op_entries",
    "capture/calls/op_writes",
    "capture/calls/ops",
    "capture/calls/places",
    "capture/calls/python_calls",
    "capture/calls/watched_ops",
    "capture/clock",
    "capture/collector",
    "capture/data/device_batches",
    "capture/data/flushing",
    "capture/data/keeper",
    "capture/data/small_tensor_batches",
    "capture/data/statistics/on_device",
    "capture/data/statistics/one_pass",
    "capture/data/stored_bytes",
    "capture/memory/storage_table",
    "capture/memory/storages",
    "capture/naming/api_names",
    "capture/naming/call_name",
    "capture/naming/interned_tables",
    "capture/naming/op_schemas",
    "capture/naming/selection",
    "capture/recorder",
    "capture/step/call_counters",
    "capture/step/open_calls",
    "capture/step/own_code",
    "capture/step/program_frames",
    "capture/step/step",
    "capture/step/threads",
    "capture/torch_internals/engine",
    "capture/torch_internals/formulas_without_mode",
    "capture/torch_internals/module_hooks",
    "capture/torch_internals/saved_tensors",
    "capture/torch_internals/tracing",
    "capture/values/argument_encoding",
    "capture/values/containers",
    "capture/values/encoded_trees",
    "capture/values/known_values",
    "capture/values/tensors_without_memory",
    "capture/values/value_ids",
    "capture/values/value_records",
    "capture/values/value_table",
    "store/writing/packed_records",
]
OPTIONS = [
    "--config-file=",
    "--follow-imports=silent",
    "--no-site-packages",  # torch and numpy
    "--ignore-missing-imports",
    "--disallow-subclassing-any",  # the layout of such a base is not known: memory would be corrupted
]


C_FILES = [
    "aten_dump/capture/_clock.c",
    "aten_dump/capture/_collector.c",
    "aten_dump/capture/_team_bell.c",
    "aten_dump/capture/data/_gather.c",
    "aten_dump/capture/data/_xxh3.c",
    "aten_dump/capture/data/statistics/_one_pass.c",
    "aten_dump/capture/values/_known_value.c",
    "aten_dump/store/_small_files.c",
    "aten_dump/store/writing/_host_memory.c",
    "aten_dump/store/writing/_pack_record.c",
]
# Sums may be taken in any order, which vectors need; NaN and Inf are told apart as ever.
C_OPTIONS = "-O3 -fno-strict-aliasing -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -pthread"


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel."""

    def dependencies(self) -> list[str]:
        return ["mypy>=1.18", "setuptools>=77"] if _why_pure() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        why_pure = _why_pure()
        if version == "editable":
            if _wish() == "1":
                raise SystemExit(
                    "ATEN_DUMP_COMPILE=1 cannot compile an editable install: the compiled modules would stay as they "
                    "are when their sources are edited; install without --editable, or without ATEN_DUMP_COMPILE"
                )
            return
        if why_pure is None:
            folder = Path(tempfile.mkdtemp(prefix="aten-dump-compile-"))
            atexit.register(shutil.rmtree, folder)
            try:
                built = compile_modules(folder)
            except (Exception, SystemExit) as error:
                if _wish() == "1":
                    raise
                why_pure = f"compiling failed ({type(error).__name__}: {error})"
        if why_pure is not None:
            if _wish() != "0":
                self.app.display_warning(f"aten_dump is built as pure Python, and records slower: {why_pure}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(path): str(path.relative_to(folder / "lib")) for path in built}


def compile_modules(folder: Path) -> list[Path]:
    """Compile the modules, from the checkout's root as the present folder; return the files, all in `folder`/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    hot = [f"aten_dump/{name}.py" for name in COMPILED]
    extensions = mypycify(
        [*OPTIONS, f"--cache-dir={folder / 'cache'}", *hot],
        target_dir=str(folder / "c"),
        group_name="aten_dump",
    )
    if os.name == "posix":
        for extension in extensions:  # what calls itself is called directly
            extension.extra_compile_args += ["-fno-semantic-interposition", "-fvisibility=hidden"]
    if sys.platform == "linux":
        for extension in extensions:  # and Python's functions by their addresses, found once, not by way of a table
            extension.extra_compile_args.append("-fno-plt")
            extension.extra_link_args.append("-Wl,-z,now")
    options = C_OPTIONS.split()
    for file in C_FILES:
        name = file.removesuffix(".c").replace("/", ".")
        is_limited = "Py_LIMITED_API" in Path(file).read_text(encoding="utf-8")
        extensions.append(
            Extension(name, [file], extra_compile_args=options, extra_link_args=["-pthread"], py_limited_api=is_limited)
        )
    command = Distribution({"name": "aten_dump", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return [path for path in (folder / "lib").rglob("*") if path.is_file()]


def _wish() -> str:
    wish = os.environ.get("ATEN_DUMP_COMPILE", "") or "auto"
    if wish not in ("auto", "0", "1"):
        raise SystemExit(f"ATEN_DUMP_COMPILE is {wish!r}; allowed: auto, 0, 1")
    return wish


def _why_pure() -> str | None:
    """Return why nothing is to be compiled; None where it is."""
    wish = _wish()
    if wish == "0":
        return "ATEN_DUMP_COMPILE=0 is set"
    if wish == "1":
        return None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}); install one, or set CC"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"{header} is missing; install the headers of this Python (python3-dev)"
    return None
