"""Statistics of large tensors keep the digits that `capture/data/statistics/one_tensor.py` promises; those of devices too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aten_dump.capture.data.statistics import on_device, rows
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS

TENSORS: dict[str, Callable[[], Tensor]] = {
    "constant": lambda: torch.full((3_000_001,), 0.1),
    "third": lambda: torch.full((1 << 20,), 1 / 3),
    "normal": lambda: torch.randn(1_500_000),
    "far from zero": lambda: 1000 + 0.01 * torch.randn(1 << 20),
    "one step apart": lambda: 1e4 + 1e-3 * torch.randn(1 << 20),
    "minute and further from zero": lambda: 1e-12 + 1e-20 * torch.randn(300_000),
    "great and wide": lambda: 1e20 * (1 + 0.1 * torch.randn(300_000)),
    "one of them a step apart": lambda: torch.full((300_000,), 123.456).index_fill_(0, torch.tensor([7]), 123.45601),
    "thirds and a step": lambda: torch.full((300_000,), 1 / 3).index_fill_(0, torch.tensor([7]), 0.3333334),
    "wide": lambda: torch.randn(1 << 20).mul(4).exp(),
    "one great": lambda: torch.cat([torch.full((300_000,), 1e-3), torch.tensor([1e14])]),
    "huge": lambda: torch.full((300_000,), 1e30),
    "greatest": lambda: torch.full((300_000,), 3e38),
    "minute": lambda: torch.full((300_000,), 1e-30),
    "zeros": lambda: torch.zeros(300_000),
    "half": lambda: torch.full((300_000,), 6e4, dtype=torch.float16),
    "brain": lambda: torch.full((300_000,), 1 / 3).bfloat16(),
    "double": lambda: torch.randn(300_000, dtype=torch.float64),
    "transposed": lambda: torch.randn(700, 900).t(),
    "gaps": lambda: torch.randn(700, 900)[:, ::2],
    "negative": lambda: -torch.rand(300_000) - 1,
}


def reference(tensor: Tensor) -> dict[str, float]:
    x = tensor.double().flatten()
    mean = x.mean()
    return {
        "count": x.numel(), "min": x.min().item(), "max": x.max().item(), "mean": mean.item(),
        "l2norm": math.sqrt((x * x).sum().item()), "std": (x - x[0]).std().item(), "zero": int((x == 0).sum()),
        "negative": int((x < 0).sum()), "positive": int((x > 0).sum()), "nan": 0, "posinf": 0, "neginf": 0,
    }  # fmt: skip


def check(found: dict[str, float], tensor: Tensor) -> None:
    expected = reference(tensor)
    for name in ("count", "min", "max", "zero", "negative", "positive", "nan", "posinf", "neginf"):
        assert found[name] == expected[name], name
    scale = tensor.double().abs().mean().item()
    assert abs(found["mean"] - expected["mean"]) <= 1e-6 * scale
    assert abs(found["l2norm"] - expected["l2norm"]) <= 1e-6 * expected["l2norm"]
    assert abs(found["std"] - expected["std"]) <= 3e-6 * expected["std"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TENSORS)
def test_digits(name: str, threads: int) -> None:
    tensor = TENSORS[name]()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(dict(zip(STATISTICS, compute(tensor, STATISTICS), strict=True)), tensor)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("special", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [math.nan, math.inf]])
@pytest.mark.parametrize("place", [0, 700_000])
def test_one_that_is_not_finite_among_a_million(special: list[float], place: int) -> None:
    x = torch.randn(1_000_000)
    x[place : place + len(special)] = torch.tensor(special)
    found = dict(zip(STATISTICS, compute(x, STATISTICS), strict=True))
    assert (found["nan"], found["posinf"], found["neginf"]) == tuple(
        sum(map(test, special)) for test in (math.isnan, lambda n: n == math.inf, lambda n: n == -math.inf)
    )
    for name, expected in (("min", x.min()), ("max", x.max()), ("mean", x.double().mean())):
        assert found[name] == expected.item() or (math.isnan(found[name]) and expected.isnan())


@pytest.mark.parametrize("name", sorted(set(TENSORS) - {"huge", "greatest", "minute"}))
def test_what_a_device_reduces_is_put_together_again(name: str) -> None:
    """The reductions that run on a device, run on the CPU, and their end on the host."""
    tensor = TENSORS[name]()
    reduced = on_device.reduce_floats(tensor.reshape(-1), STATISTICS)
    arrays = {key: value.reshape(-1).numpy() for key, value in reduced.items()}
    found = dict(zip(STATISTICS, on_device.finish(rows.row_lengths(tensor.numel()), arrays, STATISTICS), strict=True))
    check(found, tensor)
    assert found["std"] == pytest.approx(reference(tensor)["std"], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [1, 17, 5000, 7919 * 3])
def test_integers_of_a_device(dtype: torch.dtype, size: int) -> None:
    ends = torch.iinfo(dtype)
    x = torch.randint(max(ends.min, -(1 << 40)), min(ends.max, 1 << 40), (size,), dtype=dtype)
    reduced = on_device.reduce_ints(x, STATISTICS)
    arrays = {key: value.reshape(-1).numpy() for key, value in reduced.items()}
    found = on_device.finish(rows.row_lengths(size), arrays, STATISTICS)
    for name, mine, alone in zip(STATISTICS, found, compute(x, STATISTICS), strict=True):
        assert mine == alone or mine == pytest.approx(alone, rel=1e-9), name


def test_special_numbers_of_a_device() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -1.0, 2.0, 3.0])
    for chosen in (x, x[1:], x[3:], x[:1]):
        reduced = on_device.reduce_floats(chosen, STATISTICS)
        arrays = {key: value.reshape(-1).numpy() for key, value in reduced.items()}
        found = on_device.finish(rows.row_lengths(chosen.numel()), arrays, STATISTICS)
        for name, mine, alone in zip(STATISTICS, found, compute(chosen, STATISTICS), strict=True):
            both_nan = isinstance(alone, float) and math.isnan(alone) and math.isnan(mine)
            assert both_nan or mine == alone or mine == pytest.approx(alone), name
