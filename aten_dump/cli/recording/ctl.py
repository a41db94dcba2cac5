"""``aten-dump ctl``: switch a run that records."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import click

from ...config import Level, Selection
from ...errors import ConfigError, MissingDataError
from ...plain_text import counted
from ...store.control.control_files import Answer, ControlFiles, Decision, Request
from ...store.objects.url_path import UrlPath, place_of
from ...store.regular_files import numbered_folders
from ...store.run_json import ranges_text, read_ranges, read_run, without
from ...store.spool.places import spools_here
from ..console import echo
from ..formats import format_option, print_record

Ranges = list[tuple[int, int]]

_LOOK_S: Final = 0.05
# action -> what it asks for, of its value.
_ACTIONS: Final[dict[str, Callable[[str], dict[str, str]]]] = {
    "on": lambda value: {"steps": "all"},
    "off": lambda value: {"steps": "none"},
    "steps": lambda value: {"steps": value},
    "level": lambda value: {"level": value},
    "status": lambda value: {},
}
_WITH_VALUE: Final = ("steps", "level")


@click.command("ctl")
@click.argument("dump", type=click.Path(path_type=Path))
@click.argument("action", type=click.Choice(list(_ACTIONS)))
@click.argument("value", required=False)
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds to wait for the ranks.")
@format_option("ctl")
def command(dump: Path, action: str, value: str | None, wait_s: float, form: str) -> None:
    """Change what a running job records into DUMP; all ranks switch at the same step.

    The command writes a file to DUMP/control; no network port is used. The ranks read it between two steps, agree on a
    step that is ahead of all of them, and switch there. A step that is not recorded costs one look at that file.

    If torchrun has restarted the program, the command reaches the last attempt. A new attempt begins with the last
    request.

    \b
    Examples
      aten-dump ctl dump status
      aten-dump ctl dump off
      aten-dump ctl dump steps 100-102
      aten-dump ctl dump level module
    """  # noqa: D301 - \b keeps click from filling lines
    _check(action, value)
    dump, restarts = _newest_attempt(_local(dump))
    if restarts:
        echo(f"restart {restarts} of the program, in {dump}")
    run = read_run(dump)
    began = run.get("started_unix_ns")
    files = ControlFiles(dump)
    request = _ask(files, _ACTIONS[action](value or ""), began if type(began) is int else 0)
    end_s = time.monotonic() + wait_s
    ranks = read_ranges(run.get("ranks"))
    if request.changes:
        found = _report_change(files, ranks, request, end_s)
    else:
        found = _report_status(files, ranks, request, end_s)
    if form == "json":
        print_record({"path": dump, "restarts": restarts, "from_step": None, "ranks": [], **found})
    _miss(read_ranges(found["silent"]))


def _local(dump: Path) -> Path:
    """Return the folder in which a run takes requests: of one that records to object storage, its spool."""
    place = place_of(dump)
    if not isinstance(place, UrlPath):
        return dump
    spools = spools_here(place)
    if not spools:
        raise MissingDataError(f"no run on this machine records to {place}: its ranks take requests where they run")
    return spools[0]


def _newest_attempt(dump: Path) -> tuple[Path, int]:
    """Return the folder that the last attempt of the program writes to, and how often it was restarted."""
    read_run(dump)
    attempts = numbered_folders(dump, "restart")
    return (attempts[max(attempts)], max(attempts)) if attempts else (dump, 0)


def _check(action: str, value: str | None) -> None:
    if (value is not None) != (action in _WITH_VALUE):
        raise click.UsageError(f"{action} takes {'a value' if action in _WITH_VALUE else 'no value'}")
    if action == "steps":
        Selection.parse("steps", value)
    if action == "level" and value not in get_args(Level):
        raise ConfigError(f"DumpConfig.level is {value!r}; allowed: {', '.join(get_args(Level))}")


def _ask(files: ControlFiles, wanted: dict[str, str], run_began_unix_ns: int) -> Request:
    """Write a request; what was asked before and is not decided yet is asked again with it."""
    before = files.request()
    request = Request(1 if before is None else before.number + 1, time.time_ns(), **wanted)
    decided = files.decision()
    waits = before is not None and before.made_unix_ns >= run_began_unix_ns
    if before is not None and waits and request.changes and (decided is None or decided.number < before.number):
        request = dataclasses.replace(request, steps=request.steps or before.steps, level=request.level or before.level)
    files.write(request)
    return request


def _answers(files: ControlFiles, ranks: Ranges, request: Request) -> list[Answer]:
    """Return what the ranks that record have answered; a claim of more ranks than there are costs nothing."""
    found = [answer for answer in files.answers() if answer.number == request.number]
    return [answer for answer in found if any(low <= answer.rank <= high for low, high in ranks)]


def _silent(ranks: Ranges, answers: list[Answer]) -> Ranges:
    return without(ranks, (answer.rank for answer in answers))


def _waited(end_s: float, found: Callable[[], Any]) -> Any:
    while not (result := found()) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return result


def _report_status(files: ControlFiles, ranks: Ranges, request: Request, end_s: float) -> dict[str, Any]:
    _waited(end_s, lambda: not _silent(ranks, _answers(files, ranks, request)))
    answers = _answers(files, ranks, request)
    for answer in answers:
        echo(f"rank {answer.rank}: begins step {answer.step}, records steps {answer.steps} at level {answer.level}")
    shown = [{name: getattr(answer, name) for name in ("rank", "step", "steps", "level")} for answer in answers]
    return {"ranks": shown, "silent": ranges_text(_silent(ranks, answers))}


def _report_change(files: ControlFiles, ranks: Ranges, request: Request, end_s: float) -> dict[str, Any]:
    def outcome() -> Decision | Answer | None:
        decision = files.decision()
        if decision is not None and decision.number == request.number:
            return decision
        return next((answer for answer in _answers(files, ranks, request) if answer.error), None)

    found = _waited(end_s, outcome)
    if isinstance(found, Answer):
        raise ConfigError(f"rank {found.rank} cannot: {found.error}")
    if found is None:
        return {"silent": ranges_text(_silent(ranks, _answers(files, ranks, request)) or ranks)}
    texts = [f"{name} {text}" for name in ("steps", "level") if (text := getattr(request, name)) is not None]
    count = sum(high - low + 1 for low, high in ranks)
    echo(f"from step {found.from_step} on, {counted(count, 'rank')} record{'s' * (count == 1)} {', '.join(texts)}")
    return {"from_step": found.from_step, "silent": ranges_text((rank, rank) for rank in sorted(set(found.silent)))}


def _miss(ranks: Ranges) -> None:
    if ranks:
        raise MissingDataError(
            f"no answer from ranks {ranges_text(ranks).replace('|', ', ')}: they answer when a step ends. "
            "Check that the program runs and ends steps. The request stays until a step ends"
        )
