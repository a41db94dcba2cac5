"""The graph of a module: what ran in it, and the values and gradients that go from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from aten_dump import open_dump
from tests.browser.opened import Opened
from tests.dump.building import Builder, value

Report = Callable[..., Path]
Open = Callable[..., Opened]
NODES = "[...document.querySelectorAll('a.node')].map(e => e.getAttribute('data-name'))"


def test_the_graph_has_the_calls_of_the_module(recorded: Path, report_of: Report, open_report: Open) -> None:
    rank = open_dump(recorded / "target").rank(0, 0)
    report = open_report(report_of(recorded / "target", recorded / "baseline"), "#view=graph&module=layers.0")
    inside = [call.name for call in rank["Module.layers.0.0.forward"].children if call.phase == "forward"]
    assert sorted(report.page.evaluate(NODES)) == sorted(inside)
    report.page.click("a.node[data-name^='Module.layers.0.bn2']")
    report.wait_for_address("module=layers.0.bn2")
    report.page.wait_for_selector("a.node[data-name^='Functional.batch_norm.2.forward']")


def test_edges_are_values_and_gradients(recorded: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(recorded / "target", recorded / "baseline"), "#view=graph&module=layers.0")
    report.page.wait_for_selector("svg.graph")
    # conv, bn, relu, conv, bn, add and relu in a row, the input and the result around them, the residual past them
    assert report.page.locator("path.edge:not(.backward)").count() == 9
    assert report.page.locator("path.edge.backward").count() == 8  # not from the result, which nobody in it reads
    report.page.uncheck("input[type=checkbox]")
    assert not report.page.locator("path.edge.backward").first.is_visible()


def test_gradients_between_ops_without_apis_around_them(tmp_path: Path, report_of: Report, open_report: Open) -> None:
    b = Builder(tmp_path / "dump")
    exp, mul = (b.op("aten", f"aten::{name}", "Aten", name) for name in ("exp", "mul"))
    x, y, z, gz, gy, gx = (value(b.value(torch.randn(2))) for _ in range(6))
    b.call(exp, id=1, args=[x], outputs=y)
    b.call(mul, id=2, args=[y], outputs=z)
    b.call(mul, id=3, n=1, args=[gz], outputs=gy, phase="backward", forward=2)
    b.call(exp, id=4, n=1, args=[gy], outputs=gx, phase="backward", forward=1)
    report = open_report(report_of(b.finish()), "#view=graph")
    report.page.wait_for_selector("svg.graph")
    assert report.page.locator("path.edge:not(.backward)").count() == 1
    assert report.page.locator("path.edge.backward").count() == 1


def test_of_many_calls_those_that_are_drawn_are_said_with_a_way_to_the_others(
    tmp_path: Path, report_of: Report, open_report: Open
) -> None:
    b = Builder(tmp_path / "dump")
    module, op = b.op("module", "net", "Module", "net"), b.op("aten", "aten::exp", "Aten", "exp")
    x = value(b.value(torch.randn(2)))
    b.call(module, id=1, args=[x], module="net")
    for id in range(2, 17_002):
        b.call(op, id=id, parent=1, n=id - 2, module="net")
    b.call(op, id=17_002, n=17_000, args=[x])
    report = open_report(report_of(b.finish()), "#view=graph")
    assert report.text("h1") == "net"
    assert report.page.evaluate(NODES) == [f"Aten.exp.{n}.forward" for n in range(80)]
    assert "Calls 1 to 80 of 17,000, in execution order." in report.text("main")
    report.page.click("text=Later")
    report.page.wait_for_selector("a.node[data-name='Aten.exp.159.forward']")
    assert "Calls 81 to 160 of 17,000" in report.text("main")
    report.go("view=graph&module=(outside)", "graph")
    report.page.wait_for_selector("a.node[data-name='Aten.exp.17000.forward']")
    assert report.page.evaluate(NODES) == ["Module.net.0.forward", "Aten.exp.17000.forward"]
    assert "Calls 1 to" not in report.text("main"), "all are drawn, however far apart"


def test_a_module_that_did_not_run_has_no_graph(recorded: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(recorded / "nan"), "#view=graph&module=none.such")
    assert "Nothing ran in it" in report.text("main")
    assert report.page.evaluate(NODES) == []
