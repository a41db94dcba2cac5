"""What a notebook shows of a dump, a step-rank, a call and a value: right, small, and never markup of the dump's."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.shown.notebook_html import dump_html, escaped, facts, line, shown, sizes, table, value_html
from aten_dump.dump.shown.short_texts import format_bytes, format_number, tensor_type
from tests.browser.test_hostile_strings import STRINGS, build
from tests.dump.building import Builder
from tests.dump.scenario import Scenario

TAGS = {"div", "style", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}


class Parsed(HTMLParser):
    """Tags, attributes and texts of a piece of HTML; every tag must be closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def parsed(html: str) -> Parsed:
    found = Parsed(html)
    assert found.tags <= TAGS
    assert found.attributes <= {("class", "text"), ("class", "aten-dump")}
    assert len(html) < 12_000
    return found


def test_a_dump_shows_its_steps(rank: RankDump) -> None:
    dump = open_dump(rank.directory.parent.parent)
    text = parsed(dump._repr_html_()).text
    assert str(dump.path) in text
    assert "complete" in text and format_bytes(rank.summary().index_bytes) in text
    assert sizes(rank.summary())[1] == str(len(rank.calls))


def test_a_dump_of_many_steps_stays_small(tmp_path: Path) -> None:
    rows = [[step, 0, "complete", "1", "1 B", "1 B"] for step in range(400)]
    text = parsed(dump_html("many", {"packages": {"torch": "2"}, "config": {"level": "mix"}}, rows, ["lost"])).text
    assert "... and 388 more" in text and "torch 2" in text and "level mix" in text and "lost" in text


def test_a_damaged_step_is_shown_as_such(builder: Builder) -> None:
    path = builder.finish()
    (index,) = path.glob("step*/rank*/index.msgpack")
    index.unlink()
    index.mkdir()
    assert "damaged" in parsed(open_dump(path)._repr_html_()).text


def test_a_step_rank_counts_its_calls(rank: RankDump) -> None:
    html = rank._repr_html_()
    found = parsed(html)
    assert rank.where in found.text
    for phase in ("forward", "backward", "optimizer"):
        cells = re.search(rf">{phase}</td>(.*?)</tr>", html)
        assert cells is not None
        shown_counts = [int(n) for n in re.findall(r">(\d+)<", cells[1])]
        kinds = ["aten", "api", "module", "node"]
        assert shown_counts == [len(rank.calls.filter(kind=kind, phase=phase)) for kind in kinds]


def test_a_call_shows_place_and_tensors(rank: RankDump, scenario: Scenario) -> None:
    text = parsed(rank["Aten.addmm.0.forward"]._repr_html_()).text
    for part in ("aten::addmm", "net.fc", "/home/me/train.py:42", "input.2", "f32[4, 3]", "-1.5", "2.5"):
        assert part in text, part
    assert "nan" not in text
    assert "Aten.addmm.0.forward" in parsed(rank["Aten.mm.0.backward"]._repr_html_()).text
    assert "written in place" in parsed(rank["Aten.relu_.0.forward"]._repr_html_()).text


def test_only_a_call_that_was_cut_short_has_an_unknown_time(builder: Builder) -> None:
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), id=1)
    builder.open(builder.op("module", "M", "Module", "m"), id=2)
    rank = open_dump(builder.finish(commit=False)).rank(0, 0)
    assert "unknown" not in parsed(rank["Aten.exp.0.forward"]._repr_html_()).text
    assert "unknown: the call was cut short" in parsed(rank["Module.m.0.forward"]._repr_html_()).text


def test_a_value_shows_who_made_and_who_reads_it(rank: RankDump, scenario: Scenario) -> None:
    made = rank.value_by_id(scenario.ids["wt"])
    text = parsed(made._repr_html_()).text
    assert "Aten.t.0.forward.output.0" in text and "Aten.addmm.0.forward.input.2" in text
    assert tensor_type(made) in text and format_number(3.0) in text
    outside = parsed(rank.value_by_id(scenario.ids["x"])._repr_html_()).text
    assert "created before this step" in outside and "no statistics were recorded" in outside
    many = value_html(made, made.nbytes, "", [f"reader{n}" for n in range(9)])
    assert "reader3 and 5 more" in parsed(many).text


@pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)
def test_no_text_of_a_dump_becomes_markup(text: str, tmp_path: Path) -> None:
    dump = open_dump(build(tmp_path / "dump", text))
    rank = dump.all_ranks()[0]
    for one in (dump, rank, *rank.calls, *rank.values):
        parsed(one._repr_html_()).text.encode("utf-8")
    assert escaped(text) in rank.calls[0]._repr_html_()


def test_what_is_not_to_be_seen_becomes_its_escape() -> None:
    assert escaped("a\u202eb\ud800\n<") == "a\\u202eb\\ud800\\n&lt;"
    assert escaped("x" * 5000) == "x" * 200 + "..."


def test_pieces() -> None:
    assert table(["a"], []) == line("") == ""
    assert facts({"a": None, "b": ""}).count("<tr>") == 0
    assert Parsed(shown("t", facts({"a": 1}), table(["n", "m"], [[None, 2]]))).texts == ["t", "a", "1", "n", "m", "2"]


def test_names_complete_in_a_notebook(rank: RankDump) -> None:
    assert rank._ipython_key_completions_() == [call.name for call in rank.calls]
