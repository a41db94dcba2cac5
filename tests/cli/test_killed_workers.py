"""--jobs with a worker that is killed: what is done is printed, what is missing is named, and nothing passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.cli.commands.tiny import record

STEPS = 6
# A worker that comes to step 3 is killed there, as by the system where memory runs out. Workers are spawned: each
# imports this at its start (sitecustomize), before it is given work.
KILLER = """
import os, signal, sys
if "spawn_main" in " ".join(sys.orig_argv):
    from aten_dump.dump.rank import RankDump
    whole = RankDump.tables.func
    def tables(self):
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self)
    from functools import cached_property
    RankDump.tables = cached_property(tables)
    RankDump.tables.__set_name__(RankDump, "tables")
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("dumps")
    (root / "site").mkdir()
    (root / "site" / "sitecustomize.py").write_text(KILLER)
    return record(root / "target", steps=STEPS), record(root / "baseline", steps=STEPS)


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["compare", "TARGET", "BASELINE"], "values compared"),
        pytest.param(["replay", "TARGET", "--all"], "steps and ranks replayed", marks=pytest.mark.slow),
        pytest.param(["verify", "TARGET"], "step/rank folders checked", marks=pytest.mark.slow),
        pytest.param(["report", "TARGET", "BASELINE", "-o", "OUT"], "wrote", marks=pytest.mark.slow),
    ],
    ids=lambda found: found[0] if isinstance(found, list) else "",
)
def test_what_is_done_is_printed_and_what_is_missing_is_named(
    words: list[str], done: str, dumps: tuple[Path, Path], tmp_path: Path
) -> None:
    places = {"TARGET": str(dumps[0]), "BASELINE": str(dumps[1]), "OUT": str(tmp_path / "report.html")}
    paths = os.pathsep.join([str(dumps[0].parent / "site"), str(ROOT)])
    command = [sys.executable, "-m", "aten_dump", *(places.get(word, word) for word in words), "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": paths}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 2, said
    assert "Traceback" not in said and "a worker process ended" in said and "step 3 rank 0" in said
    assert done in ended.stdout and "agree" not in said and "are the same" not in said
