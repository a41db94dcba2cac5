"""``aten-dump export``: a dump in the format of another tool."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...config import Selection
from ...dump.call_filter import Wanted
from ...export.job import Options, export_dump
from ...export.targets import targets
from ..console import count_progress, echo
from ..formats import format_option, print_record
from ..options import dump_argument, filter_options, open_all

_TARGETS = targets()
_TARGETS_TEXT = "\n".join(f"  {name:<12} {target.says}" for name, target in _TARGETS.items())


@click.command(
    "export",
    help=f"""Write DUMP in the format of another tool.

\b
Targets
{_TARGETS_TEXT}

Large tensors are written in parts. Until all is written, the name of OUT begins with a dot.

\b
Examples
  aten-dump export dump --to msprobe --out for-msprobe
  aten-dump export dump --to parquet --out tables
  aten-dump export dump --to hdf5 --out dump.h5 --step 3 --op layer_norm
  aten-dump export dump --to graph --out graph --sources .
""",
)
@dump_argument
@click.option("--to", type=click.Choice(list(_TARGETS)), required=True, help="Format to write.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File or folder to write.")
@click.option("--step", "steps", default="all", show_default=True, help="Steps to export: 3, '0|5-8'.")
@click.option("--rank", "ranks", default="all", show_default=True, help="Ranks to export: 0, '0|4-7'.")
@filter_options
@click.option(
    "--sources",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the program: graph shows its source lines.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing OUT.")
@format_option("export")
def command(
    dump: Path,
    to: str,
    out: Path,
    steps: str,
    ranks: str,
    wanted: Wanted,
    sources: Path | None,
    overwrite: bool,
    form: str,
) -> None:
    """Write a dump in the format of another tool."""
    opened = open_all(dump, steps=_chosen("steps", steps), ranks=_chosen("ranks", ranks))
    with count_progress(f"exporting to {to}") as progress:
        options = Options(steps, ranks, asdict(wanted), sources, overwrite)
        done = export_dump(opened, to, out, options, progress)
    if form == "json":
        print_record({"to": to, "path": done.path, "calls": done.calls, "left_out": done.left_out})
    echo(f"wrote {done.path}")
    if not done.calls:
        echo(f"{dump} has no call that {to} takes, so that it holds none", err=True)
    for what, count in done.left_out.items():
        echo(f"left out {count} {what}", err=True)


def _chosen(name: str, text: str) -> Selection | None:
    return None if text == "all" else Selection.parse(name, text, "export's ")
