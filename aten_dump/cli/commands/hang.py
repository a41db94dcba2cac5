"""``aten-dump hang``: who waits where in a run that hangs."""

from __future__ import annotations

from pathlib import Path

import click

from ...analysis.hang import Hang, hang
from ...choices import PATIENCE_S
from ...dump import open_dump
from ...store.objects.url_path import place_of
from ..console import count_progress, print_lines
from ..formats import format_option, print_record
from ..options import dump_argument
from ..workers import jobs_option, workers


@click.command("hang")
@dump_argument
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE_S,
    show_default=True,
    help="A rank that lets others wait for less than this many seconds is slow; after that it is stuck.",
)
@click.option(
    "--flight-recorder",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trace of torch's flight recorder, whose name ends in the rank; can be repeated. Nothing in it is run.",
)
@jobs_option
@format_option("hang")
def command(dump: Path, patience: float, traces: tuple[Path, ...], jobs: int, form: str) -> None:
    """Find which rank waits for which in the run that writes DUMP. The run may go on, or may have been killed.

    Findings, the cause first: ranks that call different collectives, or skip one; ranks that wait for each other; ranks
    that raised, ended, were killed or are silent while others wait; and ranks that are slow or stuck, with their line.
    All steps on file are read.

    Exit code 0: no rank waits, or a rank is only slow; 1: there is a finding; 2: nothing could be read.

    \b
    Examples
      aten-dump hang dump
      aten-dump hang dump --patience 300 --format json
      aten-dump hang dump --flight-recorder /tmp/nccl_trace_rank_0 --flight-recorder /tmp/nccl_trace_rank_1
    """  # noqa: D301 - \b keeps click from filling lines
    with workers(jobs) as executor, count_progress("reading") as update:
        found = hang(
            open_dump(place_of(dump).absolute()),
            patience_s=patience,
            flight_recorder=traces,
            executor=executor,
            progress=update,
        )
    print_hang(found, form)


def print_hang(found: Hang, form: str = "text") -> None:
    """Print what was found, and end the command with its exit code."""
    if form == "json":
        print_record(found.as_dict())
    else:
        print_lines(found.answer().splitlines())
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)
