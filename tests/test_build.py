"""How the package is built: each C file alone, by compilers that refuse what is not declared, and what fails is told."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from aten_dump.cli import build_text
from tests.checkout import ROOT

STRICT = ("-Wall", "-Werror=implicit-function-declaration", "-Werror=int-conversion")


def _hatch_build() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.skipif(not (ROOT / "hatch_build.py").is_file(), reason="hatch_build.py is not here")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_each_c_file_declares_what_it_calls(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    include = f"-I{sysconfig.get_path('include')}"
    for file in _hatch_build().C_FILES:
        command = [compiler, "-fsyntax-only", *STRICT, include, str(ROOT / file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_a_file_that_fails_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("setuptools")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAGS", "-Werror=implicit-function-declaration")
    good = (ROOT / "aten_dump/capture/_collector.c").read_text(encoding="utf-8")
    Path("aten_dump").mkdir()
    Path("aten_dump/_first.c").write_text(good.replace("_collector", "_first"), encoding="utf-8")
    Path("aten_dump/_wrong.c").write_text("#include <Python.h>\nint one(void) { return nobody_declares(1); }\n")
    Path("aten_dump/_collector.c").write_text(good, encoding="utf-8")
    failed: dict[str, str] = {}
    files = ["aten_dump/_first.c", "aten_dump/_wrong.c", "aten_dump/_collector.c"]
    _hatch_build().compile_c_files(tmp_path, files, "-O0", failed)
    assert sorted(path.name.partition(".")[0] for path in (tmp_path / "lib").rglob("*.so")) == ["_collector", "_first"]
    (why,) = failed.values()
    assert list(failed) == ["_wrong"] and why.startswith("aten_dump/_wrong.c:2:") and "nobody_declares" in why
    assert "nobody_declares" in capfd.readouterr().err, "what the compiler said is shown too"


def test_the_version_says_what_was_not_compiled_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_text, "_PACKAGE", tmp_path)
    plain = build_text.build_text()
    assert plain in ("compiled", "pure Python")
    (tmp_path / "_not_compiled.json").write_text('{"capture._collector": "_collector.c:12: error: no such function"}')
    assert build_text.build_text() == (
        f"{plain}; not compiled: capture._collector (_collector.c:12: error: no such function)"
    )
