"""Statistics that the Triton kernel takes on a GPU are those of the definition, and nothing falls back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import device_batches
from aten_dump.capture.data.statistics import fused_launches
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
)
SPECIALS = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0])


def agree(mine: float, defined: float, near: float) -> bool:
    return (
        mine == defined
        or (mine != mine and defined != defined)
        or math.isclose(mine, defined, rel_tol=2e-6, abs_tol=near)
    )


def columns_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what the kernel reduces a tensor to; None where it cannot."""
    into = torch.zeros(
        fused_launches.PARTS, fused_launches.MOST_PROGRAMS + 5, dtype=torch.float64, device=tensor.device
    )
    programs = fused_launches.reduce(tensor, into, 5, signs=True, is_dense=False)
    assert not into[:, :5].any() and not into[:, 5 + programs :].any()
    return into[:, 5 : 5 + programs] if programs else None


@pytest.mark.parametrize("names", [STATISTICS, ("min", "mean")], ids=["all", "without signs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 2047, 2048, 2049, 1_000_003, 5_000_000])
def test_they_agree_with_the_definition(tmp_path: Path, dtype: torch.dtype, count: int, names: tuple[str, ...]) -> None:
    numbers = torch.randn(count) if dtype.is_floating_point else torch.randint(-9, 9, (count,))
    numbers = numbers.to(dtype)
    with_specials = numbers.clone()
    if dtype.is_floating_point:
        with_specials[-7:] = SPECIALS[-count:].to(dtype)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic", statistics=names, level="aten")):
        for x in (numbers, with_specials):
            torch.ops.aten.alias(x.to("cuda"))
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert [note.message for note in rank.notes if note.code == "triton"] == []
    aliases = [call for call in rank.calls if call.op == "aten::alias"]
    for x, call in zip((numbers, with_specials), aliases, strict=True):
        near = 2e-6 * x.double().abs().mean().nan_to_num(0, 0, 0).item()
        for name, defined in zip(names, compute(x, names), strict=True):
            mine = getattr(call.inputs[0][0].stats, name)
            assert agree(mine, defined, near), (name, mine, defined)
    assert not device_batches._triton_failed


LAYOUTS = {
    "every second": lambda x: x[:, ::2],
    "queries": lambda x: x[:, 100:700].view(40, 25, 12, 50).transpose(1, 2),
    "expanded": lambda x: x[:1].expand(500, 3000),
    "transposed": lambda x: x.t()[3:],
    "a row": lambda x: x[7],
    "many dimensions": lambda x: x.view(10, 100, 30, 100)[::2, ::3, ::2, ::3],  # takes several launches
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_wherever_the_elements_lie(tmp_path: Path, layout: str, dtype: torch.dtype) -> None:
    whole = (torch.randn(1000, 3000) + 10).to(dtype)
    x, there = (LAYOUTS[layout](tensor) for tensor in (whole, whole.to("cuda")))
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic", level="aten")):
        torch.ops.aten.alias(there)
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert not device_batches._triton_failed and [note for note in rank.notes if note.code == "triton"] == []
    assert (columns_of(there) is None) == (layout == "many dimensions")
    (call,) = [call for call in rank.calls if call.op == "aten::alias"]
    for name, defined in zip(STATISTICS, compute(x, STATISTICS), strict=True):
        mine = getattr(call.inputs[0][0].stats, name)
        assert agree(mine, defined, 2e-5), (name, mine, defined)


@pytest.mark.parametrize("count", [3, 2048 * fused_launches.MOST_PROGRAMS + 5])
def test_the_kernel_gives_the_same_bits_each_time(count: int) -> None:
    x = torch.randn(count, device="cuda")
    one, two = (columns_of(x) for _ in range(2))
    assert one is not None and two is not None and torch.equal(one, two)


def test_values_of_a_list_are_launched_together_and_have_the_same_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    many = fused_launches.reduce_many

    def seen(rows: list[fused_launches.Row], *others: object) -> None:
        launched.append(len(rows))
        many(rows, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fused_launches, "reduce_many", seen)
    counts = [1, 513, 70_000, 2_000_001, 3, 4096, 777]
    xs = [torch.randn(count, device="cuda") for count in counts] + [torch.randn(9, 20, device="cuda")[:, ::2]]
    xs += [torch.randn(101, device="cuda", dtype=torch.bfloat16), torch.randn(33, device="cuda")[1:]]
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic", level="aten")):
        torch._foreach_mul_(xs, 2)
        for x in xs:
            torch.ops.aten.neg(x)
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert launched[-2:] == [7, 1], (
        "those of float32 that lie in a row and on a multiple of 16 bytes, and one of bfloat16"
    )
    (written,) = [call for call in rank.calls if call.op.startswith("aten::_foreach_mul_")]
    mine = [value.stats for _, value in written.written_values()]
    for x, found in zip(xs, mine, strict=True):
        for name, defined in zip(STATISTICS, compute(x.cpu(), STATISTICS), strict=True):
            assert agree(getattr(found, name), defined, 2e-6), (x.shape, name)
