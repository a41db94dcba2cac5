"""What is damaged, cut or incomplete is said in the first line by every command, and never passed."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.analysis.pairing.user_mapping import Mapping
from aten_dump.analysis.replay import replay
from aten_dump.analysis.tasks import pair_calls
from aten_dump.cli.main import COMMANDS, main
from aten_dump.dump import RankDump
from aten_dump.store.records import CALL, COMMIT
from aten_dump.store.recovery import recover
from tests.analysis.wrong_ops import Wrong, zeroed
from tests.cli.commands.tiny import record
from tests.report.serve.server_process import Served
from tests.torture.changing import records_of, signed
from tests.torture.flipping import PASSING, SPOILS, index_of, record_pair

# What each command is given to answer something of a dump; "no dump" takes none, or records or mends one.
ARGUMENTS = {
    "ls": ["DUMP"], "show": ["DUMP"], "stats": ["DUMP"], "saved": ["DUMP"], "compare": ["DUMP", "BASELINE"],
    "replay": ["DUMP"], "nonfinite": ["DUMP"], "export": ["DUMP", "--to", "graph", "--out", "OUT"],
    "report": ["DUMP", "-o", "OUT"], "verify": ["DUMP"], "weights": ["DUMP", "BASELINE"],
    "check": ["DUMP"],
}  # fmt: skip
# Of serve there is a test of its own; hang is asked about runs that were cut short.
NOT_ASKED = {"run", "ctl", "serve", "config", "recover", "env", "hang"}
MORE = [
    ["compare", "BASELINE", "DUMP"], ["compare", "DUMP", "BASELINE", "--rank", "0"], ["compare", "--recompute", "DUMP"],
    ["replay", "DUMP", "--all"], ["nonfinite", "DUMP", "--step", "0", "--rank", "0"], ["report", "DUMP", "BASELINE", "-o", "OUT"],
    ["export", "DUMP", "--to", "graph", "--out", "OUT", "--step", "0"], ["verify", "DUMP", "--jobs", "2"],
    ["stats", "DUMP", "--format", "csv"], ["ls", "DUMP", "--details"], ["weights", "BASELINE", "DUMP"],
]  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return record_pair(tmp_path_factory.mktemp("pair"))


def spoilt(pair: tuple[Path, Path], how: str, into: Path, seed: int = 7) -> Path:
    shutil.copytree(pair[0], into)
    SPOILS[how](into, random.Random(seed))
    return into


def run(words: list[str], dump: Path, baseline: Path, out: Path) -> Result:
    places = {"DUMP": str(dump), "BASELINE": str(baseline), "OUT": str(out)}
    result = CliRunner().invoke(main, [places.get(word, word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def test_every_command_that_reads_a_dump_is_asked_here() -> None:
    assert set(ARGUMENTS) | NOT_ASKED == set(COMMANDS)
    for name in ARGUMENTS:
        folder = "commands.pages" if name == "report" else "commands"
        assert import_module(f"aten_dump.cli.{folder}.{name}").command.params[0].name in ("dump", "target")


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("command", ARGUMENTS)
def test_it_is_said_first_and_not_passed(command: str, how: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    dump = spoilt(pair, how, tmp_path / "dump")
    state = open_dump(dump).rank(0, 0).state
    assert state == ("damaged" if how == "flipped" else "interrupted")
    result = run([command, *ARGUMENTS[command]], dump, pair[1], tmp_path / "out")
    first = result.stdout.partition("\n")[0]
    assert result.exit_code in (1, 2)
    assert state in first or (command == "verify" and "cut short" in first), first
    assert not any(text in result.output for text in PASSING)
    assert any(char.isdigit() for char in first), "how much is missing"


@pytest.mark.parametrize("words", MORE, ids=" ".join)
def test_however_it_is_asked(words: list[str], pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run(words, spoilt(pair, "flipped", tmp_path / "dump"), pair[1], tmp_path / "out")
    assert result.exit_code in (1, 2) and "damaged" in result.output.partition("\n")[0], result.output
    assert not any(text in result.output for text in PASSING)


def test_data_for_another_program_stays_data(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run(["stats", "DUMP", "--format", "csv"], spoilt(pair, "flipped", tmp_path / "dump"), pair[1], tmp_path)
    assert result.stdout.startswith("step,rank,call") and "damaged" in result.stderr and result.exit_code == 2


def test_whole_dumps_are_passed(tmp_path: Path) -> None:
    dump, baseline = record(tmp_path / "dump"), record(tmp_path / "baseline")
    with_weights = record_pair(tmp_path / "pair")[1]
    for command, words in ARGUMENTS.items():
        sides = (with_weights, with_weights) if command == "weights" else (dump, baseline)
        result = run([command, *words], *sides, tmp_path / f"{command}.out")
        assert result.exit_code == 0, result.output
        assert not any(word in result.output for word in ("damaged (", "interrupted (", "not whole")), result.output


def test_what_is_there_already_can_show_a_difference(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The target was killed after its last call: all but the commit is there."""
    shutil.copytree(pair[0], tmp_path / "dump")
    index = index_of(tmp_path / "dump")
    index.write_bytes(signed([row for row in records_of(index) if row[0] != COMMIT]))
    for words in (["compare", "DUMP", "BASELINE"], ["nonfinite", "DUMP"]):
        result = run(words, tmp_path / "dump", pair[1], tmp_path)
        assert result.exit_code == 1 and "interrupted" in result.stdout.partition("\n")[0]


