"""Arguments and options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..dump import Calls, RankDump, open_dump
from ..dump.call_filter import Wanted
from ..dump.index.call_modes import MODES
from ..dump.why_absent import no_such_filter
from ..errors import MissingDataError
from ..store.records import CALL_KINDS, PHASES
from .console import echo
from .workers import import_modules

if TYPE_CHECKING:
    from ..dump import Dump

Function = TypeVar("Function", bound=Callable[..., Any])

dump_argument = click.argument("dump", type=click.Path(path_type=Path))

_PLACE = (
    click.option("--step", type=int, help="Step to read.  [default: the first recorded]"),
    click.option("--rank", type=int, help="Rank to read.  [default: the first recorded]"),
)
_FILTERS = (
    click.option("--op", help="Exact op or api (aten::addmm, Functional.linear), a part of it, or regex:..."),
    click.option("--kind", type=click.Choice(CALL_KINDS), help="Only calls of this kind."),
    click.option("--phase", type=click.Choice(PHASES), help="Only calls of this phase."),
    click.option("--mode", type=click.Choice(list(MODES)), help="Only calls in such modules, or in this grad mode."),
    click.option("--module", help="Glob on the module path: 'transformer.h.*.attn'; takes in what is inside."),
    click.option("--name", "call_name", help="A part of the call's name, or regex:..."),
)


def _import(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    import_modules(names)
    return names


_LIBRARIES = (
    click.option(
        "--allow-ops",
        multiple=True,
        metavar="PATTERN",
        help="Ops of a library to run too, as 'mylib::*'; may be repeated. A dump names ops: name those you trust.",
    ),
    click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        expose_value=False,
        callback=_import,
        help="Module, or .py file, to import first, as it registers ops of your own; may be repeated.",
    ),
)


def place_options(function: Function) -> Function:
    """Add --step and --rank."""
    return _add(function, _PLACE)


def filter_options(function: Function) -> Function:
    """Add --op, --kind, --phase, --mode, --module and --name."""
    return _add(function, _FILTERS)


def allow_ops_option(function: Function) -> Function:
    """Add --allow-ops and --import."""
    return _add(function, _LIBRARIES)


def _add(function: Function, options: tuple[Callable[[Function], Function], ...]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def limit_option(default: int | None, what: str) -> Callable[[Function], Function]:
    """Add --limit: most of `what` to print, 0 for all."""
    shown = f"{default} on a terminal, all in a pipe" if default else "all"
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=None,
        help=f"Most {what} to print, 0 for all.  [default: {shown}]",
    )


def open_rank(path: Path, step: int | None, rank: int | None) -> RankDump:
    """Open one step and rank of a dump, by default the first of each.

    Raises:
        MissingDataError: the dump has no steps, or not this one.
    """
    dump = open_dump(path)
    if step is None:
        end_if_never_fired(dump)
    found = dump.step(_first(dump) if step is None else step)
    return found.rank(found.ranks[0] if rank is None else rank)


def say_problems(dump: Dump) -> None:
    """Say on stderr what is wrong with the folder of a dump, where the command goes on with what is there."""
    for problem in dump.problems:
        echo(problem, err=True)


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


def selected(rank: RankDump, filters: dict[str, str | None]) -> Calls | None:
    """Return the calls that the filter options select, and say so if there are none; None when no filter was given."""
    if all(text is None for text in filters.values()):
        return None
    wanted = Wanted(**filters)
    matched = rank.calls.matching(wanted)
    if not matched:
        why = no_such_filter(rank.tables, wanted)
        echo(f"no call of {rank.where} matches these filters; it has {len(rank.calls)} calls", err=True)
        if why:
            echo(f"{why}. List them with `aten-dump show`", err=True)
    return matched
