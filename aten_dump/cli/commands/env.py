"""``aten-dump env``: what a report of a bug needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from typing import Final

import click

from ... import IS_COMPILED, __version__
from ...plain_text import without_secrets
from ...store.records import FORMAT_VERSION
from ..console import print_lines

_PACKAGES: Final = (
    "torch_npu",
    "numpy",
    "safetensors",
    "msgpack",
    "xxhash",
    "click",
    "rich",
    "triton",
    "pyarrow",
)
_VARIABLES: Final = (
    "ATEN_DUMP_",
    "TORCH",
    "PYTORCH_",
    "CUDA_VISIBLE",
    "ASCEND_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "OMP_",
)


@click.command("env")
def command() -> None:
    """Print versions, devices and variables of this machine: put it into a report of a bug.

    \b
    Examples
      aten-dump env
    """  # noqa: D301 - \b keeps click from filling lines
    print_lines(_facts())


def _facts() -> Iterator[str]:
    build = "compiled" if IS_COMPILED else "pure Python"
    yield f"aten_dump {__version__} ({build}), dump format {FORMAT_VERSION}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    yield f"{platform.platform()}, {os.cpu_count()} cores"
    yield from _torch()
    for name in _PACKAGES:
        yield f"{name} {_version(name)}"
    for name, text in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield from without_secrets([f"{name}={text}"])


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
