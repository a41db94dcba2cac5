"""The page over a server: every view, tensors as maps and numbers, a dump that grows, and strings that want to be markup."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.report.units import format_number
from tests.browser.opened import Opened
from tests.browser.test_every_view import LOOKS, violations, visit_all
from tests.browser.test_hostile_strings import STRINGS, build
from tests.report.serve.server_process import Served
from tests.sampling import one_in, slow_but_for

Open = Callable[..., Opened]
Serve = Callable[..., Served]
CALL = "Aten.native_batch_norm.2.forward"
TENSOR = f"#view=tensor&call={CALL}&value=output.0"


@pytest.fixture(scope="module")
def serve(browser: object) -> Iterator[Serve]:
    """Return what starts a server, once for what it serves; in the end each must have said nothing but its address."""
    started: dict[tuple[Path, ...], Served] = {}

    def start(*paths: Path) -> Served:
        if paths not in started:
            started[paths] = Served(*paths)
        return started[paths]

    yield start
    with ThreadPoolExecutor() as at_once:
        said = list(at_once.map(Served.stop, started.values()))
    for one in started.values():
        one.kill()
    assert said == [(0, "", "")] * len(said)


@pytest.mark.parametrize("kind", one_in(4, ["trained", "interrupted", "empty", "nan"]))
def test_every_view_of_a_dump(kind: str, recorded: Path, serve: Serve, open_report: Open) -> None:
    visit_all(open_report(serve(recorded / kind).url))


def test_every_view_of_a_comparison(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "target", recorded / "baseline").url)
    assert "The dumps differ." in report.text("main")
    visit_all(report)
    report.go("view=strip", "strip")
    assert "error of forward" in report.text("main")


def test_what_the_first_view_lacks_comes_after(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "nan").url)
    report.page.wait_for_selector("h1:text-matches('First Inf: step 0, Aten.log.0.forward .dumps.py:')")
    assert "Look at all" not in report.text("main")


def test_a_tensor_from_its_call(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "target", recorded / "baseline").url, f"#call={CALL}")
    report.page.click("section:has(h2:text-is('Results')) tr:has-text('output.0') td a")
    report.wait_for_address("view=tensor")
    report.page.wait_for_selector(".elements")
    sides = [open_dump(recorded / name).rank(0, 0).tensor(f"{CALL}.output.0") for name in ("target", "baseline")]
    wait_for(report, shown(sides[0][0, 0].double() - sides[1][0, 0].double()))
    report.page.select_option("label:has-text('Show') select", "tensor")
    wait_for(report, shown(sides[0][0, 0]))
    report.page.get_by_label("Dimension 1 at").fill("3")
    report.page.get_by_label("Dimension 1 at").press("Enter")
    report.wait_for_address("at=0,3,0,0")
    wait_for(report, shown(sides[0][0, 3]))
    report.page.select_option("label:has-text('Show') select", "difference")
    wait_for(report, shown(sides[0][0, 3].double() - sides[1][0, 3].double()))
    report.page.select_option("label:has-text('Rows') select", "1")
    wait_for(report, shown(sides[0][0, :, 0].double() - sides[1][0, :, 0].double()))
    report.page.select_option("label:has-text('Show') select", "ulp")
    report.wait_for_address("show=ulp")
    steps = [side[0, :, 0].contiguous().view(torch.int32).long() for side in sides]
    same_sign = ((steps[0] < 0) == (steps[1] < 0)).all()
    assert same_sign, "else the distance goes through zero"
    wait_for(report, shown((steps[0] - steps[1]).abs().double()))
    assert "Units of the last place" in report.text("main")


def shown(tensor: torch.Tensor) -> list[list[str]]:
    return [[format_number(float(number)) for number in line] for line in tensor.tolist()]


def elements(report: Opened) -> list[list[str]]:
    rows = report.page.locator(".elements tbody tr")
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def wait_for(report: Opened, expected: list[list[str]]) -> None:
    """Wait until the table shows numbers; the test's own comparison says what is wrong if they never come."""
    for _ in range(100):
        if elements(report) == expected:
            return
        report.page.wait_for_timeout(50)
    assert elements(report) == expected


