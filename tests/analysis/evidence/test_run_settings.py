"""What two runs were set to otherwise is told beside the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.evidence.run_settings import ran_as_written, set_otherwise

RUN = {
    "packages": {"torch": "2.13.0", "numpy": "2.0"},
    "devices": ["cpu"],
    "threads": 2,
    "computing": {"deterministic": False, "float32_matmul_precision": "highest"},
}


def test_what_differs_is_named_with_both_settings() -> None:
    other = {
        "packages": {"torch": "2.11.0", "numpy": "1.0"},
        "devices": ["cuda:0"],
        "threads": 2,
        "computing": {"deterministic": True, "float32_matmul_precision": "highest", "cudnn": 9},
    }
    assert set_otherwise(RUN, other) == (
        "the runs were set otherwise: torch 2.13.0, in the baseline 2.11.0; devices cpu, in the baseline cuda:0; "
        "deterministic off, in the baseline on",
    )


@pytest.mark.parametrize("other", [RUN, {}, {"packages": None, "computing": []}, {"threads": None}], ids=str)
def test_what_is_alike_or_unknown_is_not(other: dict[str, object]) -> None:
    assert set_otherwise(RUN, other) == set_otherwise(other, RUN) == ()


def test_many_are_cut() -> None:
    one, other = ({"computing": {f"switch{i}": side for i in range(10)}} for side in ("a", "b"))
    (sentence,) = set_otherwise(one, other)
    assert "switch7 a" in sentence and "switch8" not in sentence and sentence.endswith("; and 2 more")


def test_the_answer_tells_it(tmp_path: Path) -> None:
    def run(name: str, precision: str, scale: float) -> Path:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            with DumpMode(DumpConfig(path=tmp_path / name, data="tensor")):
                torch.mm(torch.eye(3), torch.full((3, 3), scale))
        finally:
            torch.set_float32_matmul_precision(before)
        return tmp_path / name

    base, high = run("base", "highest", 1.0), run("high", "high", 1.0)
    note = "Note: the runs were set otherwise: float32_matmul_precision high, in the baseline highest"
    assert note in compare(run("off", "high", 2.0), base).answer() and note in compare(high, base).answer()
    assert "set otherwise" not in compare(run("off too", "high", 2.0), high).answer()


def _recorded(path: Path, how: str) -> str:
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    with DumpMode(DumpConfig(path=str(path), compile=how)):
        compiled(torch.ones(1, 2))
    return str(path)


@pytest.mark.filterwarnings("ignore:aten_dump. the compiled function")
def test_it_is_said_where_the_compiler_was_left_out(tmp_path: Path) -> None:
    written, compiled = _recorded(tmp_path / "written", "eager"), _recorded(tmp_path / "compiled", "opaque")
    text = "compiled functions ran as written in {}, so a bug of the compiler cannot show here"
    for target, baseline, where in (
        (written, compiled, "the target"),
        (compiled, written, "the baseline"),
        (written, written, "both dumps"),
    ):
        assert text.format(where) in compare(target, baseline).answer()
    assert "as written" not in compare(compiled, compiled).answer()


@pytest.mark.parametrize("run", [{}, {"coverage": None}, {"coverage": {"notes": []}}], ids=str)
def test_nothing_is_said_of_runs_that_do_not_tell(run: dict[str, object]) -> None:
    assert ran_as_written(run, run) == ()
