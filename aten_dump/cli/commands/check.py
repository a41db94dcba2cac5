"""``aten-dump check``: what is almost surely wrong in a recorded step."""

from __future__ import annotations

from pathlib import Path

import click

from ...analysis.check import Checked, check, chosen_rules
from ...analysis.checks.rules import RULES
from ...dump import open_dump
from ...dump.shown.command_lines import next_line
from ...errors import MissingDataError
from ...report.table import Table, names, words
from ..console import echo, print_table
from ..formats import format_option, print_record
from ..options import end_if_never_fired, places_options


def _list_rules(form: str) -> None:
    if form == "json":
        rules = RULES.values()
        facts = [{"name": r.name, "summary": r.summary, "default": r.is_default, "needs": r.needs} for r in rules]
        print_record({"rules": facts})
        return
    table = Table(names("rule"), words("default"), names("what is wrong"))
    for rule in RULES.values():
        table.add_row(rule.name, "yes" if rule.is_default else "no", rule.summary)
    print_table(table)


@click.command("check")
@click.argument("dump", type=click.Path(path_type=Path), required=False)
@places_options
@click.option(
    "--select", metavar="RULES", help="Rules to run, separated by commas, or 'all'.  [default: the certain ones]"
)
@click.option("--ignore", metavar="RULES", help="Rules to leave out, separated by commas.")
@format_option("check", "check-rules")
@click.option("--rules", is_flag=True, help="List the rules and exit; no DUMP is needed.")
def command(
    dump: Path | None, select: str | None, ignore: str | None, form: str, rules: bool, **places: int | None
) -> None:
    """Find mistakes in the recorded steps of DUMP, each with its line. No baseline is needed.

    Examples of findings: a parameter without a gradient; gradients that are dropped, applied twice, clipped too late or
    still scaled; a loss of the wrong shape; numbers that half precision cannot hold; replicas that differ.
    `--rules` lists all rules.

    Exit code 0: no finding; 1: findings; 2: the dump cannot be read or is incomplete, or no rule could run.

    \b
    Examples
      aten-dump check dump
      aten-dump check dump --ignore dead-layer,same-batch
      aten-dump check dump --select all --format json
    """  # noqa: D301 - \b keeps click from filling lines
    if rules:
        _list_rules(form)
        return
    if dump is None:
        raise click.UsageError("Missing argument 'DUMP'.")
    wanted, unwanted = _split(select), _split(ignore)
    step, rank = places["step"], places["rank"]
    chosen_rules(wanted, unwanted)  # a wrong name is an error before anything is read
    opened = open_dump(dump)
    if step is None:
        end_if_never_fired(opened)
    else:
        opened.step(step)  # says what there is, where this one is not
    found = check(
        opened,
        select=wanted,
        ignore=unwanted,
        steps=None if step is None else (step,),
        ranks=None if rank is None else (rank,),
    )
    for line in found.not_whole:
        echo(line)
    if form == "json":
        print_record(found.to_json())
    else:
        _print(dump, found)
    if not found.is_judged:
        raise MissingDataError(f'no rule could judge {dump}; record a step with DumpConfig(level="mix", data="tensor")')
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _split(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _print(path: Path, found: Checked) -> None:
    for finding in found.findings:
        echo(str(finding))
    count = len(found.findings)
    where = f"{found.steps} recorded step/rank folder{'s' if found.steps != 1 else ''}"
    said = f"{count} finding{'s' if count != 1 else ''}" if count else "Nothing found"
    echo(f"{said} in {where}, by {len(found.rules)} rules.")
    reasons: dict[str, list[str]] = {}
    for one in found.not_run:
        reasons.setdefault(one.why, []).append(one.rule)
    for why, rules in reasons.items():
        echo(f"not judged: {', '.join(rules)}: {why}")
    if count:
        first = found.findings[0]
        echo(next_line("show", path, first.call, step=first.step, rank=first.rank))
