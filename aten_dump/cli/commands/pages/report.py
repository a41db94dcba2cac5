"""``aten-dump report``: one HTML file to look at and to mail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from .... import __version__
from ....analysis.compare import compare
from ....analysis.comparison import Comparison
from ....choices import MOST_SHOWN_CALLS
from ....dump import Dump, RankDump, open_dump
from ....dump.known_tables import read_in_turn
from ....errors import AtenDumpError, MissingDataError
from ....report.html.document import write_report
from ....report.html.payload.sections import Subject
from ....report.units import format_bytes
from ....whole_files import refuse_to_replace_part_of
from ...console import count_progress, echo, print_lines
from ...ending import never_end_well
from ...formats import format_option, print_record
from ...in_turn import ReadInTurn
from ...options import dump_argument, open_all
from ...workers import jobs_option, workers


@click.command("report")
@dump_argument
@click.argument("baseline", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    help="File to write.",
)
@click.option("--step", "steps", type=int, multiple=True, help="Show this step call by call; can be repeated.")
@click.option("--rank", "ranks", type=int, multiple=True, help="Show this rank call by call; can be repeated.")
@click.option(
    "--max-calls",
    type=click.IntRange(min=1),
    default=MOST_SHOWN_CALLS,
    show_default=True,
    help="Maximum number of calls to show; further steps and ranks are summed up.",
)
@format_option("report")
@jobs_option
def command(
    dump: Path,
    baseline: Path | None,
    output: Path,
    steps: tuple[int, ...],
    ranks: tuple[int, ...],
    max_calls: int,
    form: str,
    jobs: int,
) -> None:
    """Write DUMP, or its comparison with BASELINE, as one HTML file that needs no network.

    Exit code 0: the file was written, whatever it shows; 2: it could not be written, or a dump is incomplete.

    \b
    Examples
      aten-dump report dump
      aten-dump report npu_dump gpu_dump -o report.html
      aten-dump report dump --step 3 --rank 0
    """  # noqa: D301 - \b keeps click from filling lines
    refuse_to_replace_part_of([dump, *([baseline] if baseline else [])], output)  # before the work is done
    reading = ReadInTurn(open_dump(dump), steps=steps or None, ranks=ranks or None)
    subject = Subject(reading.dump, __version__, steps=steps, ranks=ranks, most_calls=max_calls)
    try:
        _check_places(reading.dump, steps, ranks)
        if baseline is not None:
            reading.say_not_whole()  # before the work is done
            subject = replace(subject, baseline=open_all(baseline), comparison=compared(dump, baseline, jobs))
        nbytes = _write(subject, reading, output)
    except AtenDumpError:
        reading.say_not_whole()
        raise
    reading.say_not_whole()
    if form == "json":
        print_record({"path": output, "bytes": nbytes})
    echo(f"wrote {output} ({format_bytes(nbytes)}): open it in a browser")


def _write(subject: Subject, reading: ReadInTurn, output: Path) -> int:
    """Write a report, and note what the steps and ranks of the dump lack as they are read."""

    def read(dump: Dump) -> Iterator[RankDump]:
        return reading.each(dump.all_ranks()) if dump is reading.dump else read_in_turn(dump)

    with count_progress("reporting") as update:
        return write_report(replace(subject, progress=update, read=read), output)


def _check_places(dump: Dump, steps: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    """Raise where a step or rank was asked for that was not recorded."""
    for step in steps:
        dump.step(step)
    for rank in ranks:
        if rank not in dump.ranks:
            recorded = ", ".join(map(str, dump.ranks)) or "none"
            raise MissingDataError(f"rank {rank} is not in {dump.path}; recorded ranks: {recorded}")


def compared(dump: Path, baseline: Path, jobs: int) -> Comparison:
    """Compare two dumps for a page, and keep the command from ending well if ranks were not compared."""
    with workers(jobs) as executor, count_progress("comparing") as update:
        found = compare(dump, baseline, executor=executor, progress=update)
    if found.not_whole:  # what the dumps lack was said when they were opened
        print_lines(found.unfinished)
        never_end_well()
    return found
