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


def test_every_row_is_measured_and_rendered(tmp_path):
    found = run(
        *("--workloads", "chain", "--modes", ",".join(MODES), "--tables", "costs", "--repeats", "2"),
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


def test_an_unknown_mode_is_told_apart_from_the_known(tmp_path):
    found = run("--modes", "ours,telepathy")
    assert found.returncode == 2
    assert "unknown modes: telepathy; groups: limits, ours, peers, msprobe" in found.stderr


def test_what_comparing_costs_is_measured():
    found = run("lstm", "--repeats", "1", module="benchmarks.comparing")
    assert found.returncode == 0, found.stderr
    row = found.stdout.splitlines()[2]
    assert re.match(r"\| lstm forecaster \([1-9]\d+\) \| ", row), row  # how many ops they are, torch decides


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


def measured(x, us_per_op=0.0, **more):
    sizes = {"bare_s": 4e-5, "ops": 10, "peak_bytes": 0}
    return {"wall_ratio": x, "on_file_ratio": x, "above_s": us_per_op / 1e6 * 10, **sizes, **more}


def test_what_is_aimed_at_stands_beside_what_was_measured(tmp_path):
    from benchmarks import targets

    pure = {
        ("chain", "structure"): measured(21), ("chain", "debugmode"): measured(11), ("chain", "full"): measured(24),
        ("gpt2", "structure"): measured(1.5), ("gpt2", "hash"): measured(1.9), ("gpt2", "tensor"): measured(3.0),
        ("gpt2", "limit-hash"): measured(9.0), ("ops-1000", "structure"): measured(9, 30),
        ("ops-100000", "structure"): measured(9, 33, peak_bytes=30_000), ("llama", "hash"): {"error": "out of memory"},
    }  # fmt: skip
    compiled = {("gpt2", "limit-hash"): measured(1.2), ("gpt2", "limit-write"): measured(2.0)}
    for name, run in (("pure", pure), ("compiled", compiled)):
        rows = [{"workload": workload, "mode": mode, **found} for (workload, mode), found in run.items()]
        (tmp_path / name).write_text(json.dumps({"rows": rows}))
    found = targets.rows(targets.read(tmp_path / "pure"), targets.read(tmp_path / "compiled"))
    cells = {line.split(" | ")[0].lstrip("| "): line.split(" | ")[1] for line in found}
    assert cells["chain, structure, x - 1, x D"] == "2 (≤ 1.6, missed)"
    assert cells["chain, full, us/op above structure"] == "12 (≤ 11, missed)"
    assert cells["gpt2, hash, x less structure's, x L"] == "2 (≤ 1.5, missed)"  # of the compiled run's limit
    assert cells["gpt2, tensor, on file x, x L's"] == "1.5 (≤ 1.4, missed)"
    assert cells["an op of 100,000 in a step, structure, x one of 1,000"] == "1.1 (≤ 1.15)"
    assert cells["peak bytes above bare per op of 100,000, structure"] == "3000 (≤ 2048, missed)"
    assert (
        cells["llama, hash, x less structure's, x L"]
        == cells["gpt2, full, on file x, x L's"].replace("1.6", "1.5")
        == "- (≤ 1.5)"
    )
