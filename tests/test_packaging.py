"""What a user meets first: the import, the public names, the requirements and the README's first example."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import aten_dump
from tests import release
from tests.checkout import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PUBLIC = ["DumpMode", "DumpConfig", "open_dump", "AtenDumpError"]

IMPORT_PROBE = """
import json, sys
import torch, numpy
before = set(sys.modules)
from aten_dump import DumpConfig, DumpMode, open_dump
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run_python(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_is_light(tmp_path: Path) -> None:
    """Beyond torch and numpy it takes what is needed to record and to read, and nothing that takes long to import."""
    modules = json.loads(run_python("-c", IMPORT_PROBE, cwd=tmp_path))
    loaded = {name.partition(".")[0] for name in modules}
    slow = {
        "torch_npu",
        "transformers",
        "pytest",
        "rich",
        "click",
        "pyarrow",
        "h5py",
        "matplotlib",
        "IPython",
        "tensorboard",
    }
    assert "aten_dump" in loaded and slow.isdisjoint(loaded)
    assert not [name for name in modules if name.startswith(("torch._inductor", "torch._dynamo", "aten_dump.analysis"))]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_exists(name: str) -> None:
    import aten_dump

    assert hasattr(aten_dump, name)
    assert name in aten_dump.__all__


def test_every_name_in_all_exists() -> None:
    import aten_dump

    assert [name for name in aten_dump.__all__ if not hasattr(aten_dump, name)] == []


def test_a_torch_that_is_too_old_is_told_in_one_sentence(tmp_path: Path) -> None:
    code = "import torch; torch.__version__ = '2.5.1'\ntry:\n    from aten_dump import DumpMode\n"
    code += "except RuntimeError as error:\n    print(error)"
    said = run_python("-c", code, cwd=tmp_path)
    assert said == "aten_dump records with torch 2.6 or newer; this is 2.5.1: upgrade torch\n"


def test_the_oldest_torch_is_the_one_in_pyproject() -> None:
    from aten_dump.capture.torch_internals import OLDEST, refuse_older

    assert f"torch>={OLDEST[0]}.{OLDEST[1]}" in PROJECT["dependencies"]
    for version in (torch.__version__, "2.6.0a0+git123", "2.10.0", "3.0", "a build of our own"):
        refuse_older(version)


def test_version_is_that_of_the_distribution() -> None:
    import aten_dump

    assert aten_dump.__version__ == PROJECT["version"] == importlib.metadata.version("aten-dump")


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_no_dependency_is_pinned(requirement: str) -> None:
    assert "==" not in requirement.split(";")[0]
    assert "<" not in requirement.split(";")[0]


def test_constraints_are_exact_and_name_no_place() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pin = re.compile(r'[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*(; python_version (<|>=) "3\.1\d")?')
    assert [line for line in lines if not pin.fullmatch(line)] == []
    assert "://" not in text


@pytest.mark.parametrize("command", [["-m", "aten_dump"], ["-c", "from aten_dump.cli.main import main; main()"]])
def test_command_line_starts(command: list[str], tmp_path: Path) -> None:
    assert "show" in run_python(*command, "--help", cwd=tmp_path)


def test_installed_command_is_the_one_in_pyproject() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="aten-dump")
    assert [script.value for script in scripts] == [PROJECT["scripts"]["aten-dump"]]
    assert all(callable(script.load()) for script in scripts)


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def test_readme_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = readme_blocks("python")
    assert blocks
    assert "with DumpMode(" in blocks[0]
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), "readme.py", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "dump" / "run.json").is_file()


def test_readme_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert {"docs/format.md", "docs/architecture.md", "docs/limitations.md"} <= set(targets)


def test_what_readme_says_to_make_can_be_made() -> None:
    made = set(re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"demo", "test"} <= made <= targets


def test_type_checkers_and_editors_see_the_public_names(tmp_path: Path) -> None:
    """Before any of them is asked for: they are imported late."""
    assert (ROOT / "aten_dump" / "py.typed").is_file(), "without it mypy and pyright take every name for Any"
    code = "import aten_dump; print(sorted(set(aten_dump.__all__) - set(dir(aten_dump))))"
    assert run_python("-c", code, cwd=tmp_path) == "[]\n"


def test_all_that_names_a_version_names_the_same() -> None:
    assert release.version() == PROJECT["version"] == aten_dump.__version__


def test_another_version_ends_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyproject.toml", "aten_dump/__init__.py", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("version: 0.1.0", "version: 0.0.9"), encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"versions differ: .*'CITATION.cff': '0.0.9'"):
        release.version()


def test_the_workflow_runs_what_a_commit_must_pass() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands == {"tests": ["bash .ci/run"], "docs": ["make docs"], "wheels": [], "release": ["make release"]}
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert {"docs", "release"} <= set(targets)
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(template.read_text(encoding="utf-8"))["body"], template
