"""The trial itself, and a sample of its cases."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sampling import slow_but_for

from .examine import RIGHT, Case, cases_of, examine
from .running import Program, Run, load

PROGRAMS = load()
CASES = [case for program in PROGRAMS.values() for case in cases_of(program)]
# A program written otherwise, and a bug in one: the command runs all.
QUICK = [Case("momentum_queue", ("way queue bound anew",))]
DRAWN = random.Random(1).sample([case for case in CASES if case not in QUICK], 41)


def test_names_of_cases_are_those_in_the_file_and_each_bug_has_a_place() -> None:
    assert len(PROGRAMS) >= 20 and set(QUICK) <= set(CASES) and len(set(CASES)) == len(CASES)
    assert all(program.places(bug) for program in PROGRAMS.values() for bug in program.names("bug"))


def test_a_bug_is_at_the_statement_that_asks_for_it_and_at_those_marked(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        'x = 1\nif on.bug("one"):\n    x = 2\nelse:\n    x = f(\n        3\n    )  # at one, two\ny = on.bug("two")\n'
    )
    program = Program("program", (file,), lambda run: None)
    assert program.names("bug") == ["one", "two"]
    assert program.places("one") == {("program.py", at) for at in (2, 3, 5, 6, 7)}
    assert program.places("two") == {("program.py", at) for at in (5, 6, 7, 8)}


def test_a_run_has_what_was_chosen() -> None:
    run = Run(["way einsum", "bug scale"])
    assert run.way("einsum") and run.bug("scale") and not run.way("scale") and not run.bug("einsum")


@pytest.mark.parametrize("case", slow_but_for(QUICK, [*QUICK, *DRAWN]), ids=str)
def test_what_compare_says_of_a_case(case: Case, tmp_path: Path) -> None:
    said = examine(case, PROGRAMS[case.program], tmp_path)
    assert said.outcome in RIGHT, f"{said.outcome}: {said.answer or said.text}"


def test_what_a_program_is_judged_by_is_finite() -> None:
    """What is not a number hides every bug."""
    for program in PROGRAMS.values():
        run = Run()
        program.train(run)
        assert run.ends and all(end.isfinite().all() for end in run.ends), program.name