def test_the_map_is_drawn_and_leads_to_elements(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "trained").url, "#view=tensor&call=Aten.convolution.0.forward&value=output.0")
    report.page.wait_for_selector(".elements")
    colours = report.page.evaluate(
        """() => { const map = document.querySelector('.heat-map');
        const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
        const found = new Set(); for (let i = 0; i < data.length; i += 4) found.add(data.slice(i, i + 3).join());
        return [map.width, map.height, found.size]; }"""
    )
    tensor = open_dump(recorded / "trained").rank(0, 0).tensor("Aten.convolution.0.forward.output.0")
    assert colours[:2] == list(tensor.shape[:1:-1]) and colours[2] > 10
    box = report.page.locator(".heat-map").bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    last = [size - 1 for size in tensor.shape[2:]]
    report.page.wait_for_selector(f"text=row {last[0]}, column {last[1]}")
    report.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    wait_for(report, shown(tensor[0, 0, last[0] :, last[1] :]))


@pytest.mark.parametrize("look", slow_but_for(["narrow-dark"], LOOKS))
def test_axe_finds_nothing_in_a_tensor(
    look: str, recorded: Path, serve: Serve, open_report: Open, axe: str, artifacts: Path
) -> None:
    report = open_report(serve(recorded / "target", recorded / "baseline").url, TENSOR, **LOOKS[look])
    report.page.wait_for_selector(".elements")
    report.page.evaluate(axe)
    report.page.screenshot(path=artifacts / f"tensor-{look}.png", full_page=True)
    assert violations(report) == []
    assert report.page.evaluate("document.getElementById('main').scrollWidth") <= LOOKS[look].get("width", 1280)


def test_a_new_step_appears_in_the_open_page(recorded: Path, tmp_path: Path, serve: Serve, open_report: Open) -> None:
    path = tmp_path / "growing"
    shutil.copytree(recorded / "trained", path)
    shutil.move(path / "step2", tmp_path / "step2")
    run = json.loads((path / "run.json").read_text(encoding="utf-8"))
    (path / "run.json").write_text(json.dumps({**run, "steps": [0, 1]}), encoding="utf-8")  # as it was while it grew
    report = open_report(serve(path).url, "#view=calls")
    options = "select[aria-label='Step and rank'] option"
    assert report.texts(options) == ["step 0 rank 0", "step 1 rank 0"]
    shutil.move(tmp_path / "step2", path / "step2")
    report.page.wait_for_selector(f"{options}:text-is('step 2 rank 0')", state="attached")
    report.page.select_option("select[aria-label='Step and rank']", "target/2/0")
    report.wait_for_address("step=2")
    report.go("view=steps", "steps")
    assert "2" in report.text("main")


def test_a_view_that_is_slow_to_show_does_not_speak_for_the_next(
    recorded: Path, serve: Serve, open_report: Open
) -> None:
    report = open_report(serve(recorded / "trained").url, "#view=answer")
    held: list[Any] = []
    report.page.route("**/sections/target/1/0/tree", lambda route: held.append(route))
    report.page.evaluate("location.hash = 'view=calls&step=1'")
    for _ in range(200):
        if held:
            break
        report.page.wait_for_timeout(50)
    report.go("view=answer", "answer")
    for route in held:
        route.fulfill(status=500, content_type="text/plain", body="too late to matter")
    report.page.wait_for_timeout(500)
    assert held and report.page.locator("html[data-shown=answer]").count() == 1
    assert report.page.locator(".failed, .waiting").count() == 0
    forgive(report)


