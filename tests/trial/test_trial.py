"""The trial itself: its operators change what they say, and its judge tells a right answer from a wrong one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.sampling import slow_but_for
from tests.trial.calls_in_forward import Rewriting
from tests.trial.cases import Case, cases, drawn_of, of_program
from tests.trial.examine import RIGHT, Baselines, _contradict, differs, examine
from tests.trial.programs import PROGRAMS
from tests.trial.slips import SLIPS


def test_a_slip_changes_only_the_call_of_its_number() -> None:
    x = torch.tensor([1.0, 2.0])
    with Rewriting(SLIPS["number x1.02"], 1, marks=False) as rewriting:
        found = [x * 2.0, x * 2.0, x / 4.0, x * x]
    wanted = [x * 2.0, x * (2.0 * 1.02), x / 4.0, x * x]
    assert rewriting.seen == 3 and all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))


def test_cases_are_the_same_for_each_run_and_a_sample_is_some_of_them() -> None:
    found = list(of_program("ppo"))
    assert found == list(cases(programs=["ppo"])) and {case.group for case in found} == {"bug", "kernel", "honest"}
    assert set(cases(programs=["ppo"], sample=4)) < set(found)


def test_ends_that_differ_by_rounding_are_equal() -> None:
    x = torch.linspace(1, 2, 9)
    assert not differs([x], [x * (1 + 1e-7)]) and differs([x], [x * 1.001]) and differs([x], [x, x])


KERNEL, BUG, HONEST = (Case("ppo", group, "sign", "kernel", 1, "mul") for group in ("kernel", "bug", "honest"))


@pytest.mark.parametrize(
    ("case", "suspects", "skipped", "odd", "kind", "contradicts"),
    [
        (KERNEL, ["Aten.mul.1.forward"], [], [], "op", False),
        (KERNEL, ["Aten.add.1.forward"], [], [], "op", True),
        (KERNEL, [], [], [], "op", True),
        (KERNEL, [], ["Aten.mul.1.forward"], [], "op", False),
        (KERNEL, ["Aten.mul.1.forward"], [], [], "nonfinite", True),
        (KERNEL, ["Aten.mul.1.forward"], [], ["Aten.mul.1.forward"], "nonfinite", False),
        (BUG, ["Aten.mul.1.forward"], [], [], "op", True),
        (BUG, [], [], ["Aten.mul.1.forward"], "op", False),
        (HONEST, [], [], [], "", False),
        (HONEST, ["Aten.mul.1.forward"], [], [], "", True),
        (HONEST, [], [], ["Aten.mul.1.forward"], "", True),
    ],
)
def test_none_of_the_tools_passes_what_another_flags(
    case: Case, suspects: list[str], skipped: list[str], odd: list[str], kind: str, contradicts: bool, tmp_path: Path
) -> None:
    def named(names: list[str]) -> list[Any]:
        return [SimpleNamespace(name=name) for name in names]

    (tmp_path / "run.json").write_text("{}")
    cause = SimpleNamespace(kind=kind) if kind else None
    found: Any = SimpleNamespace(cause=cause, exit_code=int(bool(kind)), baseline=str(tmp_path))
    replays: Any = [SimpleNamespace(suspects=named(suspects), skipped=named(skipped))]
    assert _contradict(case, r"\|Aten\.mul\.1\.", found, replays, odd) == contradicts


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        pytest.param(Case("ppo", "bug", "number x1.02", "call", 3), "call", marks=pytest.mark.slow),
        pytest.param(Case("ppo", "bug", "labels shifted from step 1", "loop"), "call", marks=pytest.mark.slow),
        (Case("ppo", "kernel", "sign", "kernel", 1, "addmm"), "call"),
        pytest.param(Case("ppo", "honest", "linear as einsum", "form"), "agrees", marks=pytest.mark.slow),
        (Case("ppo", "bug", "clipping left out", "loop"), "no effect"),
    ],
    ids=str,
)
def test_what_is_said_of_a_case(case: Case, outcome: str, tmp_path: Path) -> None:
    assert case.program in PROGRAMS
    said = examine(case, tmp_path, Baselines(tmp_path))
    assert said.outcome == outcome, said.text


SAMPLE = ("meta learner",)


@pytest.mark.parametrize("program", slow_but_for(SAMPLE, PROGRAMS))
def test_a_case_of_each_program(program: str, tmp_path: Path) -> None:
    drawn = drawn_of(program)
    said = examine(drawn, tmp_path, Baselines(tmp_path))
    assert said.outcome in (*RIGHT, "no effect"), f"{drawn}: {said.text}"
