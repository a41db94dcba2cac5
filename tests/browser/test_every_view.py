"""Every view of every kind of dump shows itself without a word on the console, and passes axe-core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.opened import Opened
from tests.sampling import every_second

VIEWS = ("answer", "strip", "calls", "call", "graph", "steps", "memory")
KINDS = ("trained", "inference", "nan", "recompute", "interrupted", "structure", "empty", "scaler")
# Of the comparison, whose views have most on them: address of each, so that something is selected.
CALL = "Aten.native_batch_norm.2.forward"
ADDRESSES = {
    "answer": "#view=answer",
    "strip": f"#view=strip&call={CALL}",
    "calls": f"#view=calls&call={CALL}",
    "call": f"#call={CALL}",
    "graph": "#view=graph&module=layers.0",
    "steps": "#view=steps",
    "memory": "#view=memory",
}
LOOKS = {"light": {}, "dark": {"dark": True}, "narrow-dark": {"width": 800, "dark": True}, "narrow": {"width": 800}}

Report = Callable[..., Path]
Open = Callable[..., Opened]


def visit_all(report: Opened) -> None:
    for view in VIEWS:
        report.go(f"view={view}", view)
        assert report.text("main").strip()
    first = report.page.evaluate("document.querySelector('.call-link')?.getAttribute('href')")
    if first:
        report.go(first, "call")


@pytest.mark.parametrize("kind", KINDS)
def test_a_dump(kind: str, recorded: Path, report_of: Report, open_report: Open) -> None:
    visit_all(open_report(report_of(recorded / kind)))


@pytest.mark.parametrize("pair", [("target", "baseline"), ("baseline", "baseline"), ("structure", "inference")])
def test_a_comparison(pair: tuple[str, str], recorded: Path, report_of: Report, open_report: Open) -> None:
    visit_all(open_report(report_of(recorded / pair[0], recorded / pair[1])))


def test_two_ranks(distributed: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(distributed / "ddp"))
    visit_all(report)
    report.go("view=calls", "calls")
    report.page.select_option("select[aria-label='Step and rank']", "target/0/1")
    report.wait_for_address("rank=1")


def test_a_comparison_across_layouts(distributed: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(distributed / "ddp", distributed / "single"))
    visit_all(report)
    report.go("view=answer", "answer")
    assert "2 ranks against 1" in report.text("main")


@pytest.mark.parametrize("look", every_second(LOOKS))
def test_axe_finds_nothing(
    look: str, recorded: Path, report_of: Report, open_report: Open, axe: str, artifacts: Path
) -> None:
    path = report_of(recorded / "target", recorded / "baseline")
    report = open_report(path, **LOOKS[look])
    report.page.evaluate(axe)
    for view, address in ADDRESSES.items():
        report.go(address, view)
        report.page.wait_for_timeout(120)
        report.page.screenshot(path=artifacts / f"{view}-{look}.png")
        assert violations(report) == [], view


def violations(report: Opened) -> list[Any]:
    """Return what axe-core finds wrong: rule, and the elements."""
    found = report.page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [(one["id"], [node["html"] for node in one["nodes"][:3]]) for one in found["violations"]]


def test_nothing_is_cut_off_at_200_percent(recorded: Path, report_of: Report, open_report: Open) -> None:
    """A window of 1280 pixels at 200 percent has 640: no view may need to be scrolled sideways as a whole."""
    report = open_report(report_of(recorded / "target", recorded / "baseline"), width=640, height=400)
    for view, address in ADDRESSES.items():
        report.go(address, view)
        widths = report.page.evaluate(
            "[document.documentElement.scrollWidth, document.getElementById('main').scrollWidth]"
        )
        assert max(widths) <= 640, view


def test_paper_gets_the_answer(recorded: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(recorded / "target", recorded / "baseline"), "#view=calls")
    report.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    report.page.emulate_media(media="print")
    assert "The dumps differ." in report.text("main")
    assert not report.page.locator(".top").is_visible()
    report.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert report.page.locator("[role=treegrid]").count() == 1
