"""``aten-dump weights``: which parameter of one checkpoint became which of another."""

from __future__ import annotations

from pathlib import Path

import click

from ...analysis.checkpoints.found_weights import Weights
from ...analysis.checkpoints.stored_tensors import open_checkpoint
from ...analysis.checkpoints.weight_records import COLUMNS
from ...analysis.weights import weights
from ...report.value_rows import write_csv, write_json
from ...whole_files import refuse_to_replace_part_of
from ..console import count_progress, echo, print_lines
from ..files import opened


@click.command("weights")
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("baseline", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="Text with one line for layers of one relation; or a row for each tensor.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: stdout]")
def command(target: Path, baseline: Path, form: str, output: Path | None) -> None:
    """Match the weights of TARGET to those of BASELINE by their contents; names do not matter.

    Each is a safetensors file, a folder or an index of several, a state dict of torch.save (.pt, .pth, .bin), or a
    dump. Nothing in a file is run. A match may be equal, cast, transposed, permuted, fused, split, padded, tied,
    scaled, moved by a constant or merged of several weights (LoRA, norms). Other weights are altered, exchanged, extra
    or missing. The answer names weights that are laid out unlike the same weight of other layers.

    Exit code 0: every weight is matched; 1: one is altered, exchanged, extra or missing; 2: a file cannot be read, or a
    dump is incomplete; 3: the tool itself failed.

    \b
    Examples
      aten-dump weights ported.safetensors original/
      aten-dump weights merged/ base_and_adapter.pt --format json
      aten-dump weights ported_dump original_dump
    """  # noqa: D301 - \b keeps click from filling lines
    if output is not None:
        refuse_to_replace_part_of([target, baseline], output)
    sides = open_checkpoint(target), open_checkpoint(baseline)
    for line in (*sides[0].not_whole, *sides[1].not_whole):  # first, as what is left may hold no weight
        echo(line, err=form != "text" or output is not None)
    with count_progress("reading") as update:
        found = weights(*sides, progress=update)
    _write(found, form, output)
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _write(found: Weights, form: str, output: Path | None) -> None:
    if form == "text" and output is None:
        print_lines(found.answer().splitlines()[len(found.not_whole) :])
        return
    with opened(output) as file:
        if form == "text":
            file.write(f"{found.answer()}\n")
        else:
            {"csv": write_csv, "json": write_json}[form]((weight.row for weight in found), COLUMNS, file)