def test_a_step_that_is_whole_is_answered_beside_one_that_is_not(tmp_path: Path) -> None:
    dump, baseline = record(tmp_path / "dump", steps=2), record(tmp_path / "baseline", steps=2)
    index = dump / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-30])
    for words in (["compare", "DUMP", "BASELINE"], ["nonfinite", "DUMP"], ["replay", "DUMP"], ["show", "DUMP"]):
        assert run([*words, "--step", "0"], dump, baseline, tmp_path).exit_code == 0
        result = run([*words, "--step", "1"], dump, baseline, tmp_path)
        assert result.exit_code == 2 and "step 1 rank 0" in result.stdout.partition("\n")[0]
    assert run(["nonfinite", "DUMP"], dump, baseline, tmp_path).exit_code == 2


def test_an_index_that_cannot_be_read_at_all_hides_no_other(tmp_path: Path) -> None:
    dump = record(tmp_path / "dump", steps=2, nan=True)
    index = dump / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(b"\x00" + index.read_bytes()[1:])
    result = run(["ls", "DUMP"], dump, dump, tmp_path)
    assert result.exit_code == 2 and "is not an index" in result.stdout.partition("\n")[0]
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[2] for row in rows if row[:2] in (["0", "0"], ["1", "0"])] == ["complete", "damaged"]


