"""The benchmarks' command runs. What it measures is not looked at."""

import json
import subprocess
import sys

import pytest

from tests.checkout import ROOT

MODES = ["limit-write", "full", "torch-save"]

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="a package without its benchmarks")


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
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
