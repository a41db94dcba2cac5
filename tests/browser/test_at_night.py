"""What one looks for first in a run of many ranks, and in a window of half a screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump.store import records as r
from tests.browser.opened import Opened
from tests.dump.building import STATISTICS, Builder, value

Report = Callable[..., Path]
Open = Callable[..., Opened]
SICK = 5
SITE = "/opt/python/lib/python3.12/site-packages"


def record(root: Path, step: int, rank: int) -> None:
    """Record a step in which one op, on rank 5 from step 1 on, makes NaN."""
    b = Builder(root, step, rank)
    nan = 3 if rank == SICK and step else 0
    x, y = b.value(torch.randn(64)), b.value(torch.randn(64))
    b.emit(r.Statistics(r.STATISTICS, x, [64, -1.0, 1.0, 0.0, 8.0, 1.0, 0, 0, 0, 0, 30, 34]))
    norm = float("nan") if nan else 8.0 + rank
    b.emit(r.Statistics(r.STATISTICS, y, [64, -1.0, 1.0, 0.0, norm, 1.0, nan, 0, 0, 0, 30, 34 - nan]))
    module, op = b.op("module", "Linear", "Module", "fc"), b.op("aten", "aten::addmm", "Aten", "addmm")
    stack = b.stack((f"{SITE}/layers/linear.py", 12, "forward", True))
    b.call(module, id=1, args=[value(x)], outputs=value(y), module="fc", stack=stack)
    b.call(op, id=2, parent=1, args=[value(x)], outputs=value(y), module="fc", stack=stack)
    assert len(STATISTICS) == 12
    b.finish()


@pytest.fixture(scope="module")
def many_ranks(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks") / "dump"
    for step in range(6):
        for rank in range(8):
            record(root, step, rank)
    return root


def test_the_answer_says_which_ranks_are_sick(many_ranks: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(many_ranks))
    rows = report.texts("section:has(h2:text-is('Steps and ranks')) tbody tr")
    assert [row.split()[:2] for row in rows if "NaN or Inf" in row] == [[str(step), "5"] for step in range(1, 6)]
    text = report.text("section:has(h2:text-is('NaN and Inf'))")
    assert "step 1, rank 5: 1 producer of 1 call" in text and "2 more steps and ranks" in text
    assert "…/layers/linear.py:12 in forward" in text and SITE not in text
    assert report.page.locator(f"[title^='{SITE}/layers/linear.py']").count() == 5


def test_the_legend_tells_the_last_step_and_what_is_not_a_number(
    many_ranks: Path, report_of: Report, open_report: Open
) -> None:
    report = open_report(report_of(many_ranks), "#view=steps&value=Module.fc.0.forward.output.0")
    report.page.wait_for_selector(".u-legend")
    rows = [row.split() for row in report.texts(".u-legend .u-series")]
    assert rows[0] == ["step5"] and rows[5:7] == [["rank", "412"], ["rank", "5nan"]], "name and number side by side"


def test_in_a_narrow_window_the_error_is_in_sight(recorded: Path, report_of: Report, open_report: Open) -> None:
    report = open_report(report_of(recorded / "target", recorded / "baseline"), "#view=calls", width=800)
    for name in ("name", "error", "statistic", "time"):
        box = report.page.locator(f".row.head .cell.{name}").bounding_box()
        assert box is not None and box["x"] + box["width"] <= 800, name
    assert not report.page.locator(".row.head .cell.module").is_visible()
