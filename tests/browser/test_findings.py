"""The page leads with what was found, says so where it found nothing, and can be walked through by keys alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aten_dump import open_dump
from tests.browser.opened import Opened

Report = Callable[..., Path]
Open = Callable[..., Opened]
NODES = "[...document.querySelectorAll('a.node')].map(e => e.getAttribute('data-name'))"
COLOURS = "[...document.querySelectorAll('.u-legend .u-marker')].map(e => e.style.border || e.style.borderColor)"
BANDS = """() => {
    const canvas = document.querySelector('.chart canvas');
    const { data, width } = canvas.getContext('2d').getImageData(0, canvas.height / 3, canvas.width, 1);
    const probe = document.body.appendChild(document.createElement('i'));
    probe.style.color = getComputedStyle(document.documentElement).getPropertyValue('--error-4-soft');
    const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    const is = x => data[4 * x] === r && data[4 * x + 1] === g && data[4 * x + 2] === b;
    return Array.from({ length: width }, (_, x) => x).filter(x => is(x) && ![1, 2, 3].some(by => is(x - by))).length;
}"""


@pytest.fixture(scope="session")
def diverging(recorded: Path, report_of: Report) -> Path:
    return report_of(recorded / "diverging")


def test_the_headline_is_the_finding(diverging: Path, recorded: Path, report_of: Report, open_report: Open) -> None:
    source = open_dump(recorded / "diverging").rank(3, 0)["Aten.div.0.forward"].source
    assert source is not None
    assert open_report(diverging).text("h1") == f"First Inf: step 3, Aten.div.0.forward (dumps.py:{source.line})"
    assert open_report(report_of(recorded / "trained")).text("h1") == "No NaN or Inf."
    assert open_report(report_of(recorded / "interrupted")).text("h1") == "What was recorded."


def test_over_steps_leads_with_the_loss_and_marks_nan(diverging: Path, open_report: Open) -> None:
    report = open_report(diverging, "#view=steps")
    report.page.wait_for_selector(".chart canvas")
    assert report.page.input_value(".series-input") == "loss"
    assert report.text(".sick-steps") == "NaN or Inf in step 3: Aten.div.0.forward, step 4: Aten.t.0.forward"
    report.page.wait_for_timeout(200)
    assert report.page.evaluate(BANDS) == 2
    report.page.click(".line-table summary")
    losses = [row.split()[-1] for row in report.texts(".line-table tbody tr")]
    assert losses[3:] == ["inf", "nan"] and all(float(one) > 0 for one in losses[:3])
    report.page.click(".sick-steps a >> nth=0")
    report.wait_for_address("step=3")
    report.wait_for_address("call=Aten.div.0.forward")


def test_lines_over_steps_have_colours_of_their_own_and_a_legend(
    recorded: Path, report_of: Report, open_report: Open
) -> None:
    report = open_report(report_of(recorded / "trained"), "#view=steps&value=gradient norm per module")
    report.page.wait_for_selector(".u-legend .u-marker")
    colours = [colour for colour in report.page.evaluate(COLOURS) if colour]
    names = report.texts(".u-legend .u-label")[1:]
    assert len(names) == len(colours) > 3 and len(set(colours)) == len(colours)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("Aten.masked_fill.0.forward", "mask: 15 NaN or Inf"),
        ("Tensor.masked_fill.0.forward", "mask: 15 NaN or Inf"),
        ("Aten.div.0.forward", "makes NaN or Inf: 1 NaN or Inf"),
        ("Aten.t.0.forward", "finite"),
    ],
)
def test_the_strip_tells_masks_from_faults(call: str, says: str, diverging: Path, open_report: Open) -> None:
    report = open_report(diverging, f"#view=strip&step=3&call={call}")
    report.page.select_option(".strip-bar select", "nonfinite")
    for meaning in ("makes NaN or Inf", "passes NaN or Inf on", "mask", "finite"):
        assert meaning in report.text(".strip-bar .legend")
    report.go(f"view=strip&step=3&call={call}&q=kind:aten", "strip")
    assert f"{call} {says}" in report.text(".told")


def test_the_graph_opens_at_the_model(diverging: Path, recorded: Path, open_report: Open) -> None:
    rank = open_dump(recorded / "diverging").rank(3, 0)
    report = open_report(diverging, "#view=graph&step=3")
    report.page.wait_for_selector("a.node")
    assert report.text("h1") == "Masked"
    inside = [call.name for call in rank["Module.Masked.0.forward"].children if call.phase == "forward"]
    assert sorted(report.page.evaluate(NODES)) == sorted(inside)
    report.page.click("text=outside of modules")
    report.page.wait_for_selector("a.node[data-name='Module.Masked.0.forward']")
    roots = [call.name for call in rank.roots if call.phase == "forward"]
    assert sorted(report.page.evaluate(NODES)) == sorted(roots)
    report.page.click("a.node[data-name='Module.Masked.0.forward']")
    report.page.wait_for_selector("a.node[data-name='Tensor.softmax.0.forward']")
    assert report.text("h1") == "Masked"


@pytest.mark.parametrize("view", ["calls", "strip", "call", "graph"])
def test_keys_go_from_call_to_call_wherever_the_focus_is(view: str, diverging: Path, open_report: Open) -> None:
    report = open_report(diverging, f"#view={view}&step=3&call=Tensor.matmul.0.forward&module=(model)")
    report.page.evaluate("document.activeElement.blur()")
    before = report.address
    report.press("j")
    report.page.wait_for_function("before => decodeURIComponent(location.hash) !== before", arg=before)
    following = report.address
    assert f"view={view}" in following
    report.press("k")
    report.wait_for_address("call=Tensor.matmul.0.forward" if view != "strip" else "call=Aten.")
    report.press("ArrowDown")
    report.page.wait_for_function("after => decodeURIComponent(location.hash) === after", arg=following)
    report.press("Enter")
    report.wait_for_address("view=call&")


def test_keys_lead_from_the_answer_to_the_cause(diverging: Path, open_report: Open) -> None:
    for key in ("Enter", "j"):
        report = open_report(diverging)
        report.press(key)
        report.wait_for_address("call=Aten.div.0.forward")
        assert report.text("h1") == "Aten.div.0.forward"
    report.press("j")
    report.page.wait_for_function("() => !location.hash.includes('Aten.div.0.forward')")


def test_keys_of_a_search(diverging: Path, open_report: Open) -> None:
    report = open_report(diverging, "#view=answer&step=3")
    report.press("/")
    report.page.keyboard.type("op:softmax")
    report.wait_for_address("q=op:softmax")
    report.press("Enter")
    report.page.wait_for_selector(".row[aria-selected=true]")
    report.press("Enter")
    report.wait_for_address("view=call&")


@pytest.mark.parametrize("view", ["calls", "strip"])
def test_a_search_that_finds_nothing_says_so(view: str, diverging: Path, open_report: Open) -> None:
    report = open_report(diverging, f"#view={view}&q=nosuchthing")
    assert "No call matches “nosuchthing”." in report.text("main")
    report.go(f"view={view}&q=op:softmax", view)
    assert "No call matches" not in report.text("main")
