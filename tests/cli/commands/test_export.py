"""export: targets, filters, and what was left out."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import ConfigError
from aten_dump.cli.commands.export import command
from aten_dump.cli.main import main
from aten_dump.export.targets import targets
from tests.export.made import small_step


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_it_says_what_it_wrote_and_what_it_left_out(tmp_path: Path) -> None:
    result = run(small_step(tmp_path / "dump"), "--to", "torch", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.exception
    assert result.stdout == f"wrote {tmp_path / 'out'}\n"
    assert result.stderr == "left out 1 tensors that are undefined memory\n"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--op", "aten::addmm_"], {"Aten.addmm_.0.forward"}),
        (["--kind", "module"], {"Module.fc.0.forward", "Module.fc.0.backward"}),
        (["--phase", "backward", "--kind", "node"], {"Node.AddmmBackward0.0.backward"}),
        (["--name", "linear.0.forward"], {"Functional.linear.0.forward"}),
    ],
)
def test_filters_choose_the_calls(tmp_path: Path, options: list[str], names: set[str]) -> None:
    run(small_step(tmp_path / "dump"), "--to", "torch", "--out", tmp_path / "out", *options)
    files = (tmp_path / "out" / "step0" / "rank0").iterdir()
    found = {
        "".join(file.name.rpartition(f".{group}.")[0] for group in ("input", "output", "mutated")) for file in files
    }
    assert found == names


def test_steps_and_ranks_are_chosen(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        small_step(tmp_path / "dump", step)
    run(tmp_path / "dump", "--to", "torch", "--out", tmp_path / "out", "--step", "0|2")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["step0", "step2"]


def test_what_is_there_is_replaced_only_when_told(tmp_path: Path) -> None:
    dump = small_step(tmp_path / "dump")
    (tmp_path / "out").write_text("mine")
    result = run(dump, "--to", "torch", "--out", tmp_path / "out")
    assert isinstance(result.exception, ConfigError) and (tmp_path / "out").read_text() == "mine"
    assert run(dump, "--to", "torch", "--out", tmp_path / "out", "--overwrite").exit_code == 0
    assert (tmp_path / "out").is_dir()


def test_the_targets_are_those_of_the_table(tmp_path: Path) -> None:
    result = run(tmp_path, "--to", "csv", "--out", tmp_path / "out")
    assert result.exit_code == 2 and all(name in result.stderr for name in targets())
    help_text = run("--help").stdout
    assert all(f"{name:<12} {target.says[:20]}" in help_text for name, target in targets().items())
    assert "Missing option" in run(tmp_path, "--to", "torch").stderr


def test_a_bar_counts_the_calls_in_a_terminal_and_is_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = small_step(tmp_path / "dump")
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux says so that nobody writes to the terminal any more
            while piece := os.read(ours, 1 << 12):
                seen.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        command.main([str(dump), "--to", "torch", "--out", str(tmp_path / "out")], standalone_mode=False)
    reader.join(60)
    os.close(ours)
    before, _, after = seen.decode().partition("7/7")
    assert "exporting to torch" in before and "\x1b[2K" in after, "the bar's line, and its end"
    assert after.rstrip().endswith("left out 1 tensors that are undefined memory")


@pytest.mark.parametrize("to", ["torch", "parquet", "hdf5"])
def test_filters_that_match_nothing_are_an_error_that_leaves_what_was_there(tmp_path: Path, to: str) -> None:
    dump, out = small_step(tmp_path / "dump"), tmp_path / "out"
    assert run(dump, "--to", to, "--out", out).exit_code == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    result = CliRunner().invoke(main, f"export {dump} --to {to} --out {out} --op nosuch --overwrite".split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"no call of {dump} matches these filters, so nothing was written" in result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_it_says_that_there_are_no_such_sources(tmp_path: Path) -> None:
    dump = small_step(tmp_path / "dump")
    result = run(dump, "--to", "graph", "--out", tmp_path / "graph", "--sources", tmp_path / "nosuch")
    assert result.exit_code == 2 and "does not exist" in result.stderr and not (tmp_path / "graph").exists()


def test_its_help_lays_the_targets_out_under_each_other() -> None:
    lines = run("--help").stdout.splitlines()
    assert {f"    {name:<12} {target.says}" for name, target in targets().items()} <= set(lines)
    assert "  Targets" in lines and "  Examples" in lines
