from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import click
import pytest
import torch

import aten_dump
from aten_dump.cli.main import COMMANDS, main
from aten_dump.dump import open_dump
from aten_dump.dump.index.summary import find_commit, summarize
from tests.checkout import ROOT
from tests.cli.conftest import Run
from tests.dump.building import Builder
from tests.dump.scenario import linear_step


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert re.search(r"Examples\n +aten-dump " + name, result.stdout)
    assert name in run("--help").stdout


def test_ls(run: Run, dump: Path) -> None:
    result = run("ls", dump)
    assert result.exit_code == 0
    assert "2 steps, 1 rank" in result.stdout
    assert "versions: torch=2.13.0" in result.stdout
    rows = words(result.stdout)
    head = next(row for row in rows if row[:2] == ["step", "rank"])
    assert head[2:] == [
        "state",
        "calls",
        "aten",
        "api",
        "module",
        "node",
        "values",
        "index",
        "shards",
        "shard",
        "files",
    ]
    assert [row[:9] for row in rows if row[0] in "35"] == [
        [step, "0", "complete", "10", "5", "3", "1", "1", "9"] for step in "35"
    ]
    assert "1 kernel launched by hand was not seen" in result.stdout


def test_ls_without_details_reads_no_whole_index(run: Run, dump: Path) -> None:
    """Damage in the middle of an index is not even seen."""
    path = dump / "step3" / "rank0" / "index.msgpack"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :][:50] = bytes(50)
    content[600:650] = b"\xc1" * 50
    path.write_bytes(content)
    result = run("ls", dump, "--no-details")
    assert result.exit_code == 0
    assert [row[:4] for row in words(result.stdout) if row[0] in "35"] == [
        ["3", "0", "unchecked", "10"],
        ["5", "0", "unchecked", "10"],
    ]
    assert "unchecked: only the two ends of these indexes were read" in result.stdout


def test_ls_of_an_interrupted_dump(run: Run, torn: Path) -> None:
    result = run("ls", torn)
    assert [row[1:3] for row in words(result.stdout) if row[0] == "0"] == [["0", "complete"], ["1", "interrupted"]]
    assert "1 of 2 step/rank folders are interrupted; `aten-dump recover" in result.stdout
    first = result.stdout.splitlines()[0]
    assert (
        "step 0 rank 1: interrupted (no commit record" in first and "the last 2 bytes of the index were torn" in first
    )
    assert result.exit_code == 2


def test_summary(dump: Path) -> None:
    directory = dump / "step3" / "rank0"
    found = summarize(directory)
    assert found.header is not None
    assert found.header.step == 3
    assert found.commit == open_dump(dump).rank(3, 0).tables.commit
    assert found.index_bytes == (directory / "index.msgpack").stat().st_size
    assert (found.shards, found.shard_bytes) == (1, (directory / "shard-00000.safetensors").stat().st_size)


def test_a_commit_is_not_seen_where_none_ends_the_index(dump: Path) -> None:
    content = (dump / "step3" / "rank0" / "index.msgpack").read_bytes()
    assert find_commit(content, 0) is not None
    assert find_commit(content[:-1], 0) is None
    assert find_commit(content + b"\x01", 0) is None
    assert find_commit(content, 1) is None  # the check names another place
    assert find_commit(b"", 0) is None
    # Chance bytes in the midst of a record of a file that still grows: a map whose key is a map.
    assert find_commit(b"\x97\x14\x81\x81\x01\x02\x03" + content, 7 - len(content)) is None
    assert find_commit(content + b"\x97\x14\x81\x81\x01\x02\x03", 0) is None


def test_show_tree(run: Run, dump: Path) -> None:
    result = run("show", dump, "--step", 5)
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first == f"step 5, rank 0 of {dump} (steps 3|5 recorded)"
    assert lines[:4] == [
        "Module.net.fc.0.forward  (f32[2, 4]) -> f32[2, 3]  1.00 us",
        "  Functional.linear.0.forward  (f32[2, 4], f32[3, 4], f32[3]) -> f32[2, 3]  1.00 us",
        "    Aten.t.0.forward  (f32[3, 4]) -> f32[4, 3]  1.00 us",
        "    Aten.addmm.0.forward  (f32[3], f32[2, 4], f32[4, 3], alpha=2) -> f32[2, 3]  1.00 us",
    ]
    assert "  Aten.relu_.0.forward  (f32[2, 3]) -> f32[2, 3]  writes self  1.00 us" in lines
    assert len(lines) == 10


def names(stdout: str) -> list[str]:
    return [row[0] for row in words(stdout)[1:]]


