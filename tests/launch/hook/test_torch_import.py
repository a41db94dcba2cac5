"""The wait for torch, in processes that begin as ``aten-dump run`` begins them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from aten_dump.launch.hook import torch_import
from tests.checkout import ROOT

HOOK = Path(torch_import.__file__).parent


def python(script: str, *more: Path, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (HOOK, *more, path))),
        torch_import.VARIABLE: json.dumps({"path": "dump"}),
    }
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_without_torch_nothing_of_ours_is_loaded() -> None:
    script = (
        "import sys; print([m for m in sys.modules if 'aten_dump' in m or m in ('torch', 'numpy', 'torch_import')])"
    )
    assert python(script).stdout == "[]\n"


def test_the_folder_of_the_hook_is_on_no_path() -> None:
    script = f"import sys; print({str(HOOK)!r} in sys.path)"
    assert python(script).stdout == "False\n"


def test_torch_is_imported_as_ever_and_recording_waits() -> None:
    script = (
        "import sys, torch; from torch import nn\n"
        "print(type(torch.__spec__.loader).__name__, 'exec_module' in vars(torch.__spec__.loader))\n"
        "print(nn.Module.__call__.__module__, [type(f).__name__ for f in sys.meta_path if not isinstance(f, type)])"
    )
    done = python(script)
    first, second = done.stdout.splitlines()
    assert first == "SourceFileLoader False"
    assert second.startswith("torch.nn.modules.module ")
    assert "TorchFinder" not in second


def test_a_sitecustomize_of_the_users_own_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("MINE = 3\n")
    assert python("import sitecustomize; print(sitecustomize.MINE)", tmp_path).stdout == "3\n"


def test_a_python_without_aten_dump_runs_unrecorded_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "aten_dump.py").write_text("raise ImportError('not here')\n")
    done = python("import torch; print(1)", tmp_path)
    assert done.stdout == "1\n"
    assert "cannot import aten_dump (not here), so process" in done.stderr
    assert "install it for that Python too" in done.stderr
