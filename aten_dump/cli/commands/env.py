"""``aten-dump env``: what a report of a bug needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ... import IS_COMPILED, __version__
from ...analysis.environments import compare_environments, describe_environment
from ...store.records import FORMAT_VERSION
from ...variables import variables_that_matter
from ..console import echo, print_lines
from ..formats import format_option, print_record

_PACKAGES: Final = ("torch_npu", "numpy", "safetensors", "msgpack", "xxhash", "click", "rich", "triton", "pyarrow")


@click.command("env")
@click.argument("dump", type=click.Path(path_type=Path), required=False)
@click.option(
    "--compare",
    "both",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="TARGET BASELINE",
    help="Compare two dumps: print all differences except those of the program.",
)
@format_option("env", "env-compare")
def command(dump: Path | None, both: tuple[Path, Path] | None, form: str) -> None:
    """Print versions, devices and variables of this machine, or of the run in DUMP; or compare two runs.

    --compare covers hyperparameters, data, weights, model, random numbers, seed, versions, devices, switches and
    variables, the most relevant first. Secrets are masked.

    Exit code 0: no difference, or no comparison; 1: the runs differ; 2: a dump cannot be read.

    \b
    Examples
      aten-dump env
      aten-dump env dump
      aten-dump env --compare dump other
    """  # noqa: D301 - \b keeps click from filling lines
    if both is not None:
        _compare(both, form)
        return
    lines = [*(_facts() if dump is None else describe_environment(dump))]
    if form == "json":
        print_record({"dump": dump, "facts": lines})
    else:
        print_lines(lines)


def _compare(both: tuple[Path, Path], form: str) -> None:
    found = compare_environments(*both)
    if form == "json":
        print_record(found.to_json())
    else:
        print_lines(one.text for one in found.differences)
        count = len(found.differences)
        echo(f"{count} difference{'s' if count != 1 else ''}" if count else "No difference.")
        print_lines(f"not compared: {text}" for text in found.unknown)
    if found.differences:
        raise click.exceptions.Exit(1)


def _facts() -> Iterator[str]:
    build = "compiled" if IS_COMPILED else "pure Python"
    yield f"aten_dump {__version__} ({build}), dump format {FORMAT_VERSION}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    yield f"{platform.platform()}, {os.cpu_count()} cores"
    yield from _torch()
    for name in _PACKAGES:
        yield f"{name} {_version(name)}"
    yield from (f"{name}={text}" for name, text in variables_that_matter().items())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch() -> Iterator[str]:
    import torch

    yield f"torch {torch.__version__}"  # the metadata of its package may leave out which build it is, as in +cu124
    yield f"torch.version: cuda {torch.version.cuda}, git {torch.version.git_version}"
    yield f"threads of torch: {torch.get_num_threads()}, torch.distributed: {torch.distributed.is_available()}"
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        yield "accelerator: none"
        return
    yield f"accelerator: {device.type}, {torch.accelerator.device_count()} of them"