def test_show_with_filters_keeps_the_calls_around(run: Run, dump: Path) -> None:
    assert names(run("show", dump, "--op", "addmm", "--kind", "aten").stdout) == [
        "Module.net.fc.0.forward",
        "Functional.linear.0.forward",
        "Aten.addmm.0.forward",
    ]
    assert names(run("show", dump, "--depth", 1, "--phase", "forward").stdout) == [
        "Module.net.fc.0.forward",
        "Functional.relu_.0.forward",
    ]
    result = run("show", dump, "--limit", 2)
    assert len(names(result.stdout)) == 2
    assert "... 8 more lines; --limit 0 prints all" in result.stderr
    result = run("show", dump, "--op", "conv")
    assert names(result.stdout) == []
    assert "no call of" in result.stderr


def test_show_a_call(run: Run, dump: Path) -> None:
    result = run("show", dump, "Aten.addmm.0.forward")
    assert result.exit_code == 0
    for part in [
        "aten::addmm",
        "> /home/me/train.py:42 in forward",
        "    /venv/torch/nn/functional.py:10 in linear",
        "  alpha        2",
        "input.2: f32[4, 3] stride [1, 4], cpu, 48 B",
        "count 12  min -1.5  max 2.5",
        "hash 0001020304050607",
        "made by Aten.t.0.forward.output.0",
        "created before this step",
        "read by Functional.relu_.0.forward.input.0",
        "backward\n  Node.AddmmBackward0.0.backward\n  Aten.mm.0.backward",
    ]:
        assert part in result.stdout
    assert "forward\n  Aten.addmm.0.forward" in run("show", dump, "Aten.mm.0.backward").stdout
    assert "written in place: self" in run("show", dump, "Aten.relu_.0.forward").stdout


def test_show_a_tensor(run: Run, dump: Path) -> None:
    result = run("show", dump, "Aten.addmm.0.forward.input.mat1")
    assert result.exit_code == 0
    assert "tensor([[" in result.stdout
    assert "hash 0001020304050607" in result.stdout


def test_show_a_wrong_name(run: Run, dump: Path) -> None:
    for name in ("Aten.addm.0.forward", "Aten.addm.0.forward.output.0"):
        result = run("show", dump, name)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("Error: no call 'Aten.addm.0.forward")
        assert "nearest: Aten.addmm.0.forward" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "nowhere"], "does not exist"),
        (["show", "DUMP", "--step", "4"], "recorded steps: 3, 5"),
        (["show", "DUMP", "--rank", "1"], "recorded ranks: 0"),
        (["stats", "DUMP", "--op", "regex:("], "is not a regular expression"),
        (["stats", "DUMP", "--format", "csv", "--output", "DUMP/no/file"], "Error: cannot write DUMP"),
        (["show", "DUMP", "--kind", "op"], "'op' is not one of 'aten', 'api', 'module', 'node'"),
        (["stats", "DUMP", "--output", "file"], "--output needs --format csv or json"),
        (["nonsense"], "No such command"),
    ],
)
def test_errors_are_one_message(run: Run, dump: Path, arguments: list[str], message: str) -> None:
    result = run(*(argument.replace("DUMP", str(dump)) for argument in arguments))
    assert result.exit_code == 2
    assert message.replace("DUMP", str(dump)) in result.stderr
    assert "Traceback" not in result.output


def test_stats_table(run: Run, dump: Path) -> None:
    result = run("stats", dump, "--op", "aten::t")
    rows = words(result.stdout)[1:]
    assert rows[0][:5] == ["call", "slot", "tensor", "count", "min"]
    assert rows[1] == [
        "Aten.t.0.forward",
        "input.0",
        "f32[3,",
        "4]",
        *["12", "-1.5", "2.5", "0.25", "3", "1", "0", "0", "0", "0", "5", "7"],
    ]
    assert rows[2][4:] == rows[1][4:]
    result = run("stats", dump, "--limit", 1)
    assert len(words(result.stdout)) == 3
    assert re.search(r"\.\.\. \d+ more rows", result.stderr)


def test_stats_csv_and_json_agree(run: Run, dump: Path, tmp_path: Path) -> None:
    output = tmp_path / "a file.csv"
    result = run("stats", dump, "--format", "csv", "--output", output)
    assert (result.exit_code, result.stdout) == (0, "")
    table = list(csv.DictReader(io.StringIO(output.read_text())))
    objects = json.loads(run("stats", dump, "--format", "json").stdout)["rows"]
    assert len(table) == len(objects) == 31
    assert [row["slot"] for row in table] == [item["slot"] for item in objects]
    found = next(item for item in objects if item["call"] == "Aten.t.0.forward" and item["slot"] == "output.0")
    assert (found["step"], found["shape"], found["dtype"], found["min"], found["hash"]) == (
        3,
        [4, 3],
        "float32",
        -1.5,
        None,
    )
    row = next(row for row in table if row["call"] == "Aten.t.0.forward" and row["slot"] == "output.0")
    assert (row["shape"], row["min"], row["hash"], row["undefined"]) == ("[4, 3]", "-1.5", "", "false")
    assert [item["slot"] for item in objects if item["call"] == "Aten.relu_.0.forward"] == [
        "input.0",
        "output.0",
        "mutated.self",
    ]


