"""The pytest plugin, run by pytest in a process of its own: goldens are written, compared with, updated."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from aten_dump.testing import Golden
from tests import forked
from tests.checkout import ROOT

PAGE = (ROOT / "docs" / "guide" / "pin-numerics-in-ci.md").read_text(encoding="utf-8")
TESTS = """
import contextlib, os
import pytest, torch
from torch import nn

def _train(golden, name, **config):
    from tests.analysis.held_out.devices import SPLIT, Device
    from aten_dump import DumpConfig

    torch.manual_seed(0)
    variant = os.environ.get("VARIANT", "")
    norm = nn.LayerNorm(24, eps=1e-2 if variant == "eps" else 1e-5)
    model = nn.Sequential(nn.Linear(40, 24), norm, nn.GELU(), nn.Linear(24, 3))  # the model
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x, y = torch.randn(8, 40), torch.randint(0, 3, (8,))
    with Device(SPLIT) if variant == "split" else contextlib.nullcontext():
        with golden(name, model=model, **config) as dump:
            for _ in range(2):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                dump.step()

def test_statistics(golden):
    _train(golden, "statistics")

def test_bits(golden):
    _train(golden, "bits", data="hash")

def test_error(golden):
    if os.environ.get("VARIANT") == "error":
        with golden("error"):
            torch.ones(2) + 1
            raise KeyError("the program's own")

def test_names(golden):
    with golden("one"):
        torch.ones(2) + 1
    for wrong in ("one", "../one", ""):
        with pytest.raises(Exception, match="the name must be new and a file name"):
            golden(wrong)

@pytest.mark.parametrize("width", [4, 8])
def test_shared(golden, width):
    if os.environ.get("VARIANT") == "shared":
        with golden("shared"):
            torch.ones(width) + 1

def test_nothing(golden):
    if os.environ.get("VARIANT") == "nothing":
        with golden("nothing"):
            pass
"""
# Runs pytest several times in one process, as torch takes seconds to import.
DRIVER = """
import contextlib, importlib.metadata, io, json, os, shutil, sys
import pytest

installed = "aten_dump" in [point.name for point in importlib.metadata.entry_points(group="pytest11")]
plugin = [] if installed else ["-p", "aten_dump.testing"]
found = []
for variant, ci, arguments in json.loads(sys.argv[1]):
    os.environ["VARIANT"] = variant
    os.environ["CI"] = ci
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = pytest.main([*plugin, "-p", "no:cacheprovider", "-q", *arguments])
    found.append([int(code), out.getvalue()])
