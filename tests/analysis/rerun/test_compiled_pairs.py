"""Honest compiled programs: bitwise as without the dump, no kernel is accused, and they agree with the program as written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import compare, open_dump, replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.capture.bits import assert_same
from tests.compiled_programs import PROGRAMS, How, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiled_and_as_written(tmp_path: Path, name: str) -> None:
    compiled, written = str(tmp_path / "compiled"), str(tmp_path / "written")
    recorded, bare = run(name, How(), tmp_path / "compiled"), run(name, How())
    for one, other in zip(bare, recorded, strict=True):
        assert_same(one, other)
    run(name, How(compiled=False), tmp_path / "written")
    for step in open_dump(compiled).steps:
        found = replay(open_dump(compiled).step(step).rank(0))
        assert not found.suspects
        assert not found.layers
        assert not [one for one in found.skipped if one.op.startswith("inductor::")]
    for target, baseline in ((compiled, written), (written, compiled)):
        found = compare(target, baseline)
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("name", ["moe", "dlrm"])
def test_under_autocast(tmp_path: Path, name: str) -> None:
    compiled, written = str(tmp_path / "compiled"), str(tmp_path / "written")
    run(name, How(autocast=True), tmp_path / "compiled")
    run(name, How(autocast=True, compiled=False), tmp_path / "written")
    for target, baseline in ((compiled, written), (written, compiled)):
        found = compare(target, baseline)
        assert found.exit_code == 0, found.answer()
