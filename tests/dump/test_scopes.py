"""Calls by the scope that the program entered: requests of a serving loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, RankDump, open_dump
from tests.cli.conftest import Run, run  # noqa: F401 - a fixture


@pytest.fixture
def served(tmp_path: Path) -> RankDump:
    model = nn.Linear(4, 4)
    with DumpMode(DumpConfig(path=tmp_path / "dump"), model=model) as dump:
        for request in ("request-1", "request-12", "request-1"):
            with dump.scope(request), dump.scope("decode"):
                model(torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4))
    return open_dump(tmp_path / "dump").step(0).rank(0)


def test_scopes_of_a_step(served: RankDump) -> None:
    assert {name: len(calls) for name, calls in served.scopes.items()} == {
        "request-1": 2, "request-12": 1, "decode": 3
    }  # fmt: skip
    assert [call.name for call in served.scopes["request-1"]] == [
        "Scope.request-1.0.forward", "Scope.request-1.1.forward"
    ]  # fmt: skip


def test_calls_in_a_scope(served: RankDump) -> None:
    found = served.calls.in_scope("request-1")
    assert [call.name for call in found.filter(op="aten::addmm")] == ["Aten.addmm.0.forward", "Aten.addmm.2.forward"]
    assert len(found.filter(op="aten::mm", phase="backward")) == 2
    assert len(served.calls.in_scope("request")) > len(found)  # no scope is named so: all whose name has it in it
    assert len(served.calls.in_scope("regex:12$").filter(op="aten::addmm")) == 1
    assert len(served.calls.in_scope("nothing")) == 0
    outside = {call.id for call in served.calls} - {call.id for call in served.calls.in_scope("request")}
    assert served["Aten.addmm.3.forward"].id in outside


def test_on_the_command_line(run: Run, served: RankDump) -> None:  # noqa: F811
    path = served.directory.parent.parent
    assert "scopes: request-1 (2 times), decode (3 times), request-12" in run("ls", path).stdout
    shown = run("show", path, "--scope", "request-12").stdout
    assert "Aten.addmm.1.forward" in shown
    assert "Aten.addmm.0.forward" not in shown
    assert "Aten.addmm.1.forward" in run("stats", path, "--scope", "request-12", "--op", "addmm").stdout