def test_json_of_numbers_that_json_lacks(run: Run, tmp_path: Path) -> None:
    import torch

    from aten_dump.store import records as r
    from tests.dump.building import value

    builder = Builder(tmp_path / "dump", config={"statistics": ["min", "max", "mean"]})
    x = builder.value(torch.zeros(1))
    builder.emit(r.Statistics(r.STATISTICS, x, [float("-inf"), float("nan"), [1.0, float("inf")]]))
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(x)])
    [found] = json.loads(run("stats", builder.finish(), "--format", "json").stdout)["rows"]
    assert (found["min"], found["max"], found["mean"]) == ("-Infinity", "NaN", [1.0, "Infinity"])
    assert json.loads(run("stats", builder.root, "--format", "json", "--op", "none").stdout)["rows"] == []


def test_saved(run: Run, dump: Path) -> None:
    result = run("saved", dump)
    assert "104 B kept for backward by 2 autograd nodes" in result.stdout
    assert "80 B of it are parameters, buffers and inputs" in result.stdout
    rows = words(result.stdout)
    assert ["net.fc", "80", "B", "80"] in rows
    assert ["Aten.addmm.0.forward", "net.fc", "80", "B", "80"] in rows
    assert ["net", "80", "B", "80"] in words(run("saved", dump, "--depth", 1).stdout)
    offload = words(run("saved", dump, "--offload").stdout)
    assert ["module", "frees", "moves", "out", "and", "back", "for", "nothing"] in offload
    assert ["net.fc", "0", "B"] in [line[:3] for line in offload], "weights and inputs live anyway"


def test_verify(run: Run, dump: Path) -> None:
    result = run("verify", dump)
    assert (result.exit_code, result.stdout) == (0, "2 step/rank folders checked, 0 problems\n")
    path = dump / "step5" / "rank0" / "shard-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    result = run("verify", dump)
    assert result.exit_code == 1
    assert "step 5 rank 0: blob" in result.stdout
    assert "1 problems" in result.stdout


def test_recover(run: Run, torn: Path) -> None:
    before = open_dump(torn).rank(0, 1).tensor("Aten.addmm.0.forward.output.0")
    assert run("verify", torn).exit_code == 1
    result = run("recover", torn)
    assert result.exit_code == 0
    assert "step 0 rank 1: cut short; 2 bytes of the index and 0 blobs were lost" in result.stdout
    assert "1 of 2 step/rank folders recovered, 1 needed nothing" in result.stdout
    result = run("verify", torn)
    assert result.exit_code == 1 and result.stdout.startswith("step 0 rank 1: interrupted (recovered after it was cut")
    rank = open_dump(torn).rank(0, 1)
    assert rank.complete
    assert rank.tensor("Aten.addmm.0.forward.output.0").equal(before)
    assert "0 of 2 step/rank folders recovered" in run("recover", torn).stdout


def test_a_dump_cut_before_its_first_record(run: Run, tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    (root / "step1" / "rank0").mkdir(parents=True)
    (root / "step1" / "rank0" / "index.msgpack").write_bytes(b"\x98")
    result = run("ls", root)
    assert result.exit_code == 2
    first = result.stdout.splitlines()[0]
    assert "step 1 rank 0: interrupted (no commit record" in first and "no header record" in first
    result = run("show", root, "--step", 1)
    assert result.exit_code == 2 and "step 1 rank 0: interrupted" in result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[1].endswith("(step 1, rank 0) has no calls")
    assert len(open_dump(root).rank(1, 0).calls) == 0


def test_env_says_what_a_report_needs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_DUMP_CONFIG", "\x1b[2Jconfig.toml")
    result = run("env")
    assert result.exit_code == 0
    for text in (
        aten_dump.__version__,
        torch.__version__,
        "Python 3.",
        "accelerator: ",
        "ATEN_DUMP_CONFIG=\\x1b[2Jconfig.toml",
    ):
        assert text in result.output


def test_the_page_of_commands_has_each_command() -> None:
    table = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z]+)(?=[ `])", table, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_says_what_it_does(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    inner = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    options = [option for one in inner for option in one.params if isinstance(option, click.Option)]
    assert [option.opts for option in options if not option.help] == []
