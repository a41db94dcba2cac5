"""Honest compiled programs: bitwise as without the dump, no kernel is accused, and they agree with the program as written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from aten_dump import compare, open_dump, replay
from aten_dump.analysis.executors import verify_all
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.analysis.layers.faults import lowering
from tests.capture.bits import assert_same
from tests.compiled_programs import PROGRAMS, How, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]

_BF16: Final = torch.bfloat16
_CASTS: Final = (("options", {"emulate_precision_casts": True}),)
_DYNAMIC: Final = (("dynamic", True),)
_LOW: Final = ("dlrm", "gnn", "moe", "stack", "unet", "diffusion", "speech", "mamba", "resnet")
_TOGETHER: Final = How(
    form="regional, breaks, checkpoint", autocast=True, optimizer="compiled", rows=(4, 6, 8)
)  # of other sizes, so that it recompiles
OTHERWISE: Final = [
    *((name, How(autocast=True)) for name in _LOW),
    *((name, How(dtype=_BF16)) for name in _LOW),
    *((name, How(dtype=_BF16, options=_CASTS)) for name in ("diffusion", "moe", "stack")),
    ("gpt2", How(dtype=_BF16)),
    *((name, How(optimizer="compiled")) for name in ("dlrm", "gnn", "moe")),
    ("dlrm", How(options=_DYNAMIC, rows=(4, 6))),
    ("stack", How(options=_DYNAMIC, rows=(4, 6), optimizer="compiled")),
    *(("stack", How(form=form)) for form in ("regional", "breaks", "checkpoint")),
]


def _named(case: Any) -> str:
    if isinstance(case, str):
        return case
    changed = {name: value for name, value in vars(case).items() if value != getattr(How(), name)}
    return "-".join(f"{name}={value}" for name, value in changed.items()).replace("torch.", "")


def _judge(tmp_path: Path, name: str, how: How) -> list[Tensor]:
    """Record a program compiled and as written, judge it, and return what the compiled one came to."""
    compiled, written = str(tmp_path / "compiled"), str(tmp_path / "written")
    results = run(name, how, tmp_path / "compiled")
    run(name, replace(how, compiled=False), tmp_path / "written")
    assert not [found for found in verify_all(compiled) if found.problems]
    for step in open_dump(compiled).steps:
        rank = open_dump(compiled).step(step).rank(0)
        found = replay(rank)
        assert not found.suspects
        assert not found.layers
        assert not [one for one in found.skipped if one.op.startswith("inductor::")]
        kernels = [call for call in rank.calls if call.kernel is not None]
        assert kernels
        assert not [call.name for call in kernels if call.phase == "backward" and call.forward is None]
    for target, baseline in ((compiled, written), (written, compiled)):
        compared = compare(target, baseline)
        assert compared.exit_code == 0, compared.answer()
    return results


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiled_and_as_written(tmp_path: Path, name: str) -> None:
    recorded = _judge(tmp_path, name, How())
    for one, other in zip(recorded, run(name, How()), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(("name", "how"), OTHERWISE, ids=_named)
def test_a_program_compiled_otherwise(tmp_path: Path, name: str, how: How) -> None:
    _judge(tmp_path, name, how)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("stack", How(dtype=_BF16), How(dtype=_BF16, options=_CASTS)),
        ("stack", How(form="regional"), How(form="breaks")),
        ("dlrm", How(dtype=_BF16), How()),
        ("mamba", How(dtype=_BF16), How()),
        ("resnet", How(autocast=True), How(dtype=_BF16)),
        ("moe", How(autocast=True), How(dtype=_BF16)),
        ("decoder", _TOGETHER, replace(_TOGETHER, options=_CASTS)),
        ("decoder", _TOGETHER, replace(_TOGETHER, options=_DYNAMIC)),
    ],
    ids=_named,
)
def test_a_program_compiled_in_two_ways(tmp_path: Path, name: str, one: How, other: How) -> None:
    for how, folder in ((one, "one"), (other, "other")):
        run(name, how, tmp_path / folder)
    for target, baseline in (("one", "other"), ("other", "one")):
        found = compare(str(tmp_path / target), str(tmp_path / baseline))
        assert found.exit_code == 0, found.answer()


def test_all_at_once(tmp_path: Path) -> None:
    bare, recorded = run("decoder", _TOGETHER), _judge(tmp_path, "decoder", _TOGETHER)
    structure = run("decoder", _TOGETHER, tmp_path / "structure", "structure")
    for one, *others in zip(bare, recorded, structure, strict=True):
        for other in others:
            assert_same(one, other)


def test_a_wrong_lowering_is_named_among_all_at_once(tmp_path: Path) -> None:
    with lowering(torch.ops.aten.sigmoid.default, lambda made, mul: mul(made, 1.03)):
        run("decoder", _TOGETHER, tmp_path / "wrong")
    run("decoder", replace(_TOGETHER, compiled=False), tmp_path / "written")
    compared = compare(str(tmp_path / "wrong"), str(tmp_path / "written"))
    assert compared.exit_code == 1
    for step in range(len(_TOGETHER.rows)):
        rank = open_dump(str(tmp_path / "wrong")).step(step).rank(0)
        found = replay(rank)
        named = {one.name for one in found.layers}
        # Of the two blocks, whose backward reads a sigmoid; the forward divides by what it calculates itself.
        assert [one.layer for one in found.layers] == ["kernel"] * 2
        assert {call.phase for call in rank.calls if call.name in named} == {"backward"}
        assert any(f"step {step} rank 0: first cause {name} " in compared.answer() for name in named), compared.answer()
