"""saved: how much is kept for backward, by module and by call."""

from __future__ import annotations

from pathlib import Path

import torch
from click.testing import CliRunner, Result

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli.commands.saved import command
from aten_dump.cli.main import main
from tests.dump.building import Builder
from tests.dump.foreign.test_foreign import GOLDEN


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_sums_and_tables(dump: Path) -> None:
    result = run(dump)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("step 3, rank 0 of ")
    assert "kept for backward by 2 autograd nodes (" in lines[1] and "which exist anyway (" in lines[2]
    assert lines.index("by module") < lines.index("by call")
    assert "Aten.addmm.0.forward" in result.stdout and "net.fc" in result.stdout


def test_paths_are_cut_to_sum_inner_modules_up(dump: Path) -> None:
    modules = run(dump, "--depth", "1").stdout.partition("by call")[0]
    assert "net.fc" not in modules and "net" in modules
    assert run(dump, "--depth", "0").exit_code == 2


def test_the_limit_is_of_each_table(dump: Path) -> None:
    text = run(dump, "--limit", "1").stdout
    assert "Aten.addmm.0.forward" in text and "Aten.relu_.0.forward" not in text


def test_where_nothing_is_kept_there_are_no_tables(tmp_path: Path) -> None:
    b = Builder(tmp_path / "none")
    b.call(b.op("aten", "aten::exp", "Aten", "exp"))
    result = run(b.finish())
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3
    assert result.stdout.splitlines()[1].startswith("0 B kept for backward by 0 autograd nodes (0 bytes)")


def test_where_backward_ran_nothing_kept_is_said_with_reserve(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    with DumpMode(DumpConfig(tmp_path, data="structure")):
        (x + 1).backward(torch.ones(2))
    assert run(tmp_path).stdout.splitlines()[3].startswith("Backward ran: either its nodes saved no tensor, or")


def test_another_tools_dump_is_not_said_to_keep_nothing() -> None:
    result = CliRunner().invoke(main, ["saved", str(GOLDEN / "msprobe" / "L1-statistics")])
    assert result.exit_code == 2 and "another tool recorded this" in result.output and "0 B" not in result.output
