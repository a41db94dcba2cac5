"""Completion in the shell: click's own script, put where the shell finds it, and names of calls from the dump."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import get_completion_class

from ..errors import AtenDumpError, StoreError

if TYPE_CHECKING:
    from ..dump import RankDump

SHELLS: Final = ("bash", "zsh", "fish")
_COMMAND: Final = "aten-dump"
_MOST_NAMES: Final = 1000  # beyond, prefixes and apis are offered, and names when one of them is typed


def install_option(function: Any) -> Any:
    """Add --install-completion to the command itself."""
    return click.option(
        "--install-completion",
        type=click.Choice(SHELLS),
        is_flag=False,
        flag_value=_own_shell(),
        expose_value=False,
        is_eager=True,
        callback=_install,
        help="Install completion of commands, options and call names for this shell, or for the named one, and exit.",
    )(function)


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in SHELLS else SHELLS[0]


def _install(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    try:
        script, line_of = install(shell, context.command)
    except StoreError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"wrote {script}" + (f", which {line_of} reads" if line_of else "") + "; begin a new shell to use it")
    context.exit()


def install(shell: str, command: click.Command) -> tuple[Path, Path | None]:
    """Write the script of a shell, and have the shell read it.

    Args:
        shell: one of `SHELLS`.
        command: what is completed.

    Returns:
        The script, and the file of the user's that reads it.

    Raises:
        StoreError: a file cannot be written.
    """
    made = get_completion_class(shell)
    assert made is not None
    source = made(command, {}, _COMMAND, f"_{_COMMAND.replace('-', '_').upper()}_COMPLETE").source()
    try:
        if shell == "fish":
            return _written(_folder("XDG_CONFIG_HOME", ".config") / "fish" / "completions", "fish", source), None
        script = _written(_folder("XDG_DATA_HOME", ".local/share") / _COMMAND, shell, source)
        return script, _read_by(Path.home() / f".{shell}rc", script)
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {error.filename}: {error.strerror}; make it writable") from error


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default)


def _written(folder: Path, shell: str, source: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{_COMMAND}.{shell}"
    script.write_text(source, encoding="utf-8")
    return script


def _read_by(startup: Path, script: Path) -> Path:
    """Add the line to the shell's own file that reads the script, once."""
    line = f". {shlex.quote(str(script))}"
    text = startup.read_text(encoding="utf-8", errors="surrogateescape") if startup.exists() else ""
    if line not in text.splitlines():
        with open(startup, "a", encoding="utf-8") as file:
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    return startup


def complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of calls that begin so, of the dump, step and rank on the line; of one call its tensors."""
    from ..dump import open_dump
    from .options import find_rank

    given = context.params
    try:
        rank = find_rank(open_dump(given["dump"]), given.get("step"), given.get("rank"))
        names = [name for name in rank.links.names if name.startswith(incomplete)]
        if not names:
            return list(_tensors(rank, incomplete))
    except (AtenDumpError, KeyError):  # nothing to offer; what is wrong is said when the command runs
        return []
    heads = dict.fromkeys(_head(name) for name in names)
    return names if len(names) <= _MOST_NAMES or len(heads) == 1 else list(heads)


def _head(name: str) -> str:
    """Return prefix and api of a name, with the dot after them."""
    return name.rpartition(".")[0].rpartition(".")[0] + "."


def _tensors(rank: RankDump, incomplete: str) -> Iterator[str]:
    """Yield the tensors of the call that a text begins with."""
    call = incomplete
    while "." in call and call not in rank:
        call = call.rpartition(".")[0]
    if call in rank:
        slots = (f"{call}.{slot}" for slot, _ in rank[call].all_values())
        yield from (name for name in slots if name.startswith(incomplete))