FAILING = {
    "strip": "step=1", "calls": "step=1", "call": f"step=1&call={CALL}", "graph": "step=1&module=layer1", "steps": "step=1",
    "memory": "step=1", "tensor": f"step=1&call={CALL}&value=output.0",
}  # fmt: skip


@pytest.mark.parametrize("view", one_in(4, FAILING))
def test_a_view_that_could_not_be_shown_is_asked_for_again(
    view: str, recorded: Path, serve: Serve, open_report: Open
) -> None:
    report = open_report(serve(recorded / "trained").url)
    report.page.route(re.compile(r"/(sections|tensor)[/?]"), refuse)
    report.go(f"view={view}&{FAILING[view]}", view)
    assert report.text(".failed") == REFUSAL
    report.page.unroute_all()
    report.go("view=answer", "answer")
    report.go(f"view={view}&{FAILING[view]}", view)
    report.page.wait_for_function(
        "view => document.querySelector(`.${view}-view`).innerText.length > 40 && !document.querySelector('.failed')",
        arg=view,
    )
    forgive(report)


def test_rows_that_could_not_be_read_are_told_once_and_come_later(
    recorded: Path, serve: Serve, open_report: Open
) -> None:
    report = open_report(serve(recorded / "trained").url)
    report.page.route(re.compile("/sections/target/1/0/calls/"), refuse)
    report.go("view=calls&step=1", "calls")
    report.page.wait_for_selector(f".failed:text-is('{REFUSAL}')")
    assert report.texts(".failed") == [REFUSAL] and "…" in report.texts(".result")
    report.page.unroute_all()
    report.go("view=answer", "answer")
    report.go("view=calls&step=1", "calls")
    report.page.wait_for_function(
        "() => ![...document.querySelectorAll('.result')].some(cell => cell.textContent === '…')"
    )
    assert report.texts(".failed") == []
    forgive(report)


REFUSAL = "no such bytes today"


def refuse(route: Any) -> None:
    route.fulfill(status=500, content_type="text/plain", body=REFUSAL)


def forgive(report: Opened) -> None:
    """Leave out what Chromium itself says of an answer that is an error."""
    report.wrong = [text for text in report.wrong if "500" not in text]


def test_what_was_not_recorded_is_told_in_words(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "structure").url, TENSOR)
    assert re.search("data=", report.text(".failed"))
    report.go("view=calls", "calls")
    assert report.page.locator(".failed").count() == 0


def test_the_end_of_the_server_is_told(recorded: Path, browser: object) -> None:
    served = Served(recorded / "trained")
    report = Opened(browser, served.url, "#view=calls")
    assert served.stop() == (0, "", "")
    report.page.wait_for_selector("html.alone")
    report.page.evaluate("location.hash = '#call=Aten.convolution.0.forward'")
    report.page.wait_for_selector(".failed")
    assert "has it been ended?" in report.text(".failed")
    report.wrong = [text for text in report.wrong if "ERR_CONNECTION_REFUSED" not in text]  # the browser's own
    report.close()


@pytest.mark.parametrize("name", one_in(8, STRINGS))
def test_no_string_becomes_markup(name: str, tmp_path: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(build(tmp_path / "dump", STRINGS[name])).url)
    visit_all(report)
    assert report.page.evaluate("window.hacked") is None
    assert report.page.locator("main img, main script").count() == 0


def test_a_compared_tensor_opens_at_the_difference(recorded: Path, serve: Serve, open_report: Open) -> None:
    report = open_report(serve(recorded / "target", recorded / "baseline").url + f"#call={CALL}")
    report.page.click("table.facts-table tr:has(th:text-is('output.0')) a[href*='view=tensor']")
    report.page.wait_for_selector(".heat-map")
    assert "Difference" in report.texts(".tensor-view h2")
    assert report.page.input_value(".slice-bar select") == "difference"
    report.page.select_option(".slice-bar select", "tensor")
    report.page.wait_for_function("() => document.querySelector('.tensor-view h2')?.textContent === 'This tensor'")
