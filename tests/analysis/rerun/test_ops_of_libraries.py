"""Ops of libraries that raise whatever they like: each is left out with its reason, the others are replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.analysis.replay import replay_call
from aten_dump.analysis.rerun.run_op import said_by


class Silent(Exception):
    """An error whose own text raises another."""

    def __str__(self) -> str:
        raise ValueError


class Panic(BaseException):
    """What a library of Rust raises."""


RAISED: dict[str, BaseException] = {
    "assertion": AssertionError("only float32"),
    "key": KeyError("scale"),
    "attribute": AttributeError("no such thing"),
    "lookup": LookupError(),
    "os": OSError(2, "no kernel file"),
    "memory": MemoryError("too much"),
    "silent": Silent(),
    "no exception": Panic("index out of bounds"),
    "exit": SystemExit(0),
}
_raises: list[str] = []  # which of them the op raises; none while a program records it


@torch.library.custom_op("aten_dump_raising::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    if _raises:
        raise RAISED[_raises[0]]
    return x * 2


@scale.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    if _raises:
        raise RAISED[_raises[0]]
    return torch.empty_like(x)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raising") / "dump"
    with DumpMode(DumpConfig(path=str(path), data="tensor")):
        scale(torch.ones(4, 8)).exp()
    return path


@pytest.mark.parametrize("name", RAISED)
def test_an_op_that_raises_is_left_out_with_its_reason(
    recorded: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}._raises", [name])
    found: Any = replay(recorded, allow_ops=["aten_dump_raising::*"])
    (skipped,) = found.skipped
    assert skipped.name == "Custom.scale.0.forward"
    assert skipped.reason == f"it raised when replayed: {said_by(RAISED[name])}"
    assert "Aten.exp.0.forward" in {op.name for op in found.ops}
    call = open_dump(recorded).rank(0, 0)["Custom.scale.0.forward"]
    assert type(RAISED[name]).__name__ in str(replay_call(call, allow_ops=["aten_dump_raising::*"]).reason)
    assert compare(recorded, recorded, allow_ops=["aten_dump_raising::*"]).exit_code == 0


def test_an_op_of_one_dtype_is_judged_in_that(tmp_path: Path) -> None:
    @torch.library.custom_op("aten_dump_raising::of_float32", mutates_args=())
    def of_float32(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32
        return x + 1

    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor")):
        of_float32(torch.ones(4))
    found: Any = replay(tmp_path / "dump", allow_ops=["aten_dump_raising::*"])
    assert not found.skipped
    assert {op.name: op.reference for op in found.ops}["Custom.of_float32.0.forward"] == "recorded dtype"
