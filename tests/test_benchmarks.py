"""The benchmarks' command runs. What it measures is not looked at."""

import json
import re
import subprocess
import sys

import pytest

from tests.checkout import ROOT

MODES = ["limit-write", "full", "torch-save"]

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="a package without its benchmarks")


def run(*arguments, module="benchmarks"):
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_every_row_is_measured_and_rendered(tmp_path):
    found = run(
        *("--workloads", "chain", "--modes", ",".join(MODES), "--tables", "costs", "--repeats", "1"),
        *("--disk", str(tmp_path), "--json", str(tmp_path / "found.json")),
    )
    assert found.returncode == 0, found.stderr
    rows = {row["mode"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert list(rows) == MODES
    assert not [row["error"] for row in rows.values() if "error" in row]
    assert all(f"| chain ({row['ops']} ops) | {mode} |" in found.stdout for mode, row in rows.items())
    full = rows["full"]
    assert full["index"]["calls"]["aten"] == full["ops"]  # a mode of ours sees what the count of ops sees
    assert full["files"] == 2 and full["written_bytes"] > rows["limit-write"]["written_bytes"] > 0
    assert rows["torch-save"]["files"] >= full["ops"]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]  # and cleans up


@pytest.mark.slow
def test_an_unknown_mode_is_told_apart_from_the_known(tmp_path):
    found = run("--modes", "ours,telepathy")
    assert found.returncode == 2
    assert "unknown modes: telepathy; groups: limits, ours, peers, msprobe" in found.stderr


@pytest.mark.slow
def test_what_comparing_costs_is_measured():
    found = run("lstm", "--repeats", "1", module="benchmarks.comparing")
    assert found.returncode == 0, found.stderr
    row = found.stdout.splitlines()[2]
    assert re.match(r"\| lstm forecaster \([1-9]\d+\) \| ", row), row  # how many ops they are, torch decides


@pytest.mark.slow
def test_checked_and_unchecked_reading_are_measured():
    found = run("--workload", "chain", "--repeats", "2", module="benchmarks.reading")
    assert found.returncode == 0, found.stderr
    rows = [line.split("|")[1:-1] for line in found.stdout.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == [
        "tensors of every call",
        "each blob, dropped",
        "each blob, kept",
    ]
    assert all(int(row[1]) > 0 for row in rows)


def in_turn(groups):
    """Return what `targets measure` writes: of each group rounds, of each round the rows' times of a step, in bare ones."""
    bare_s, ops = 4e-5, 10
    return {
        name: [[[row, [bare_s, x * bare_s, x * bare_s, ops]] for row, x in one] for one in rounds]
        for name, rounds in groups.items()
    }


def cells_of(table, column):
    lines = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    return {line[0].strip(): line[column].strip() for line in lines}


def test_what_is_aimed_at_stands_beside_what_was_measured(tmp_path):
    chain = [(("chain", "debugmode"), 11), (("chain", "structure"), 21), (("chain", "full"), 24)]
    gpt2 = [
        *((("gpt2", "structure"), 1.5), (("gpt2", "limit-hash"), 1.2), (("gpt2", "hash"), 1.9)),
        *((("gpt2", "limit-write"), 2.0), (("gpt2", "tensor"), 3.0)),
    ]
    growth = [(("ops-1000", "structure"), 8.5), (("ops-100000", "structure"), 9.25)]  # 30 and 33 us per op above bare
    pure = {"rounds": in_turn({"chain": [chain], "gpt2": [gpt2], "growth": [growth]}), "peak_bytes_per_op": 3000}
    elsewhere = [(("gpt2", "limit-hash"), 9.0)]
    slower = [(("chain", "debugmode"), 11), (("chain", "structure"), 31)]
    compiled = {"rounds": in_turn({"gpt2": [elsewhere], "chain": [chain, slower]})}
    for name, found in (("pure", pure), ("compiled", compiled)):
        (tmp_path / name).write_text(json.dumps(found))
    table = run("table", str(tmp_path / "pure"), str(tmp_path / "compiled"), module="benchmarks.targets")
    assert table.returncode == 0, table.stderr
    cells = cells_of(table.stdout, 1)
    assert cells["chain, structure, x - 1, x D"] == "2 (≤ 1.6, missed)"
    assert cells["chain, full, us/op above structure"] == "12 (≤ 11, missed)"
    assert cells["gpt2, hash, x less structure's, x L"] == "2 (≤ 1.5, missed)"  # of the limit of the same round
    assert cells["gpt2, tensor, on file x, x L's"] == "1.5 (≤ 1.4, missed)"
    assert cells["an op of 100,000 in a step, structure, x one of 1,000"] == "1.1 (≤ 1.15)"
    assert cells["peak bytes above bare per op of 100,000, structure"] == "3000 (≤ 2048, missed)"
    assert (
        cells["llama, hash, x less structure's, x L"]
        == cells["gpt2, full, on file x, x L's"].replace("1.6", "1.5")
        == "- (≤ 1.5)"
    )
    assert cells_of(table.stdout, 2)["chain, structure, x - 1, x D"] == "2.5 ± 0.75 (≤ 0.9, missed)"


@pytest.mark.slow
def test_what_is_aimed_at_is_measured_in_turn(tmp_path):
    result, disk = tmp_path / "found.json", tmp_path / "disk"
    disk.mkdir()
    found = run(
        *("measure", str(result), "--groups", "resnet", "--repeats", "1", "--disk", str(disk)),
        module="benchmarks.targets",
    )
    assert found.returncode == 0, found.stderr
    rounds = json.loads(result.read_text())["rounds"]["resnet"]
    assert [[row for row, _ in one] for one in rounds] == [[["resnet", "debugmode"], ["resnet", "structure"]]] * 8
    assert all(bare_s > 0 and on_file_s >= wall_s > 0 for one in rounds for _, (bare_s, wall_s, on_file_s, _) in one)
    assert list(disk.iterdir()) == []  # and cleans up


@pytest.mark.slow
def test_a_wrong_rank_of_many_is_named_and_commands_are_measured(tmp_path):
    found = run(
        *(str(tmp_path), "4", "--faults", "5,20", "--orders", "reversed", "--commands", "ls"),
        module="benchmarks.many_ranks",
    )
    assert found.returncode == 0, found.stderr
    assert "2 of 2 named with their rank" in found.stdout and "within, 0 accused" in found.stdout
    assert re.search(r"\| 4 \| ls \{honest\} \| [\d.]+ \| \d+ \| [\d.]+ \| exit code 0 \|", found.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["honest-4"]
