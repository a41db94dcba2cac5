"""Compiles the recorder's hot modules with mypyc, and its C files, where there is a compiler.

ATEN_DUMP_COMPILE is "auto" (the default: what cannot be compiled is left out), "1" (or the build fails) or "0".
Editable installs are always pure. What was left out, and why, is a warning of the build (``pip install -v`` shows it)
and lies in the wheel: ``aten-dump --version`` prints it.

Theory of operation
    The compiled modules lie beside their sources in the wheel, and Python's import takes a `.so` before a `.py`. Torch
    and all else that is not this package is opaque to the compiler, so that it need not be there to build, and the
    same code comes out where it is.

    Each C file stands alone, and so do the modules that mypyc compiles, all together: one that fails is left out, and
    Python or torch does its work.

    Not compiled is what others see as Python functions: the methods that torch calls on a mode, which dynamo must be
    able to skip; the wrappers around torch's own methods; whatever runs the program's code, as its frames would lack
    in a traceback; what reads memory that only a variable keeps alive, as compiled code lets go of it after its last
    use. A class can be derived from a compiled one only in a compiled module: all batches are here, or none.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, which compiles the C files alone
    BuildHookInterface = list  # type: ignore[assignment,misc]

COMPILED = [
    "capture/autograd/backward_calls",
    "capture/autograd/graph_links",
    "capture/autograd/node_runs",
    "capture/autograd/node_tags",
    "capture/autograd/sequence_claims",
    "capture/calls/op_entries",
    "capture/calls/ops",
    "capture/calls/python_calls",
    "capture/calls/watched_ops",
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

MODULES: Final = "the Python modules"  # as they are called where they cannot be compiled

C_FILES = [
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
# Sums may be taken in any order, which vectors need; NaN and Inf stay distinct.
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
        built: list[Path] = []
        failed: dict[str, str] = {}
        folder = Path(tempfile.mkdtemp(prefix="aten-dump-compile-"))
        atexit.register(shutil.rmtree, folder)
        if why_pure is None:
            built, failed = compile_modules(folder)
            if failed and _wish() == "1":
                raise SystemExit("ATEN_DUMP_COMPILE=1, and it could not be compiled: " + _sentence(failed))
        elif _wish() != "0":
            failed[MODULES] = why_pure
        if failed:
            self.app.display_warning(f"aten_dump records slower, as it is not all compiled: {_sentence(failed)}")
            report = folder / "_not_compiled.json"
            report.write_text(json.dumps(failed), encoding="utf-8")
            build_data["force_include"][str(report)] = f"aten_dump/{report.name}"
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {str(path): str(path.relative_to(folder / "lib")) for path in built}


def _sentence(failed: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in failed.items())


def compile_modules(folder: Path, c_files: Sequence[str] = C_FILES) -> tuple[list[Path], dict[str, str]]:
    """Compile the modules, from the checkout's root as the present folder.

    Returns:
        The files, all in `folder`/lib; and of what could not be compiled, why, by name.
    """
    failed: dict[str, str] = {}
    with _said(folder / "said") as said:
        try:
            _build(folder, _of_mypyc(folder))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, Python does the work
            failed[MODULES] = said(error)
            shutil.rmtree(folder / "lib", ignore_errors=True)
    compile_c_files(folder, c_files, C_OPTIONS, failed)
    return [path for path in (folder / "lib").rglob("*") if path.is_file()], failed


def compile_c_files(folder: Path, files: Sequence[str], options: str, failed: dict[str, str]) -> None:
    """Compile C files into `folder`/lib, each alone; note of those that fail why, by name, in `failed`."""
    from setuptools import Extension

    for file in files:
        name = file.removesuffix(".c").replace("/", ".")
        is_limited = "Py_LIMITED_API" in Path(file).read_text(encoding="utf-8")
        one = Extension(
            name,
            [file],
            extra_compile_args=options.split(),
            extra_link_args=[option for option in options.split() if option.startswith(("-pthread", "-fsanitize"))],
            py_limited_api=is_limited,
        )
        with _said(folder / "said") as said:
            try:
                _build(folder, [one])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the others are compiled
                failed[name.removeprefix("aten_dump.")] = said(error)


def _of_mypyc(folder: Path) -> list[Any]:
    from mypyc.build import mypycify

    hot = [f"aten_dump/{name}.py" for name in COMPILED]
    extensions: list[Any] = mypycify(
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
    return extensions


def _build(folder: Path, extensions: list[Any]) -> None:
    from setuptools import Distribution

    command = Distribution({"name": "aten_dump", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()


@contextmanager
def _said(file: Path) -> Iterator[Any]:
    """Keep what compilers say on stderr; yield what returns the first error of that, else the exception's text."""
    sys.stderr.flush()
    before = os.dup(2)
    with file.open("w+b") as kept:
        os.dup2(kept.fileno(), 2)

        def said(error: BaseException) -> str:
            text = file.read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines()]
            first = next((line for line in lines if "error:" in line), f"{type(error).__name__}: {error}")
            return first.replace(os.getcwd() + os.sep, "")

        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            kept.seek(0)
            os.write(2, kept.read())


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


if __name__ == "__main__":  # python hatch_build.py FOLDER: compile the C files alone, with C_OPTIONS of the environment
    not_compiled: dict[str, str] = {}
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    compile_c_files(place, C_FILES, os.environ.get("C_OPTIONS", C_OPTIONS), not_compiled)
    sys.exit(_sentence(not_compiled) or 0)
