"""A kernel that is given, or writes, the wrong memory is named as the runtime's fault; an honest run has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, compare, replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.sampling import slow_but_for

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]

_MADE = "buf{} = empty_strided_cpu((8, 8), (8, 1), torch.float32)"
FAULTS = {  # what is written instead of what in the generated module, and what is said
    "the output lies in memory of the call before": (
        _MADE.format(1),
        f"{_MADE.format(1)}; buf1 = globals().setdefault('kept', buf1)",
        "writes to memory that its graph neither made nor was given",
    ),
    "an input is written to": (
        "arg0_1, arg1_1 = args",
        "arg0_1, arg1_1 = args; arg1_1.copy_(arg0_1)",
        "writes to memory that its graph was given to read, and ",
    ),
    "a kernel is given another buffer": (
        "buf2 = buf1; del buf1",
        "buf2 = buf1; buf0 = buf0.flip(0)",
        "was given other memory than that of sin",
    ),
    "a buffer is used again before it is read": (
        "buf2 = buf1; del buf1",
        "buf2 = buf1; buf0.copy_(buf1)",
        "was given other memory than that of sin",
    ),
    "another buffer is returned": ("return (buf2, )", "return (buf0, )", "was returned otherwise"),
}


def attended(x: Tensor, weight: Tensor) -> Tensor:
    scores = torch.sin(x)
    return torch.tanh(scores @ weight) * scores


@contextlib.contextmanager
def written(before: str, after: str, seen: list[str]) -> Iterator[None]:
    """Have inductor write other code around its kernels."""
    from torch._inductor.codecache import PyCodeCache

    original = PyCodeCache.write

    def write(source: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(source)
        return original(source.replace(before, after), *args, **kwargs)

    PyCodeCache.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        PyCodeCache.write = original  # type: ignore[method-assign]


def record(path: Path, *, compiled: bool) -> str:
    torch._dynamo.reset()
    function = torch.compile(attended) if compiled else attended
    x, weight = torch.linspace(-1, 1, 64).reshape(8, 8), torch.linspace(2, -1, 64).reshape(8, 8).cos()
    with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels")):
        first = function(x, weight)
        second = function(x.flip(0), weight)
        (first * x + second).sum()
    return str(path)


@pytest.mark.parametrize("name", slow_but_for(["the output lies in memory of the call before"], FAULTS))
def test_wrong_memory_is_named(tmp_path: Path, name: str) -> None:
    before, after, said = FAULTS[name]
    seen: list[str] = []
    with written(before, after, seen):
        path = record(tmp_path / "wrong", compiled=True)
    assert any(before in source for source in seen)
    found = replay(path)
    assert [one.layer for one in found.layers] == ["runtime"], [str(one) for one in found.layers]
    assert said in str(found.layers[0])
    assert not found.suspects
    compared = compare(path, record(tmp_path / "written", compiled=False))
    assert compared.exit_code == 1
    assert f"layer, in the target: {found.layers[0]}" in compared.answer()


@pytest.mark.slow
def test_honest_memory_has_no_fault(tmp_path: Path) -> None:
    path = record(tmp_path / "right", compiled=True)
    assert not replay(path).layers
    assert compare(path, record(tmp_path / "written", compiled=False)).exit_code == 0