print(json.dumps(found), file=sys.__stdout__)
"""


def run(folder: Path, runs: list[tuple[str, str, list[str]]]) -> list[tuple[int, str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = forked.run(["-c", DRIVER, json.dumps(runs)], folder / "said", environment, folder)
    assert done.code == 0, done.said
    return [(code, text) for code, text in json.loads(done.said.splitlines()[-1])]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests_of_it").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "tests_of_it" / "test_net.py").write_text(TESTS)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "tests_of_it" / "test_step.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def runs(project: Path) -> dict[str, tuple[int, str]]:
    cases: dict[str, tuple[str, str, list[str]]] = {
        "missing in CI": ("", "true", ["-k", "statistics"]),
        "first": ("", "", []),
        "again": ("", "true", []),
        "other kernels": ("split", "", ["-k", "statistics"]),
        "other kernels by bits": ("split", "", ["-k", "bits"]),
        "other eps": ("eps", "", ["-k", "statistics"]),
        "error": ("error", "", ["-k", "error"]),
        "nothing": ("nothing", "", ["-k", "nothing"]),
        "shared": ("shared", "", ["-k", "shared"]),
        "update": ("eps", "true", ["--golden-update", "-k", "statistics"]),
        "updated": ("eps", "true", ["-k", "statistics"]),
        "as it was": ("", "", ["-k", "statistics"]),
    }
    return dict(zip(cases, run(project, list(cases.values())), strict=True))


def test_a_golden_is_written_first_and_compared_with_then(runs: dict[str, tuple[int, str]], project: Path) -> None:
    code, text = runs["first"]
    assert code == 0, text
    assert len(re.findall(r"^golden written: .*goldens/test_net/(?:statistics|bits|one)$", text, re.MULTILINE)) == 3
    assert "golden written" not in runs["again"][1]
    assert runs["again"][0] == 0, runs["again"][1]
    assert (project / "tests_of_it" / "goldens" / "test_step" / "training-step" / "values.txt").is_file()


def test_a_golden_that_is_missing_in_ci_fails(runs: dict[str, tuple[int, str]]) -> None:
    code, text = runs["missing in CI"]
    assert code == 1 and "there is no golden" in text
    assert "run `pytest --golden-update tests_of_it/test_net.py::test_statistics`, and commit it" in text


def test_other_honest_kernels_pass_and_bits_do_not(runs: dict[str, tuple[int, str]]) -> None:
    assert runs["other kernels"][0] == 0, runs["other kernels"][1]
    assert runs["other kernels by bits"][0] == 1


def test_a_failure_names_the_first_cause_and_how_to_update(runs: dict[str, tuple[int, str]]) -> None:
    code, text = runs["other eps"]
    assert code == 1
    assert "First cause: Aten.native_layer_norm.0.forward" in text and "eps is 0.01, in the baseline 1e-05" in text
    assert "test_net.py:" in text and "If the change is meant: run `pytest --golden-update" in text


def test_an_update_replaces_the_golden(runs: dict[str, tuple[int, str]]) -> None:
    assert runs["update"][0] == 0 and "golden written" in runs["update"][1]
    assert runs["updated"][0] == 0, runs["updated"][1]
    assert runs["as it was"][0] == 1


def test_an_error_of_the_program_is_its_own_and_leaves_nothing(runs: dict[str, tuple[int, str]], project: Path) -> None:
    code, text = runs["error"]
    assert code == 1 and 'KeyError: "the program\'s own"' in text.replace(
        "'the program\\'s own'", '"the program\'s own"'
    )
    assert runs["nothing"][0] == 1 and "nothing was recorded in its block" in runs["nothing"][1]
    left = sorted(path.name for path in (project / "tests_of_it" / "goldens" / "test_net").iterdir())
    assert left == ["bits", "one", "shared", "statistics"]


def test_two_tests_that_share_a_golden_are_named(runs: dict[str, tuple[int, str]]) -> None:
    code, text = runs["shared"]
    assert code == 1 and "1 passed" in text
    assert "recorded by tests_of_it/test_net.py::test_shared[4]; two tests cannot share a golden" in text
    assert "run `pytest --golden-update 'tests_of_it/test_net.py::test_shared[8]'`" in text, "to paste into any shell"
    assert "two tests cannot share" not in runs["other eps"][1]


def test_a_golden_is_small_readable_and_names_no_place(runs: dict[str, tuple[int, str]], project: Path) -> None:
    golden = project / "tests_of_it" / "goldens" / "test_net" / "statistics"
    files = [path for path in golden.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    for path in files:
        assert str(project).encode() not in path.read_bytes() and str(ROOT).encode() not in path.read_bytes()
    values = (golden / "values.txt").read_text()
    assert re.search(
        r"^  Module\.0\.0\.forward\.output\.0  float32\[8, 24\]  mean \S+, std \S+, min \S+, max \S+$", values, re.M
    )
    assert re.search(r"^  gradient of 3\.bias  float32\[3\]  mean ", values, re.MULTILINE)


def test_the_workflow_of_the_page_runs_the_test_of_the_page() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["goldens"]["steps"]
    assert "pytest tests/test_step.py" in [step.get("run") for step in steps]
    assert "tests/test_step.py" in PAGE.split("```python")[0]


def test_pytest_finds_the_plugin() -> None:
    entry = '[project.entry-points.pytest11]\naten_dump = "aten_dump.testing"\n'
    assert entry in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert Golden.__call__.__doc__
