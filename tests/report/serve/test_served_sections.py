"""What is served is what a file would hold, also of a dump that grows, is cut short, or is damaged."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from aten_dump import compare, open_dump
from aten_dump.report.html.payload.sections import Subject, report_sections
from aten_dump.report.serve import served_dump
from aten_dump.report.serve.served_dump import OpenedRanks, ServedDump, early_facts, unreadable
from tests.browser import dumps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    for name in ("trained", "target", "baseline", "interrupted", "empty"):
        dumps.RECORDERS[name](folder)
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the dump is a new one."""
    monkeypatch.setattr(served_dump, "_FRESH_SECONDS", 0.0)


def header(section: bytes | None) -> Any:
    assert section is not None
    size = int.from_bytes(section[:4], "little")
    return json.loads(section[4 : 4 + size])["json"]


def step_ranks(served: ServedDump) -> list[dict[str, Any]]:
    found = header(served.outline())["sides"]["target"]["step_ranks"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", ["trained", "interrupted", "empty"])
def test_sections_are_those_of_the_file(name: str, folder: Path) -> None:
    age(folder / name)
    subject = Subject(open_dump(folder / name), "1")
    served = ServedDump(subject)
    written = dict(report_sections(subject))
    outline = header(written.pop("outline"))
    for section in list(written):
        if not section.endswith("histograms"):  # these are served value by value
            assert served.section(section) == written[section], section
    for before, after in zip(outline["sides"]["target"]["step_ranks"], step_ranks(served), strict=True):
        assert {key: after[key] for key in ("step", "rank", "calls", "values", "statistics", "complete", "shown")} == {
            key: before[key] for key in ("step", "rank", "calls", "values", "statistics", "complete", "shown")
        }
        facts = header(served.section(f"target/{before['step']}/{before['rank']}/facts"))
        nonfinite = header(served.section(f"target/{before['step']}/{before['rank']}/nonfinite"))
        assert {**facts, "shown": True, "nonfinite": nonfinite} == {**before, "early": False}


def age(dump: Path) -> None:
    """Make the indexes of a dump old: nobody writes them any more."""
    for index in dump.rglob("index.msgpack"):
        os.utime(index, (1, 1))


def test_a_comparison_is_that_of_the_file(folder: Path) -> None:
    target, baseline = open_dump(folder / "target"), open_dump(folder / "baseline")
    subject = Subject(target, "1", baseline, compare(target, baseline))
    served = ServedDump(subject)
    written = dict(report_sections(subject))
    for side in ("target", "baseline"):
        assert served.section(f"{side}/0/0/judged") == written[f"{side}/0/0/judged"]
    assert header(served.outline())["comparison"] == header(written["outline"])["comparison"]
    assert ServedDump(Subject(target, "1")).section("target/0/0/judged") is None


def test_a_histogram_is_made_of_each_value(folder: Path) -> None:
    served = ServedDump(Subject(open_dump(folder / "trained"), "1"))
    rank = open_dump(folder / "trained").rank(0, 0)
    found = [served.section(f"target/0/0/histograms/{at}") for at in range(20)]
    assert any(found) and served.section(f"target/0/0/histograms/{len(rank.values)}") is None


def test_new_steps_appear_when_they_are_whole(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "growing"
    shutil.copytree(folder / "trained", path)
    later = [tmp_path / name for name in ("step1", "step2")]
    for place in later:
        shutil.move(path / place.name, place)
    served = ServedDump(Subject(open_dump(path), "1"))
    first = served.generation
    assert [one["step"] for one in step_ranks(served)] == [0] and served.section("target/1/0/tree") is None
    steps = header(served.section("steps"))["steps"]
    assert (steps, served.refresh()) == ([0], first), "nothing is new"
    index = later[0] / "rank0" / "index.msgpack"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    shutil.move(later[0], path / "step1")
    assert served.refresh() == first + 1
    assert [(one["step"], one["shown"], one["complete"]) for one in step_ranks(served)] == [
        (0, True, True),
        (1, False, False),
    ]
    (path / "step1" / "rank0" / "index.msgpack").write_bytes(whole)
    assert served.refresh() == first + 2
    assert [(one["step"], one["shown"]) for one in step_ranks(served)] == [(0, True), (1, True)]
    assert served.section("target/1/0/tree") is not None and header(served.section("steps"))["steps"] == [0, 1]


def test_what_nobody_writes_any_more_is_interrupted(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder / "interrupted", tmp_path / "cut"))
    (index,) = path.rglob("index.msgpack")
    os.utime(index)
    served = ServedDump(Subject(open_dump(path), "1"))
    assert [one["shown"] for one in step_ranks(served)] == [False]
    age(path)
    served.refresh()
    (found,) = step_ranks(served)
    assert found["shown"] and not found["complete"] and found["missing"] and found["calls"] > 0
    (place,) = open_dump(path).all_ranks()
    assert early_facts(place)["shown"] and not early_facts(place)["complete"]


def test_a_damaged_step_does_not_keep_the_others_from_being_shown(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder / "trained", tmp_path / "damaged"))
    index = path / "step1" / "rank0" / "index.msgpack"
    index.unlink()
    index.mkdir()
    found = step_ranks(ServedDump(Subject(open_dump(path), "1")))
    assert [one["shown"] for one in found] == [True, False, True] and found[1]["missing"]
    assert unreadable(open_dump(path).rank(1, 0), "why")["missing"] == ["why"]


def test_few_indexes_are_held(folder: Path) -> None:
    places = open_dump(folder / "trained").all_ranks()
    opened = OpenedRanks(most_calls=len(places[0].calls) + 1)
    held = []
    for place in places:
        with opened.use(place, links=False) as rank:
            held.append(rank)
    with opened.use(places[-1], links=False) as rank:
        assert rank is held[-1], "the last one stays"
    with opened.use(places[0], links=False) as rank:
        assert rank is not held[0], "the first one had to go"


def test_calls_are_shown_while_relations_are_read(folder: Path) -> None:
    opened = OpenedRanks()
    place = open_dump(folder / "trained").rank(0, 0)
    done = threading.Event()

    def look() -> None:
        with opened.use(place, links=False):
            done.set()

    with opened.use(place, links=True):
        threading.Thread(target=look, daemon=True).start()
        assert done.wait(30)
    begun = threading.Event()

    def wait_for_links() -> None:
        with opened.use(place, links=True):
            begun.set()

    with opened.use(place, links=True):
        threading.Thread(target=wait_for_links, daemon=True).start()
        time.sleep(0.2)
        assert not begun.is_set(), "two at once would read them twice"
    assert begun.wait(30)
