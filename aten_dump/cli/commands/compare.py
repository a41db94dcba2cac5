"""``aten-dump compare``: the first op that is wrong, then the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...analysis.compare import compare, compare_recompute
from ...analysis.compare_at import compare_at
from ...analysis.comparison import Comparison
from ...analysis.comparison_rows import COLUMNS, comparison_rows
from ...analysis.evidence.findings import Row
from ...analysis.evidence.user_rules import IGNORE, Rule, parse_rule, read_rules
from ...choices import STATUS_TEXTS
from ...report.comparison import comparison_table, write_parquet
from ...report.value_rows import write_csv, write_json
from ...whole_files import refuse_to_replace_part_of
from ..console import count_progress, echo, line_limit, print_lines, print_table, say_left_out
from ..files import opened
from ..formats import print_record
from ..options import allow_ops_option
from ..workers import jobs_option, workers

_FORMATS: Final = ("answer", "summary", "table", "csv", "json", "parquet")
_path = click.Path(path_type=Path)


@click.command("compare")
@click.argument("target", type=_path)
@click.argument("baseline", type=_path, required=False)
@click.option("--recompute", is_flag=True, help="Compare recomputed calls with their originals within one dump.")
@click.option(
    "--at",
    metavar="NAME=NAME",
    help="Explain the gap between one value of each dump, named as in DumpMode.save or by its slot.",
)
@click.option("--step", help="Step of both, or TARGET:BASELINE as in 3:0.  [default: all in common]")
@click.option("--rank", help="Rank of both, or TARGET:BASELINE.  [default: all in common]")
@click.option(
    "--control", type=_path, help="Dump of a second, correct run of BASELINE: its distance is the noise floor."
)
@click.option("--mapping", type=_path, help="YAML file with renamed modules and ops, and with pairs of calls.")
@click.option(
    "--write-mapping", type=_path, help="Write the mapping that was found; correct it and pass it to --mapping."
)
@click.option("--rules", type=_path, help="YAML file with a list of '- pattern: predicate', tried in order.")
@click.option(
    "--rule", "more_rules", multiple=True, help="One rule, such as 'softmax: rel_l2 <= 1e-2'; can be repeated."
)
@click.option("--ignore", multiple=True, help="Regular expression: results of these calls or ops do not count.")
@click.option("--no-replay", is_flag=True, help="Do not replay ops in float64; estimate from distances.")
@click.option("--no-data", is_flag=True, help="Read no tensors; compare hashes and statistics.")
@click.option(
    "--together/--each-rank",
    default=None,
    help="Join the ranks of each dump, or compare rank by rank.  [default: join if the layouts differ]",
)
@click.option(
    "--batch-shard", type=int, metavar="DIM", help="Join the ranks; the split of the batch is found, whatever DIM is."
)
@click.option(
    "--precision-budget",
    type=click.FloatRange(0, min_open=True),
    help="Relative L2 that a loss, gradient or output may be away from its float64 value.  [default: 0.1]",
)
@click.option(
    "--device", default="cpu", show_default=True, help="Device that evaluates heavy ops in float64: cuda, npu."
)
@allow_ops_option
@jobs_option
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="answer",
    show_default=True,
    help="The answer in sentences, in full or as a summary; or the table of all compared values.",
)
@click.option("--status", type=click.Choice(list(STATUS_TEXTS)), help="Show only rows of this status.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write the table to.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of rows in a table; 0: all.")
def command(target: Path, baseline: Path | None, recompute: bool, form: str, at: str | None, **options: Any) -> None:
    """Compare dump TARGET with dump BASELINE and name the first op that is wrong.

    Exit code 0: they agree, bitwise or within rounding; 1: they differ; 2: they could not be compared; 3: the tool
    itself failed.

    \b
    Examples
      aten-dump compare npu_dump gpu_dump
      aten-dump compare npu_dump gpu_dump --step 3:0 --format csv --output rows.csv
      aten-dump compare a b --rule 'softmax: rel_l2 <= 1e-2 and cosine > 0.999'
      aten-dump compare tensor_parallel_dump single_dump
      aten-dump compare fsdp_dump single_dump
      aten-dump compare ported_dump original_dump
      aten-dump compare --recompute dump
      aten-dump compare rollout_dump trainer_dump --at logprobs=logp
    """  # noqa: D301 - \b keeps click from filling lines
    if recompute == (baseline is not None):
        raise click.UsageError("give TARGET and BASELINE, or --recompute and one dump")
    if at is not None:
        _compare_at(target, baseline, at, form, options)
        return
    if form in ("answer", "summary") and (options["output"] or options["status"]):
        raise click.UsageError("--output and --status are of the table: give --format table, csv, json or parquet")
    if form == "table" and options["output"]:
        raise click.UsageError("--output needs --format csv, json or parquet; a table goes to the terminal")
    if form == "parquet" and options["output"] is None:
        raise click.UsageError("--format parquet needs --output")
    dumps = [path for path in (target, baseline, options["control"]) if path is not None]
    for path in filter(None, (options["output"], options["write_mapping"])):
        refuse_to_replace_part_of(dumps, path)
    found = _compare(target, baseline, options)
    if options["write_mapping"] is not None:
        found.mapping.write(options["write_mapping"])
    to_stdout = form in ("csv", "json") and options["output"] is None
    if form == "summary":
        print_record(found.summary())
    else:
        echo(found.answer(), err=to_stdout)
    _write(found, form, options["status"], options["output"], options["limit"])
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


_BESIDE_AT: Final = ("step", "rank", "allow_ops", "jobs", "limit")  # options that --at takes, or may be given with it


def _compare_at(target: Path, baseline: Path | None, at: str, form: str, options: dict[str, Any]) -> None:
    given = {name: one for name, one in options.items() if one and (name, one) != ("device", "cpu")}
    others = [f"--{name.replace('_', '-')}" for name in given if name not in _BESIDE_AT]
    if baseline is None or form not in ("answer", "summary", "json") or others:
        raise click.UsageError(
            f"--at takes two dumps, --step, --rank and --allow-ops; not {', '.join(others) or 'this'}"
        )
    names = {name: options[name] for name in ("step", "rank", "allow_ops")}
    found = compare_at(target, baseline, at, **names)
    if form == "answer":
        print_lines(found.answer().splitlines())
    else:
        print_record(found.to_json())
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _compare(target: Path, baseline: Path | None, options: dict[str, Any]) -> Comparison:
    with workers(options["jobs"]) as executor, count_progress("comparing") as update:
        if baseline is None:
            replays = not options["no_replay"]
            allowed = options["allow_ops"]
            return compare_recompute(target, replay=replays, allow_ops=allowed, executor=executor, progress=update)
        rules = [Rule(pattern, IGNORE) for pattern in options["ignore"]]
        rules += [parse_rule(text) for text in options["more_rules"]]
        return compare(
            target,
            baseline,
            step=options["step"],
            rank=options["rank"],
            control=options["control"],
            mapping=options["mapping"],
            rules=[*rules, *(read_rules(options["rules"]) if options["rules"] else ())],
            replay=not options["no_replay"],
            data=not options["no_data"],
            together=options["together"],
            batch_shard=options["batch_shard"],
            allow_ops=options["allow_ops"],
            precision_budget=options["precision_budget"],
            device=options["device"],
            executor=executor,
            progress=update,
        )


def _write(found: Comparison, form: str, status: str | None, output: Path | None, limit: int | None) -> None:
    if form in ("answer", "summary"):
        return
    rows: Iterator[Row] = (row for row in found.rows if status is None or row.status == status)
    if form == "table":
        table, left_out = comparison_table(rows, line_limit(limit))
        echo()
        print_table(table)
        say_left_out(left_out, "rows")
    elif form == "parquet":
        assert output is not None
        write_parquet(comparison_rows(rows), COLUMNS, output)
    else:
        with opened(output) as file:
            {"csv": write_csv, "json": write_json}[form](comparison_rows(rows), COLUMNS, file)
