"""``aten-dump report``: one HTML file to look at and to mail."""

from __future__ import annotations

from pathlib import Path

import click

from .... import __version__
from ....analysis.compare import compare
from ....analysis.comparison import Comparison
from ....choices import MOST_SHOWN_CALLS
from ....dump import Dump
from ....errors import MissingDataError
from ....report.html.document import write_report
from ....report.html.payload.sections import Subject
from ....report.units import format_bytes
from ....whole_files import refuse_to_replace_part_of
from ...console import count_progress, echo, print_lines
from ...ending import never_end_well
from ...formats import format_option, print_record
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
@click.option("--step", "steps", type=int, multiple=True, help="Show this step call by call; may be given again.")
@click.option("--rank", "ranks", type=int, multiple=True, help="Show this rank call by call; may be given again.")
@click.option(
    "--max-calls",
    type=click.IntRange(min=1),
    default=MOST_SHOWN_CALLS,
    show_default=True,
    help="Most calls to show; steps and ranks beyond are only summed up.",
)
@format_option("Lines to read, or one object as docs/json/report.schema.json has it.")
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

    Exit code 0 when it was written, whatever it shows; 2 when it could not be, or a dump is not whole.

    \b
    Examples
      aten-dump report dump
      aten-dump report npu_dump gpu_dump -o report.html
      aten-dump report dump --step 3 --rank 0
    """  # noqa: D301 - \b keeps click from filling lines
    refuse_to_replace_part_of([dump, *([baseline] if baseline else [])], output)  # before the work is done
    target = open_all(dump, steps=steps or None, ranks=ranks or None)
    _check_places(target, steps, ranks)
    base = None if baseline is None else open_all(baseline)
    comparison = None if baseline is None else compared(dump, baseline, jobs)
    with count_progress("reporting") as update:
        subject = Subject(target, __version__, base, comparison, steps, ranks, max_calls, update)
        nbytes = write_report(subject, output)
    if form == "json":
        print_record({"path": output, "bytes": nbytes})
    echo(f"wrote {output} ({format_bytes(nbytes)}): open it in a browser")


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
