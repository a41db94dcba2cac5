"""``aten-dump run``: a command, recorded as it is."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

import click

from ...config import Compile, DataKind, DumpConfig, Level
from ...config_files import VARIABLES
from ...errors import ConfigError
from ...launch.environment import environment_of

_DEFAULT_PATH: Final = "dump"


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="Config file.")
@click.option("--path", help=f"Directory of the dump.  [default: that of the config, else {_DEFAULT_PATH}]")
@click.option("--steps", help="Steps to record: 3, '0|5-8', all.")
@click.option("--ranks", help="Ranks that record: 0, '0|4-7', all.")
@click.option("--level", type=click.Choice(get_args(Level)), help="Which kinds of call.")
@click.option("--data", type=click.Choice(get_args(DataKind)), help="What is kept of a tensor.")
@click.option(
    "--compile",
    type=click.Choice(get_args(Compile)),
    help="Run functions of torch.compile as written (eager), as one compiled call each (opaque), or compiled, kernel "
    "by kernel (kernels).  [default: eager]",
)
@click.option("--overwrite", is_flag=True, default=None, help="Replace a dump that is there.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(file: Path | None, command: tuple[str, ...], **fields: Any) -> NoReturn:
    """Run COMMAND with every rank of it recorded; nothing in its scripts changes.

    A step ends where the optimizer's step returns, so accumulated batches are one step. Module names are those of
    the model whose parameters the optimizer holds. Recording begins at the first call of a module. COMMAND takes the
    place of this process: input, output, signals and the exit code are its own.

    \b
    Examples
      aten-dump run --steps 0-1 -- python train.py --lr 0.1
      aten-dump run --config cfg.toml -- torchrun --nproc-per-node 2 train.py
      aten-dump run --path dump --data full -- accelerate launch train.py
      aten-dump ctl dump steps 100-102       (while it runs)
    """  # noqa: D301 - \b keeps click from filling lines
    config = _config(file, {name: value for name, value in fields.items() if value is not None})
    environment = environment_of(config, os.environ)
    program = shutil.which(command[0])
    if program is None:
        hint = f"; did you mean: python {command[0]}" if Path(command[0]).is_file() else ""
        raise ConfigError(f"there is no command {command[0]!r} to run{hint}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(program, list(command), environment)


def _config(file: Path | None, changes: dict[str, Any]) -> DumpConfig:
    if file is not None:
        return dataclasses.replace(DumpConfig.from_file(file), **changes)
    if any(os.environ.get(name) for name in VARIABLES):
        return dataclasses.replace(DumpConfig.from_environment(), **changes)
    return DumpConfig(**{"path": _DEFAULT_PATH, **changes})
