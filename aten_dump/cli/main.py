"""The command line's front door: one table of subcommands, and errors as one clear message."""

from __future__ import annotations

import functools
import traceback
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from .. import __version__
from ..errors import AtenDumpError, StoreError
from ..plain_text import visible_lines
from .build_text import build_text
from .completion import install_option
from .ending import INTERRUPTED, INTERRUPTED_TEXT, drop_output, ended_by_sigint, exit_code
from .formats import keep_stdout_for_records
from .late_imports import import_before, later

# name -> what it does. The command is `command` of aten_dump.cli.commands.<name>, imported when it is used.
COMMANDS: Final = {
    "run": "Record an unmodified script: python, torchrun, accelerate launch ...",
    "ctl": "Change what a running job records: on, off, steps, level, status.",
    "ls": "List the steps, ranks, calls and bytes of a dump.",
    "show": "Show the tree of calls, or one call or tensor in full.",
    "stats": "Print statistics of all values, also as CSV, JSON or Parquet.",
    "saved": "Show memory that forward keeps alive for backward, by call and module.",
    "check": "Find mistakes in one recorded step, without a baseline.",
    "compare": "Compare two dumps and name the first op that is wrong.",
    "weights": "Match the weights of two checkpoints by their contents.",
    "replay": "Run recorded ops again and rank them by error; write a script that runs one alone.",
    "nonfinite": "Find the calls that produced NaN and Inf.",
    "hang": "Find which rank waits for which in a run that hangs, where, and since when.",
    "export": "Write a dump for msprobe, HDF5, numpy, Parquet, Perfetto, TensorBoard ...",
    "report": "Write a dump or a comparison as one HTML file.",
    "serve": "Show the report over a local server: dumps of any size, tensors as heat maps.",
    "config": "Check, convert or create a config file; reads those of msprobe and MindSpore.",
    "verify": "Check every checksum of a dump.",
    "recover": "Finish an interrupted dump.",
    "env": "Print versions and devices of this machine or of a run; compare two runs.",
}

_FOLDERS: Final = {  # of commands that are not in `commands` itself
    **dict.fromkeys(("report", "serve"), "commands.pages"),
    **dict.fromkeys(("run", "ctl"), "recording"),
}
TOOL_FAILED: Final = 3  # exit code


class Failure(click.ClickException):
    """What could not be done or shown, as a message and exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """Subcommands that are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so from the table, without importing them, and options."""
        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; errors of aten_dump and of the system, as of a disk that is full, become a message.

        What ends well ends with another exit code where the dump is not whole; see `ending`.
        """
        keep_stdout_for_records(False)
        try:
            super().invoke(ctx)
            _end(exit_code())
        except BrokenPipeError:
            drop_output()  # click would end with 1, which means "differ"
            raise click.exceptions.Exit(Failure.exit_code) from None
        except (AtenDumpError, OSError) as error:
            raise Failure(visible_lines(_text_of(error))) from error
        except (KeyboardInterrupt, click.Abort):
            click.echo(INTERRUPTED_TEXT, err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.exceptions.Exit as error:
            _end(exit_code(error.exit_code))
        except click.ClickException:
            raise
        except Exception:  # noqa: BLE001 - printed whole
            traceback.print_exc()  # not the dump's fault nor the user's: 3 is for scripts, the traceback for us
            raise click.exceptions.Exit(TOOL_FAILED) from None


@functools.cache
def _command(name: str) -> click.Command:
    with ended_by_sigint(), later():
        found = import_module(f".{_FOLDERS.get(name, 'commands')}.{name}", __package__).command
    assert isinstance(found, click.Command)
    import_before(found)
    return found


def _end(code: int) -> None:
    if code:
        raise click.exceptions.Exit(code)


def _text_of(error: AtenDumpError | OSError) -> str:
    """Return the message of an error, without the errno of a `StoreError`."""
    return error.strerror if isinstance(error, StoreError) and error.strerror else str(error)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@install_option
@click.version_option(f"{__version__} ({build_text()})", prog_name="aten-dump")
def main() -> None:
    """Record PyTorch programs and analyse the dumps.

    DUMP is the directory in DumpConfig.path. Reading it needs no accelerator.

    \b
    Start with
      aten-dump ls dump
      aten-dump show dump --depth 2
      aten-dump show dump Aten.addmm.3.forward
    """  # noqa: D301 - \b keeps click from filling lines
