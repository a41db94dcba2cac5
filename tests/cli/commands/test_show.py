"""show: the tree, a call, a tensor, and what there is instead of a name that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aten_dump import AtenDumpError, DumpConfig, DumpMode
from aten_dump.cli.commands.show import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def tree(result: Result) -> list[str]:
    """Return the lines below the first, which says what is shown."""
    first, *lines = result.stdout.splitlines()
    assert first.startswith("step ")
    return lines


@pytest.mark.parametrize(
    ("name", "is_tensor"),
    [
        ("Aten.addmm.0.forward", False),
        ("Aten.addmm.0.forward.input.0", True),
        ("Aten.relu_.0.forward.mutated.self", True),
    ],
)
def test_a_name_is_a_call_or_a_tensor(dump: Path, name: str, is_tensor: bool) -> None:
    result = run(dump, name)
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    assert lines[0].startswith("step 3, rank 0 of ") and lines[1] == f"{name} is also in step 5: add --step 5"
    assert lines[2] == name and any("tensor(" in line for line in lines) is is_tensor


@pytest.mark.parametrize("name", ["Aten.addmm.7.forward", "Aten.addmm.0.forward.input.9", "nonsense"])
def test_a_wrong_name_is_an_error(dump: Path, name: str) -> None:
    result = run(dump, name)
    assert isinstance(result.exception, AtenDumpError) and name.partition(".input")[0] in str(result.exception)


def test_the_tree_as_deep_as_asked(dump: Path) -> None:
    assert len(tree(run(dump))) == 10
    assert len(tree(run(dump, "--depth", "1"))) == 5
    assert run(dump, "--limit", "3").stderr == "... 7 more lines; --limit 0 prints all\n"


def test_filters_keep_the_calls_around(dump: Path) -> None:
    assert [line.split()[0] for line in tree(run(dump, "--op", "aten::t"))] == [
        "Module.net.fc.0.forward",
        "Functional.linear.0.forward",
        "Aten.t.0.forward",
    ]


def test_filters_that_match_nothing_say_so(dump: Path) -> None:
    result = run(dump, "--phase", "recompute")
    assert result.exit_code == 0 and tree(result) == []
    assert "no call of " in result.stderr and "it has 10 calls" in result.stderr
    assert run(dump, "--op", "aten::t").stderr == ""


def test_calls_of_a_mode(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path), level="aten")):
        torch.ones(2)
        with torch.no_grad():
            torch.zeros(2)
    assert [line.split()[0] for line in tree(run(tmp_path, "--mode", "no_grad"))] == ["Aten.zeros.0.forward"]
    assert "mode         no grad" in run(tmp_path, "Aten.zeros.0.forward").stdout
