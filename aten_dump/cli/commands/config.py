"""``aten-dump config``: config files checked, converted, begun."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import click

from ...config import DumpConfig
from ...config_files import Translation, read_config_file
from ...errors import ConfigError
from ..files import opened
from ..formats import format_option, print_record

_BEGIN: Final = """\
# What aten_dump records; `aten-dump config check FILE` says what is wrong with it.
path = "dump"        # directory, made if missing
steps = "0-1"        # "all", "0|5-8|100-120"
ranks = "all"
level = "mix"        # aten, api, module, mix
data = "statistic"   # structure, hash, statistic, tensor, full
# io = "all"         # whose data is kept: input, output, all
# ops = ["layer_norm", "aten::addmm", "regex:.*softmax"]
# exclude_ops = []
# modules = ["transformer.h.0*"]
# trigger = "nonfinite"   # write only what surrounds the first NaN or Inf
# sample = 1000           # only so many elements of each tensor
# max_bytes = 100000000000
# on_error = "warn"       # go on unrecorded if the recorder fails
"""
_format: Final = format_option("config")
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.group("config")
def command() -> None:
    """Check, convert or create a config file. msprobe's config.json and MindSpore's data_dump.json are read too.

    \b
    Examples
      aten-dump config check config.json
      aten-dump config convert data_dump.json --out config.toml
      aten-dump config init --out config.toml
    """  # noqa: D301 - \b keeps click from filling lines


@command.command("check")
@click.argument("file", type=_FILE)
@_format
def check(file: Path, form: str) -> None:
    """Check FILE and print the meaning of each key."""
    found = read_config_file(file)
    config = DumpConfig.from_dict(found.fields, found.source)
    if form == "json":
        _print_record(file, found, config)
        return
    click.echo(f"{file}: a config of {found.tool}")
    for key, fields in found.mapped.items():
        click.echo(f"  {key}: {fields}")
    for key, why in found.without_meaning.items():
        click.echo(f"  {key}: no meaning here; {why}")
    if found.tool == "aten_dump":
        for name, value in _changed(config).items():
            click.echo(f"  {name} = {value!r}")


@command.command("convert")
@click.argument("file", type=_FILE)
@click.option("--out", type=_FILE, help="TOML file to write.  [default: stdout]")
@_format
def convert(file: Path, out: Path | None, form: str) -> None:
    """Write FILE as a config of aten_dump, in TOML; ignored keys become comments."""
    found = read_config_file(file)
    config = DumpConfig.from_dict(found.fields, found.source)
    changed = _changed(config)
    if form == "json":
        _print_record(file, found, config)
        if out is None:
            return
    with opened(_new(out)) as target:
        target.writelines(f"# {key}: {why}\n" for key, why in found.without_meaning.items())
        target.writelines(f"{name} = {_toml(value)}\n" for name, value in changed.items() if value is not None)
        target.writelines(
            f"# {name} = null: TOML has no null; keep it in JSON or YAML\n" for name in changed if changed[name] is None
        )


@command.command("init")
@click.option("--out", type=_FILE, help="TOML file to write.  [default: stdout]")
@_format
def init(out: Path | None, form: str) -> None:
    """Write a config to start from."""
    if form == "json":
        begun = DumpConfig(path="dump", steps="0-1")
        _print_record(out, Translation("aten_dump", "a config to begin with", _changed(begun)), begun)
        if out is None:
            return
    with opened(_new(out)) as target:
        target.write(_BEGIN)


def _print_record(file: Path | None, found: Translation, config: DumpConfig) -> None:
    keys = {"mapped": found.mapped, "without_meaning": found.without_meaning}
    print_record({"file": file, "tool": found.tool, **keys, "config": _changed(config)})


def _new(path: Path | None) -> Path | None:
    if path is not None and path.exists():
        raise ConfigError(f"{path} exists already; name another file to write")
    return path


def _changed(config: DumpConfig) -> dict[str, Any]:
    """Return the fields that are not as by default."""
    defaults = {field.name: field.default for field in dataclasses.fields(config) if field.init}
    values = config.as_dict()
    return {name: value for name, value in values.items() if name == "path" or getattr(config, name) != defaults[name]}


def _toml(value: Any) -> str:
    """Return a value as TOML: strings, numbers, booleans and lists of strings are the same in JSON."""
    return json.dumps(value, ensure_ascii=False)
