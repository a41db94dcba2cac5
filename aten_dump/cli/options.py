"""Arguments and options that several subcommands share, and the door through which they open dumps.

Theory of operation
    What is damaged, cut or incomplete is said in the first line, before the subcommand prints anything, and the
    subcommand is kept from ending with 0 (`ending`). So none can forget it, and none can pass what is not whole.
    `compare` has its lines and its exit code from `Comparison`, as the public API gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import click

from ..choices import MODES
from ..dump import Calls, Dump, RankDump, open_dump
from ..dump.call_filter import Wanted
from ..dump.wholeness import Recorded, not_whole_lines
from ..dump.why_absent import no_such_filter
from ..errors import MissingDataError
from ..store.records import CALL_KINDS, PHASES
from .console import echo
from .ending import never_end_well
from .workers import import_modules

Function = TypeVar("Function", bound=Callable[..., Any])


class Numbers(Protocol):
    """Steps or ranks that are asked for."""

    def __contains__(self, number: int, /) -> bool: ...


dump_argument = click.argument("dump", type=click.Path(path_type=Path))

_PLACE = (
    click.option("--step", type=int, help="Step to read.  [default: the first recorded]"),
    click.option("--rank", type=int, help="Rank to read.  [default: the first recorded]"),
)
_PLACES = (
    click.option("--step", type=int, help="Step to read.  [default: all]"),
    click.option("--rank", type=int, help="Rank to read.  [default: all]"),
)
_FILTERS = (
    click.option(
        "--op", help="Only this op or API: its name (aten::addmm, Functional.linear), a part of it, or regex:..."
    ),
    click.option("--kind", type=click.Choice(CALL_KINDS), help="Only calls of this kind."),
    click.option("--phase", type=click.Choice(PHASES), help="Only calls of this phase."),
    click.option(
        "--mode", type=click.Choice(list(MODES)), help="Only calls in modules of this mode, or in this grad mode."
    ),
    click.option("--module", help="Only calls in these modules, by a glob on their paths: 'transformer.h.*.attn'."),
    click.option("--scope", help="Only calls in scopes of this name (DumpMode.scope) and their backward; or regex:..."),
    click.option("--name", "call_name", help="Only calls with this text in their name, or regex:..."),
)


def _import(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    import_modules(names)
    return names


_LIBRARIES = (
    click.option(
        "--allow-ops",
        multiple=True,
        metavar="PATTERN",
        help="Run ops of this library too, such as 'mylib::*'; can be repeated. Allow only libraries that you trust.",
    ),
    click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        expose_value=False,
        callback=_import,
        help="Module or .py file to import first, for instance to register your own ops; can be repeated.",
    ),
)


def place_options(function: Function) -> Function:
    """Add --step and --rank, of a command that shows one step and rank."""
    return _add(function, _PLACE)


def places_options(function: Function) -> Function:
    """Add --step and --rank, of a command that goes through all steps and ranks."""
    return _add(function, _PLACES)


def filter_options(function: Function) -> Function:
    """Add --op, --kind, --phase, --mode, --module, --scope and --name, which the command is given as `wanted`."""

    @wraps(function)
    def command(*, call_name: str | None, **given: Any) -> Any:
        texts = {one.name: given.pop(one.name) for one in fields(Wanted) if one.name != "name"}
        return function(wanted=Wanted(name=call_name, **texts), **given)

    return _add(cast("Function", command), _FILTERS)


def allow_ops_option(function: Function) -> Function:
    """Add --allow-ops and --import."""
    return _add(function, _LIBRARIES)


def _add(function: Function, options: tuple[Callable[[Function], Function], ...]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def limit_option(default: int | None, what: str) -> Callable[[Function], Function]:
    """Add --limit: the maximum number of `what` to print, 0 for all."""
    shown = f"{default} on a terminal, all in a pipe" if default else "all"
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=None,
        help=f"Maximum number of {what} to print; 0: all.  [default: {shown}]",
    )


def open_all(path: Path, *, steps: Numbers | None = None, ranks: Numbers | None = None) -> Dump:
    """Open a dump and say what is not whole of its steps and ranks, and of the folder where all are asked for.

    Args:
        path: the dump.
        steps: the steps that are asked for; None is all.
        ranks: likewise.
    """
    dump = open_dump(path)
    asked = (
        rank.anew()  # so that only one index is in memory at a time
        for rank in dump.all_ranks()
        if (steps is None or rank.step in steps) and (ranks is None or rank.rank in ranks)
    )
    say_not_whole(dump.path, asked, dump.problems if steps is ranks is None else ())
    return dump


def open_rank(path: Path, step: int | None, rank: int | None, *, err: bool = False) -> RankDump:
    """Open one step and rank of a dump, by default the first of each, and say what is not whole of it.

    Raises:
        MissingDataError: the dump has no steps, or not this one.
    """
    dump = open_dump(path)
    if step is None:
        end_if_never_fired(dump)
    found = find_rank(dump, step, rank)
    say_not_whole(dump.path, [found], err=err)
    return found


def find_rank(dump: Dump, step: int | None, rank: int | None) -> RankDump:
    """Return one step and rank, by default the first of each."""
    found = dump.step(_first(dump) if step is None else step)
    return found.rank(found.ranks[0] if rank is None else rank)


def say_not_whole(where: Path, ranks: Iterable[Recorded], problems: Iterable[str] = (), *, err: bool = False) -> None:
    """Print what is not whole, on stderr with `err`, and keep the command from ending with 0."""
    lines = not_whole_lines(where, ranks, problems)
    for line in lines:
        echo(line, err=err)
    if lines:
        never_end_well()


def end_if_never_fired(dump: Dump) -> None:
    """End the command, which has nothing to do, where a trigger has held all steps back: that is no failure."""
    config = dump.run.get("config")
    trigger = config.get("trigger") if isinstance(config, dict) else None
    if not dump.steps and trigger is not None:
        echo(f"the trigger {str(trigger)!r} of {dump.path} has not fired: no step was written")
        raise click.exceptions.Exit(0)


def _first(dump: Dump) -> int:
    if not dump.steps:
        raise MissingDataError(
            f"{dump.path} has no recorded steps; was one selected by DumpConfig.steps, and dump.step() called?"
        )
    return dump.steps[0]


def selected(rank: RankDump, wanted: Wanted) -> Calls | None:
    """Return the calls that the filter options select, and say so if there are none; None when no filter was given."""
    if wanted == Wanted():
        return None
    matched = rank.calls.matching(wanted)
    if not matched:
        why = no_such_filter(rank.tables, wanted)
        echo(f"no call of {rank.where} matches these filters; it has {len(rank.calls)} calls", err=True)
        if why:
            echo(f"{why}. List them with `{rank.command('show')}`", err=True)
    return matched
