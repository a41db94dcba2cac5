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
@click.option("--level", type=click.Choice(get_args(Level)), help="Kinds of call to record.")
@click.option("--data", type=click.Choice(get_args(DataKind)), help="Data to keep of each tensor.")
@click.option(
    "--against", help="A dump of hashes to compare with; bytes are kept only around the first call that differs."
)
@click.option(
    "--compile",
    type=click.Choice(get_args(Compile)),
    help="How functions of torch.compile run and are recorded: as written (eager), as one compiled call each (opaque), "
    "or compiled, kernel by kernel (kernels).  [default: eager]",
)
@click.option(
    "--watch",
    metavar="TARGET",
    help="Watch numbers instead of recording everything: tensorboard, tensorboard:FOLDER, wandb, or a file of JSON "
    "lines. With --path, the step after an alert is recorded there.",
)
@click.option(
    "--watch-every", type=click.IntRange(1), default=100, show_default=True, help="Watch one step in this many."
)
@click.option(
    "--watch-modules",
    multiple=True,
    help="Globs on module paths, separated by commas: watch the results of these modules too.",
)
@click.option("--watch-formats", multiple=True, help="Number formats to test tensors against: nvfp4,mxfp8_e4m3.")
@click.option("--overwrite", is_flag=True, default=None, help="Replace an existing dump.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(file: Path | None, command: tuple[str, ...], **fields: Any) -> NoReturn:
    """Run COMMAND and record all of its ranks. Its scripts need no change.

    A step ends when the step of the optimizer returns, so accumulated batches are one step. Module names are those of
    the model whose parameters the optimizer holds. Recording begins at the first call of a module. COMMAND replaces
    this process: input, output, signals and the exit code are those of COMMAND.

    \b
    Examples
      aten-dump run --steps 0-1 -- python train.py --lr 0.1
      aten-dump run --config cfg.toml -- torchrun --nproc-per-node 2 train.py
      aten-dump run --path dump --data full -- accelerate launch train.py
      aten-dump run --path dump --against golden -- python train.py
      aten-dump run --watch tensorboard --path dump -- python train.py
      aten-dump ctl dump steps 100-102       (while it runs)
    """  # noqa: D301 - \b keeps click from filling lines
    options = {"every": fields.pop("watch_every")}
    options |= {name: _split(fields.pop(f"watch_{name}")) for name in ("modules", "formats")}
    watch = fields.pop("watch")
    changes = {name: value for name, value in fields.items() if value is not None}
    if watch is None:
        environment = environment_of(_config(file, changes), os.environ)
    else:
        record = _config(file, {"data": "tensor", **changes}) if file is not None or "path" in changes else None
        environment = environment_of(record, os.environ, {"to": _absolute(watch), **options})
    program = shutil.which(command[0])
    if program is None:
        hint = f"; did you mean: python {command[0]}" if Path(command[0]).is_file() else ""
        raise ConfigError(f"there is no command {command[0]!r} to run{hint}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(program, list(command), environment)


def _split(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that options give, each with commas between them."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


def _absolute(target: str) -> str:
    """Return a target with the path in it made absolute: a launcher may start its processes in another folder."""
    if target in ("tensorboard", "wandb"):
        return target
    head, colon, path = target.partition(":") if target.startswith("tensorboard:") else ("", "", target)
    return f"{head}{colon}{os.path.abspath(path)}"


def _config(file: Path | None, changes: dict[str, Any]) -> DumpConfig:
    if file is not None:
        return dataclasses.replace(DumpConfig.from_file(file), **changes)
    if any(os.environ.get(name) for name in VARIABLES):
        return dataclasses.replace(DumpConfig.from_environment(), **changes)
    return DumpConfig(**{"path": _DEFAULT_PATH, **changes})
