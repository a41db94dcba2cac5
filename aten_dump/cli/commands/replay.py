"""``aten-dump replay``: run recorded ops again and find the one that is off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from ...analysis.repeat import Repeated, repeat
from ...analysis.replay import Replay, has_ops, replay, replay_all
from ...analysis.rerun.repro_script import repro_script
from ...dump import Call, RankDump
from ...errors import StoreError, UnfinishedError
from ...report.replay import all_lines, answer_lines, first_suspect, ops_table, repeated_lines, what_next
from ...whole_files import refuse_to_replace_part_of
from ..completion import complete_name
from ..console import count_progress, echo, line_limit, print_lines, print_table, say_left_out
from ..ending import never_end_well
from ..formats import as_json, format_option, print_record
from ..options import allow_ops_option, dump_argument, end_if_never_fired, limit_option, open_all, place_options
from ..places import Place
from ..workers import is_shared_out, jobs_option, workers


@click.command("replay")
@dump_argument
@click.argument("name", required=False, shell_complete=complete_name)
@place_options
@click.option("--device", default="cpu", show_default=True, help="Device to run the ops on: cpu, cuda, npu.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "recorded"]),
    default="float64",
    show_default=True,
    help="float64: judge each op against a reference; recorded: show which results are reproduced bit by bit.",
)
@click.option("--emit", type=click.Path(path_type=Path, dir_okay=False), help="Write a script that runs NAME alone.")
@click.option("--all", "everything", is_flag=True, help="Replay all steps and ranks; equal ones share one line.")
@click.option(
    "--repeat",
    "times",
    type=click.IntRange(min=2),
    metavar="N",
    help="Run each op N times in the recorded dtypes and name those whose bits change.",
)
@format_option("replay", "replay-repeat", more=" (with --repeat)")
@allow_ops_option
@jobs_option
@limit_option(20, "rows of the table")
def command(
    dump: Path,
    name: str | None,
    step: int | None,
    rank: int | None,
    device: str,
    dtype: str,
    emit: Path | None,
    everything: bool,
    times: int | None,
    form: str,
    allow_ops: tuple[str, ...],
    jobs: int,
    limit: int | None,
) -> None:
    """Run the aten ops of one step and rank again, each from its own recorded inputs, the worst first.

    An op that is wrong comes first even if every op after it is wrong too. NAME is an aten call, or an API or module
    call whose aten ops are replayed.

    Exit code 0: no op is off; 1: one is; 2: nothing could be replayed; 3: the tool itself failed.

    \b
    Examples
      aten-dump replay dump
      aten-dump replay dump Module.transformer.h.0.0.forward
      aten-dump replay dump Aten.addmm.3.forward --emit repro.py
      aten-dump replay dump --dtype recorded
      aten-dump replay dump --all --jobs 8 --format json
      aten-dump replay dump --repeat 20 --device cuda
    """  # noqa: D301 - \b keeps click from filling lines
    _check_options((name, step, rank, emit), everything=everything, shared_out=is_shared_out(jobs), times=times)
    judged = None if dtype == "recorded" else torch.float64
    how: dict[str, Any] = {"device": device, "dtype": judged, "allow_ops": allow_ops}
    if everything:
        _replay_all(dump, jobs, partial(replay_all, **how), dtype, form)
        return
    opened = (shown := Place(dump, step, rank)).rank
    if times is not None:
        calls = opened if name is None else _aten_calls(opened[name])
        with count_progress("running") as update:
            _print_repeated(repeat(calls, times, device=device, allow_ops=allow_ops, progress=update), form)
    elif emit is not None:
        _emit(opened, name, emit, allow_ops, form)
    elif name is None and not len(opened.calls):
        _print_records(dump, [], form)
        echo(f"{opened.where} has no calls: nothing was to be replayed")
    else:
        found = _print_replay(shown, name, partial(replay, **how), line_limit(limit, default=20), form)
        _exit(dump, [found], dtype, form)


def _print_replay(shown: Place, name: str | None, run: Callable[..., Replay], most: int | None, form: str) -> Replay:
    """Replay one step and rank, or the ops of one of its calls; print what was found, and return it."""
    others = shown.recorded and f"{shown.recorded}: --step and --rank replay another, --all replays all"
    lines = [others] if name is None else [*shown.other_steps(name)]
    with count_progress("replaying") as update:
        found = run(shown.rank if name is None else _aten_calls(shown.rank[name]), progress=update)
    if form == "text":
        _print(found, lines, most)
    return found


def _check_options(one: tuple[Any, ...], *, everything: bool, shared_out: bool, times: int | None) -> None:
    """Check that options go together; `one` are those for one call, step or rank: NAME, --step, --rank, --emit."""
    if everything and any(option is not None for option in one):
        raise click.UsageError("--all takes all steps and ranks: leave out NAME, --step, --rank and --emit")
    if shared_out and not everything:
        raise click.UsageError("--jobs and --scheduler share out steps and ranks: give --all with them")
    if times is not None and (everything or one[-1] is not None):
        raise click.UsageError("--repeat runs the ops of one step and rank: leave out --all and --emit")


def _print(found: Replay, others: list[str], most: int | None) -> None:
    print_lines([*answer_lines(found), *filter(None, others)])
    if found.ops:
        echo()
        print_table(ops_table(found, most))
        say_left_out(len(found.ops) - min(len(found.ops), most or len(found.ops)), "rows")
        echo()
        print_lines(what_next(found))


def _print_repeated(found: Repeated, form: str) -> None:
    if form == "json":
        print_record(found.to_json())
    else:
        print_lines(repeated_lines(found))
    if found.lacks:
        never_end_well()
    if found.guilty:
        raise click.exceptions.Exit(1)
    if not found.ops:
        raise click.exceptions.Exit(2)


def _print_records(dump: Path, found: list[Replay], form: str, emitted: Path | None = None) -> None:
    if form == "json":
        print_record({"path": dump, "replays": [_record(one) for one in found], "emitted": emitted})


def _record(found: Replay) -> dict[str, Any]:
    suspects = {op.call_id for op in found.suspects}
    ops = [{**as_json(op), "is_suspect": op.call_id in suspects} for op in found.ops]
    return {**as_json(found), "ops": ops}


def _replay_all(dump: Path, jobs: int, run: Callable[..., list[Replay]], dtype: str, form: str) -> None:
    """Replay all steps and ranks, and say which have no ops."""
    opened = open_all(dump)
    end_if_never_fired(opened)
    unfinished = ""
    with workers(jobs) as executor, count_progress("replaying") as update:
        try:
            replays = run(opened, executor, progress=update)
        except UnfinishedError as error:
            replays, unfinished = error.done, str(error)
    print_lines(all_lines(replays))
    first = first_suspect(replays)
    print_lines([] if first is None else what_next(first))
    empty = [rank.where for rank in opened.all_ranks() if not has_ops(rank)]
    print_lines(f"{where} has no aten calls: skipped" for where in empty)
    if unfinished:
        echo(unfinished, err=True)
        never_end_well()
    _exit(dump, replays, dtype, form)


def _exit(dump: Path, replays: list[Replay], dtype: str, form: str) -> None:
    """Print the records, where these are asked for, and end with the exit code.

    2: nothing could be replayed, or something was damaged; 1: an op is off.
    """
    _print_records(dump, replays, form)
    if any(found.lacks for found in replays):
        never_end_well()
    if not any(found.ops for found in replays):
        raise click.exceptions.Exit(2)
    if any(found.suspects or found.layers or (dtype == "recorded" and found.unequal) for found in replays):
        raise click.exceptions.Exit(1)


def _aten_calls(call: Call) -> list[Call]:
    """Return a call if it is of an aten op, else those that ran in it."""
    if call.kind == "aten":
        return [call]
    return [inner for child in call.children for inner in _aten_calls(child)]


def _emit(rank: RankDump, name: str | None, path: Path, allow_ops: tuple[str, ...], form: str) -> None:
    if name is None:
        raise click.UsageError(f"--emit needs the NAME of an aten call: `{rank.command('replay')}` lists them")
    refuse_to_replace_part_of([rank.directory.parent.parent], path)
    try:
        path.write_text(repro_script(rank[name], allow_ops=allow_ops), encoding="ascii")
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --emit") from error
    _print_records(rank.directory.parent.parent, [], form, path)
    own = "" if rank[name].kernel is None else ", or with --kernel to compile and run the kernel's own code"
    echo(f"wrote {path}: run it with `python {path}`, or with --float64 for the reference{own}")
