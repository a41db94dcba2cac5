"""What the page shows is what `open_dump` says, wherever one clicks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aten_dump import compare, open_dump
from aten_dump.dump import RankDump
from aten_dump.report.units import format_number, tensor_type
from tests.browser.opened import Opened

Report = Callable[..., Path]
Open = Callable[..., Opened]
CAUSE = "Aten.native_batch_norm.2.forward"


@pytest.fixture(scope="session")
def pair(recorded: Path, report_of: Report) -> Path:
    return report_of(recorded / "target", recorded / "baseline")


@pytest.fixture(scope="session")
def rank(recorded: Path) -> RankDump:
    return open_dump(recorded / "target").rank(0, 0)


def rows(report: Opened) -> list[str]:
    """Return the names of the rows that are drawn, in order."""
    return list(
        report.page.evaluate(
            """() => [...document.querySelectorAll('.rows .row:not([hidden])')]
            .sort((a, b) => a.getAttribute('aria-rowindex') - b.getAttribute('aria-rowindex'))
            .map(row => row.querySelector('.name-text').textContent)"""
        )
    )


def cell(report: Opened, call: str, name: str) -> str:
    return str(
        report.page.evaluate(
            """([call, name]) => [...document.querySelectorAll('.rows .row:not([hidden])')]
            .find(row => row.querySelector('.name-text').textContent === call).querySelector('.cell.' + name).textContent""",
            [call, name],
        )
    ).strip()


def test_the_cause_is_named_and_leads_to_its_call(pair: Path, recorded: Path, open_report: Open) -> None:
    cause = compare(recorded / "target", recorded / "baseline").cause
    assert cause is not None
    report = open_report(pair)
    assert report.text("h1") == f"The dumps differ. First cause: step 0, {CAUSE} (models.py:37)"
    card = report.text(".cause-card")
    for text in (CAUSE, cause.row.place.source, cause.row.place.module, cause.text[1:], format_number(cause.row.ratio)):
        assert text in card
    report.page.click(".cause-name a")
    report.wait_for_address(f"call={CAUSE}")
    assert report.text("h1") == CAUSE


def test_the_table_is_the_tree(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, "#view=calls")
    expected: list[str] = []
    waiting = list(reversed(rank.roots))
    while waiting:
        call = waiting.pop()
        expected.append(call.name)
        waiting += reversed(call.children)
    seen: list[str] = []
    while len(seen) < len(expected):
        for name in rows(report):
            if name not in seen:
                seen.append(name)
        before = report.page.evaluate("document.querySelector('.grid').scrollTop")
        report.page.evaluate("document.querySelector('.grid').scrollTop += 300")
        report.page.wait_for_timeout(40)
        if before == report.page.evaluate("document.querySelector('.grid').scrollTop"):
            break
    assert seen == expected
    assert report.page.get_attribute("[role=treegrid]", "aria-rowcount") == str(len(expected) + 1)


def test_a_row_has_the_facts_of_its_call(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, f"#view=calls&call={CAUSE}")
    report.page.wait_for_function("() => !document.querySelector('.rows').textContent.includes('…')")
    call = rank[CAUSE]
    output = call.output_values()[0][1]
    assert cell(report, CAUSE, "op") == call.op
    assert cell(report, CAUSE, "module") == call.module
    assert cell(report, CAUSE, "phase") == call.phase
    assert cell(report, CAUSE, "result").startswith(f"({tensor_type(output)}, ")
    assert output.stats is not None
    assert cell(report, CAUSE, "statistic") == format_number(output.stats["l2norm"])


@pytest.mark.parametrize(
    ("query", "filters"),
    [
        ("op:aten::convolution", {"op": "aten::convolution"}),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("op:batch_norm phase:backward", {"op": "batch_norm", "phase": "backward"}),
                ("kind:module", {"kind": "module"}),
                ("name:relu.1.", {"name": "relu.1."}),
            )
        ),
        ("module:layers.*.bn1", {"module": "layers.*.bn1"}),
        ("op:regex:^aten::(add|mul)_", {"op": "regex:^aten::(add|mul)_"}),
        ("phase:optimizer kind:aten op:add", {"phase": "optimizer", "kind": "aten", "op": "add"}),
    ],
)
def test_the_search_finds_what_the_command_line_finds(
    query: str, filters: dict[str, str], pair: Path, rank: RankDump, open_report: Open
) -> None:
    report = open_report(pair, "#view=answer")
    report.press("/")
    report.page.keyboard.type(query)
    report.wait_for_address(f"q={query}")
    expected = [call.name for call in rank.calls.filter(**filters)]
    assert expected
    report.page.wait_for_function(
        "n => document.querySelector('.found')?.textContent.startsWith(n + ' of')", arg=f"{len(expected):,}"
    )
    matched = report.page.evaluate(
        "[...document.querySelectorAll('.rows .row:not([hidden]):not(.outer) .name-text')].map(e => e.textContent)"
    )
    assert matched and set(matched) <= set(expected)


@pytest.mark.parametrize("query", ["models.py:37", "layers.1", "status:different", "dtype:i64", '"source:models.py"'])
def test_other_words_of_the_search(query: str, pair: Path, rank: RankDump, recorded: Path, open_report: Open) -> None:
    report = open_report(pair, f"#view=calls&q={query}")
    report.page.wait_for_function("() => /^[1-9][0-9,]* of/.test(document.querySelector('.found')?.textContent)")
    matched = report.page.evaluate(
        "[...document.querySelectorAll('.rows .row:not([hidden]):not(.outer) .name-text')].map(e => e.textContent)"
    )
    assert matched
    for call in map(rank.__getitem__, matched):
        source = f"{call.source.file}:{call.source.line}" if call.source else ""
        if query == "models.py:37":
            assert query in source
        elif query == "layers.1":
            assert query in f"{call.module} {call.name}"
        elif query == "dtype:i64":
            assert any(value.dtype_name == "int64" for _, value in call.output_values())
        elif "source" in query:
            assert "models.py" in source


@pytest.mark.parametrize(
    ("query", "says"), [("op:regex:(", "regular expression"), ("phase:sideways", "allowed: forward")]
)
def test_a_wrong_search_says_what_is_wrong(query: str, says: str, pair: Path, open_report: Open) -> None:
    report = open_report(pair, f"#view=calls&q={query}")
    assert says in report.text(".found")


def test_a_call_shows_its_arguments_and_results(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, f"#call={CAUSE}")
    call = rank[CAUSE]
    text = report.text("main")
    for frame in call.stack:
        if frame.user:
            assert f"{frame.file}:{frame.line}" in text
    for slot, value in [*call.input_values(), *call.output_values(), *call.written_values()]:
        (row,) = [
            row
            for row in report.texts("table[class=facts-table] tr")
            if row.split("\t")[0].strip() == slot and tensor_type(value) in row
        ]
        assert value.stats is not None
        for name in ("min", "max", "mean", "std", "l2norm"):
            assert format_number(value.stats[name]) in re.split(r"\s+", row), (slot, name, row)
        made = value.producer
        if slot.startswith("input"):
            assert (made[0].name if made else "created before this step") in row
    assert "aten-dump replay" in report.text(".command")


def test_links_lead_from_call_to_call(pair: Path, rank: RankDump, open_report: Open) -> None:
    call = rank[CAUSE]
    report = open_report(pair, f"#call={CAUSE}")
    producer = call.input_values()[0][1].producer
    assert producer is not None
    report.page.click(f"a.call-link:text-is('{producer[0].name}')")
    report.wait_for_address(f"call={producer[0].name}")
    report.page.go_back()
    report.wait_for_address(f"call={CAUSE}")
    report.press("b")
    backward = next(one for one in call.backward if one.kind == "aten")
    report.wait_for_address(f"call={backward.name}")
    report.press("f")
    report.wait_for_address(f"call={CAUSE}")
    report.press("p")
    assert call.parent is not None
    report.wait_for_address(f"call={call.parent.name}")
    report.press("f")  # it has none: nothing happens
    report.go(f"call={CAUSE}", "call")
    report.press("o")
    report.wait_for_address("side=baseline")
    assert report.text("h1") == CAUSE


def test_recomputed_calls_and_originals_link_each_other(recorded: Path, report_of: Report, open_report: Open) -> None:
    rank = open_dump(recorded / "recompute").rank(0, 0)
    again = rank.calls.filter(phase="recompute", kind="aten")[0]
    assert again.forward is not None
    report = open_report(report_of(recorded / "recompute"), f"#call={again.forward.name}")
    assert again.name in report.text("main")
    report.page.click(f"a.call-link:text-is('{again.name}')")
    report.wait_for_address(again.name)
    assert again.forward.name in report.text("main")


def test_the_strip_selects_everywhere(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, "#view=strip")
    holder = report.page.locator(".strip-holder")
    box = holder.bounding_box()
    assert box is not None
    report.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 170)
    report.wait_for_address("call=")
    name = report.address.split("call=")[1].split("&")[0]
    assert name in rank and rank[name].phase == "forward"
    report.press("3")
    report.wait_for_address("view=calls")
    report.page.wait_for_selector(".row[aria-selected=true]")
    assert report.text(".row[aria-selected=true] .name-text") == name


def test_the_strip_zooms_and_goes_from_call_to_call(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, "#view=strip&call=Aten.convolution.0.forward")
    report.page.focus(".strip-holder")
    report.press("+", "+", "ArrowRight", "j")
    report.wait_for_address("call=")
    leaves = [call.name for call in rank.calls if not call.children]
    following = leaves[leaves.index("Aten.convolution.0.forward") + 1]
    report.wait_for_address(f"call={following}")
    report.press("k")
    report.wait_for_address("call=Aten.convolution.0.forward")
    for way in report.page.evaluate("[...document.querySelector('.strip-bar select').options].map(o => o.value)"):
        report.page.select_option(".strip-bar select", way)
        report.page.wait_for_timeout(30)
    assert report.page.locator("canvas.strip").count() == 1


def test_over_steps_any_value_can_be_followed(recorded: Path, report_of: Report, open_report: Open) -> None:
    dump = open_dump(recorded / "trained")
    report = open_report(report_of(recorded / "trained"), "#view=steps")
    report.page.wait_for_selector(".chart canvas")
    for name in ("Aten.addmm.0.forward.output.0", "head.weight"):
        report.go(f"view=steps&value={name}", "steps")
        report.page.wait_for_function("name => document.querySelector('.series-input').value === name", arg=name)
        report.page.wait_for_selector(".chart canvas")
        report.page.click(".line-table summary")
        shown = [row.split()[-1] for row in report.texts(".line-table tbody tr")]
        values = [
            dump.rank(step, 0).gradients[name] if name == "head.weight" else dump.rank(step, 0).value(name)
            for step in dump.steps
        ]
        assert shown == [format_number(value.stats["l2norm"]) for value in values if value.stats]


def test_memory_is_that_of_the_dump(pair: Path, rank: RankDump, open_report: Open) -> None:
    from aten_dump.report.units import format_bytes

    saved = rank.saved_for_backward()
    report = open_report(pair, "#view=memory")
    assert report.text("h1") == f"{format_bytes(saved.nbytes - saved.outside_nbytes)} kept for backward"
    report.page.click("svg.treemap a >> nth=0")
    report.wait_for_address("module=")


def test_keys_of_the_table(pair: Path, rank: RankDump, open_report: Open) -> None:
    report = open_report(pair, "#view=calls")
    report.page.focus("[role=treegrid]")
    report.press("j")
    report.wait_for_address(f"call={rank.roots[0].name}")
    report.press("ArrowRight")  # opened at first: on to the first inside
    report.wait_for_address(f"call={rank.roots[0].children[0].name}")
    report.press("ArrowLeft", "ArrowLeft", "ArrowLeft")  # closes it, goes out, closes that
    report.page.wait_for_function(
        "() => document.querySelector('.row[aria-selected=true]')?.getAttribute('aria-expanded') === 'false'"
    )
    report.press("Enter")
    report.wait_for_address("view=call&")
    assert report.text("h1") == rank.roots[0].name
    report.press("?")
    assert report.page.locator("dialog[open]").count() == 1
    report.press("Escape")
    assert report.page.locator("dialog[open]").count() == 0


def test_the_theme_can_be_chosen(pair: Path, open_report: Open) -> None:
    report = open_report(pair)
    background = "getComputedStyle(document.body).backgroundColor"
    light = report.page.evaluate(background)
    report.page.click("button[aria-label^=Theme]")
    assert report.page.evaluate(background) == light
    report.page.click("button[aria-label^=Theme]")
    assert report.page.evaluate(background) != light
