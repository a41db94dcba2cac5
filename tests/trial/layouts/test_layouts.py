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


SAMPLE = [  # one of each layout, of a program that is compared soon
    of("recommender", "a row", "one input of the next row"),
    of("recommender", "a padded row", "mask forgotten"),
    of("recommender", "rows reordered"),
    of("encoder", "rows in buckets", "buckets swapped"),
    of("encoder", "rows padded on the left", "positions not shifted"),
    of("encoder", "packed rows"),
    of("recurrent", "a packed sequence", "packed one short"),
    of("decoder", "a growing cache", "one cache for both layers"),
    of("decoder", "a static cache"),
    of("decoder", "a paged cache", "a stale page"),
    of("decoder", "a sliding window", "values in another slot"),
    of("recurrent", "states handed on", "state of the next row"),
    of("recurrent", "a prompt in chunks"),
    of("decoder", "a static against a growing cache"),
    of("recommender", "equal micro-batches"),
    of("recommender", "micro-batches by tokens"),
    of("recommender", "workers in one process"),
    of("images", "stages by hand", "boundary cut"),
    of("recommender", "learned from in buckets"),
    of("recommender", "a port", "two weights swapped"),
    of("decoder", "pairs for halves", "permutation of k forgotten"),
    of("encoder", "heads permuted"),
    of("encoder", "fused weights", "v taken for k"),
    of("recurrent", "gates apart", "reset before the product"),
    of("recommender", "shards summed", "shards swapped"),
    of("recommender", "a padded vocabulary"),
    of("recurrent", "tied weights", "the head of before"),
    of("recommender", "adapters merged", "scale lost"),
    of("images", "batch norms merged"),
    of("recommender", "resumed", "a parameter's moments"),
    of("experts", "tokens sorted by expert", "weights not sorted"),
    of("experts", "near ties of a router"),
]


# These take longest; `make test-slow` runs them. In `make test`: tests/analysis/parts and tests/analysis/meetings.
LONG = {
    f"way {kind}"
    for kind in (
        "a packed sequence",
        "a growing cache",
        "a paged cache",
        "a sliding window",
        "micro-batches by tokens",
        "workers in one process",
        "stages by hand",
        "rows in buckets",
        "resumed",
        "a static against a growing cache",
        "gates apart",
        "states handed on",
        "equal micro-batches",
        "learned from in buckets",
    )
}
QUICK = [case for case in SAMPLE if case.target[0] not in LONG]


def test_there_are_many_layouts_of_many_programs() -> None:
    assert len(PROGRAMS) == 8 and len(KINDS) >= 12
    assert all(len(kinds_of(program)) >= 9 for program in PROGRAMS.values())


def test_cases_are_a_layout_both_ways_and_with_each_mistake_that_it_asks_for() -> None:
    found = list(cases_of(PROGRAMS["images"]))
    assert len(set(found)) == len(found) and of("images", "equal micro-batches", "divided by four") in found
    assert of("images", "a row") in found and not any("cache" in str(case) for case in found)


def test_the_sample_has_each_layout() -> None:
    assert {case.target[0] for case in SAMPLE} == {f"way {kind}" for kind in KINDS}


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


@pytest.mark.parametrize("case", slow_but_for(QUICK, SAMPLE), ids=str)
def test_what_compare_says_of_a_layout(case: Case, tmp_path: Path) -> None:
    said = examine(case, PROGRAMS[case.program], tmp_path)
    assert said.outcome in RIGHT, f"{said.outcome}: {said.answer or said.text}"


def test_a_mistake_beside_near_ties_is_not_passed(tmp_path: Path) -> None:
    """What rounding makes one side choose is no measure of how far its values may be off."""
    case = of("experts", "near ties of a router", "an expert left out")
    assert examine(case, PROGRAMS[case.program], tmp_path).outcome not in ("passed", "undecided")