def test_ls_never_calls_a_step_without_commit_complete(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for how in SPOILS:
        dump = spoilt(pair, how, tmp_path / how)
        for details in ("--details", "--no-details"):
            assert "complete " not in run(["ls", "DUMP", details], dump, dump, tmp_path).stdout


def test_show_of_an_empty_index_says_so(pair: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(pair[0], tmp_path / "dump")
    index_of(tmp_path / "dump").write_bytes(b"")
    first, second = run(["show", "DUMP"], tmp_path / "dump", pair[1], tmp_path).stdout.splitlines()
    assert "interrupted" in first and second.endswith("(step 0, rank 0) has no calls")


def test_serve_says_it_too(pair: tuple[Path, Path], tmp_path: Path) -> None:
    dump = spoilt(pair, "flipped", tmp_path / "dump")
    served = Served.__new__(Served)
    import subprocess
    import sys

    served.process = subprocess.Popen(
        [sys.executable, "-m", "aten_dump", "serve", str(dump)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert served.process.stdout is not None
    assert "damaged" in served.process.stdout.readline()
    assert "http://127.0.0.1" in served.process.stdout.readline()
    served.process.send_signal(signal.SIGINT)
    served.process.communicate(timeout=60)
    assert served.process.returncode == 2


# -- the public API


@pytest.mark.parametrize("how", SPOILS)
def test_no_function_passes_it_either(how: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    for seed in range(2):
        dump = spoilt(pair, how, tmp_path / f"dump{seed}", seed)
        for sides in ((dump, pair[1]), (pair[1], dump), (dump, pair[0])):
            found = compare(*sides)
            assert found.verdict in ("different", "incomparable") and found.exit_code in (1, 2)
            assert found.not_whole and found.answer().startswith(found.not_whole[0])
            assert "agree" not in found.answer() and "agree" not in found.headline
        rank = open_dump(dump).rank(0, 0)
        assert rank.state != "complete" and rank.missing
        assert find_nonfinite(rank).lacks == rank.lacks
        if len(rank.calls.filter(kind="aten")):
            assert replay(rank).lacks.startswith(rank.state)


def test_a_cut_step_is_not_accused_of_what_it_had_no_time_for(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The program was killed; what it recorded is bit by bit what the whole recording has."""
    data = index_of(pair[0]).read_bytes()
    for part in (0.5, 0.65, 0.75, 0.8, 0.85, 0.9):
        dump = tmp_path / f"{part}"
        shutil.copytree(pair[0], dump)
        index_of(dump).write_bytes(data[: int(len(data) * part)])
        for target, baseline in ((dump, pair[0]), (pair[0], dump)):
            assert compare(target, baseline).verdict == "incomparable", compare(target, baseline).answer()
        recover(index_of(dump).parent)
        assert compare(dump, pair[0]).verdict == "incomparable", compare(dump, pair[0]).answer()


def test_a_call_whose_caller_was_cut_off_is_not_taken_for_another(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A caller is recorded after what it calls: without it, ops of one kind would be counted past each other."""
    rows = [row for row in records_of(index_of(pair[0])) if row[0] != COMMIT]
    calls = {row[1]: at for at, row in enumerate(rows) if row[0] == CALL}
    updates = [at for at, row in enumerate(rows) if row[0] == CALL and at < calls.get(row[2], 0) and row[6] == 3]
    assert len(updates) > 2
    for at in updates:
        dump = tmp_path / f"{at}"
        shutil.copytree(pair[0], dump)
        index_of(dump).write_bytes(signed(rows[: at + 1]))
        cut, whole = (open_dump(path).rank(0, 0) for path in (dump, pair[0]))
        found = {one.target.name: one.baseline.name for one in pair_calls(cut, whole, Mapping())}
        assert len(found) > at // 10 and found == {name: name for name in found}


def products(path: Path, *, turned: bool) -> Path:
    """Record two independent products and their gradients, `turned` in the other order."""
    weights = [torch.linspace(-n, n, 64).reshape(8, 8).requires_grad_() for n in (1.0, 2.0)]
    x = torch.linspace(0, 1, 64).reshape(8, 8)
    with DumpMode(DumpConfig(path, data="full")):
        made = [x @ weight.t() for weight in (weights[::-1] if turned else weights)]
        (made[turned] - 3 * made[not turned]).square().mean().backward()
    return path


def cuts(dump: Path, folder: Path) -> Iterator[Path]:
    """Yield a dump without its last calls, one more each time; the bytes of small tensors have come already."""
    rows = [row for row in records_of(index_of(dump)) if row[0] != COMMIT]
    while CALL in {row[0] for row in rows}:
        rows.pop(max(at for at, row in enumerate(rows) if row[0] == CALL))
        shutil.copytree(dump, folder / f"{len(rows)}")
        index_of(folder / f"{len(rows)}").write_bytes(signed(rows))
        yield folder / f"{len(rows)}"


def test_a_cut_step_is_not_accused_where_another_order_pairs_it_wrongly(tmp_path: Path) -> None:
    """Calls of one kind are paired as they come; which is whose counterpart nobody knows while some are missing."""
    one, other = products(tmp_path / "one", turned=False), products(tmp_path / "other", turned=True)
    assert compare(one, other).exit_code == 0
    not_proven = 0
    for dump in islice(cuts(one, tmp_path), 0, None, 6):
        for found in (compare(dump, other), compare(other, dump)):
            assert found.exit_code == 2, found.answer()
            not_proven += "not proven, as its counterpart may be missing: Aten." in found.answer()
    assert not_proven


def test_a_kernel_that_is_wrong_in_a_cut_step_is_named(tmp_path: Path) -> None:
    """Its own inputs prove it, whatever is missing."""
    right = products(tmp_path / "right", turned=False)
    with Wrong(torch.ops.aten.mm.default, 1, result=lambda made: zeroed(made, 5)):
        wrong = products(tmp_path / "wrong", turned=False)
    found = compare(next(cuts(wrong, tmp_path)), right)
    assert found.exit_code == 1
    assert "First cause: Aten.mm.1.forward" in found.answer()
    assert "its result is wrong for its inputs" in found.answer()


@pytest.mark.parametrize("read", [find_nonfinite, replay])
def test_damage_that_is_met_while_bytes_are_read_counts(read: object, tmp_path: Path) -> None:
    dump = record(tmp_path / "dump", statistics=["mean"])
    shard = next(dump.rglob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    for at in range(len(data) - 700, len(data), 100):
        data[at] ^= 1
    shard.write_bytes(data)
    rank = open_dump(dump).rank(0, 0)
    assert isinstance(rank, RankDump) and rank.state == "complete", "the index does not tell"
    assert "does not have its checksum" in read(rank).lacks  # type: ignore[operator]


def test_of_two_that_differ_a_damaged_shard_is_not_passed(tmp_path: Path) -> None:
    dump, baseline = record(tmp_path / "dump", wrong=True), record(tmp_path / "baseline")
    shard = next(dump.rglob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    for at in range(len(data) - 700, len(data), 100):
        data[at] ^= 1
    shard.write_bytes(data)
    result = run(["compare", "DUMP", "BASELINE"], dump, baseline, tmp_path)
    assert result.exit_code == 2 and "checksum" in result.output.partition("\n")[0]
