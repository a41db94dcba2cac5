"""The trial itself, and a case of each layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sampling import slow_but_for
from tests.trial.rewritings.examine import RIGHT, Case, examine

from .cases import KINDS, Layouts, asked, cases_of, kinds_of, load
from .tasks import Run

PROGRAMS = load()


def of(program: str, kind: str, bug: str = "") -> Case:
    """Return a case of a layout, honest or with a mistake."""
    baseline = f"way {KINDS[kind][1].__name__.replace('_', ' ')}"
    return Case(program, (f"way {kind}", *([f"bug {bug}"] if bug else [])), (baseline,))


SAMPLE = [
    of("encoder", "a row", "a row less"),
    of("recommender", "a padded row", "mask forgotten"),
    of("recommender", "rows reordered", "not put back"),
]


def test_there_are_many_layouts_of_many_programs() -> None:
    assert len(PROGRAMS) == 8 and len(KINDS) >= 12
    assert all(len(kinds_of(program)) >= 9 for program in PROGRAMS.values())


def test_cases_are_a_layout_both_ways_and_with_each_mistake_that_it_asks_for() -> None:
    found = list(cases_of(PROGRAMS["images"]))
    assert len(set(found)) == len(found) and of("images", "equal micro-batches", "divided by four") in found
    assert of("images", "a row") in found and not any("cache" in str(case) for case in found)


def test_each_mistake_has_a_place_or_a_module(tmp_path: Path) -> None:
    for kind in kinds_of(PROGRAMS["recommender"]):
        for bug in asked(PROGRAMS["recommender"], f"way {kind}"):
            assert PROGRAMS["recommender"].places(bug), bug


def test_what_a_layout_is_judged_by_is_finite() -> None:
    for program in PROGRAMS.values():
        run = ran(program, "way a row")
        assert run.ends and all(end.isfinite().all() for end in run.ends), program.name


def ran(program: Layouts, way: str) -> Run:
    found = program.go((way,))
    assert isinstance(found, Run)
    return found


@pytest.mark.parametrize("case", slow_but_for(SAMPLE, SAMPLE), ids=str)
def test_what_compare_says_of_a_layout(case: Case, tmp_path: Path) -> None:
    said = examine(case, PROGRAMS[case.program], tmp_path)
    assert said.outcome in RIGHT, f"{said.outcome}: {said.answer or said.text}"
