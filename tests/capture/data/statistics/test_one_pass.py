"""The compiled pass over elements against float64, for every dtype, length, stride and kind of number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.capture.data.statistics.one_pass import CODES, IS_COMPILED, of_parts
from aten_dump.capture.data.statistics.one_tensor import of_elements
from aten_dump.config import STATISTICS
from tests.capture.bits import raw

needs_compiler = pytest.mark.skipif(not IS_COMPILED, reason="nothing is compiled here: `make test-compiled` runs it")
LENGTHS = (1, 2, 3, 31, 511, 512, 513, 16_384, 16_385, 262_144, 262_145, 600_001)  # around blocks, short ones and parts
SPECIAL = {
    "nan": [math.nan, 1.0, -2.0],
    "inf": [math.inf, 1.0],
    "both": [-math.inf, math.inf, 0.0],
    "zeros": [-0.0, 0.0, 0.0],
    "denormal": [1e-40, -1e-42, 0.0],
    "minute": [1e-30, 3e-30],
    "huge": [1e30, -3e38],
}


def drawn(dtype: torch.dtype, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator, dtype=torch.float64) * 3 + 5
    if dtype == torch.bool:
        return x > 5
    if dtype.is_floating_point:
        return x.to(dtype)
    return (x.clamp(0, 100) if "u" in str(dtype) else (x - 5).clamp(-100, 100)).round().to(dtype)


def reference(x: Tensor) -> dict[str, Any]:
    wide, whole = x.double(), not x.dtype.is_floating_point
    low, high = wide.min().item(), wide.max().item()
    return {
        "count": x.numel(), "min": int(low) if whole else low, "max": int(high) if whole else high,
        "mean": wide.mean().item(), "l2norm": math.sqrt((wide * wide).sum().item()),
        "std": wide.std().item() if x.numel() > 1 else None, "nan": int(wide.isnan().sum()),
        "posinf": int((wide == math.inf).sum()), "neginf": int((wide == -math.inf).sum()),
        "zero": int((wide == 0).sum()), "negative": int((wide < 0).sum()), "positive": int((wide > 0).sum()),
    }  # fmt: skip


def check(numbers: list[Any] | None, x: Tensor) -> None:
    assert numbers is not None
    found = dict(zip(STATISTICS, numbers, strict=True))
    expected = reference(x)
    size = x.double().abs().mean().item()
    loose = x.numel() > 16_384 and x.element_size() <= 4
    bounds = {"mean": 2e-6 * size, "l2norm": 1e-6 * expected["l2norm"], "std": 3e-6 * (expected["std"] or 0)}
    for name, number in expected.items():
        mine = found[name]
        if number is None or name not in bounds:
            assert mine == number or (mine != mine and number != number), (name, mine, number)
            continue
        bound = bounds[name] if loose else 1e-11 * max(abs(number), size)
        near = mine == number or abs(mine - number) <= bound
        assert near or (not math.isfinite(mine) and not math.isfinite(number)), (name, mine, number)


@needs_compiler
@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_dtype_and_length(dtype: torch.dtype, count: int) -> None:
    x = drawn(dtype, count)
    check(of_elements(x.view(torch.uint8) if dtype == torch.bool else x), x)


@needs_compiler
@pytest.mark.parametrize("dtype", [d for d in CODES if d.is_floating_point], ids=str)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("count", [3, 20_000, 300_000])
def test_numbers_that_are_special_at_each_end_of_a_block(dtype: torch.dtype, kind: str, count: int) -> None:
    x = drawn(dtype, count)
    special = torch.tensor(SPECIAL[kind], dtype=torch.float64).to(dtype)
    for place in (0, 511, 512, count // 2, count - len(special)):
        if 0 <= place <= count - len(special):
            x[place : place + len(special)] = special
    check(of_elements(x), x)
    alone = special.repeat(count // len(special))
    check(of_elements(alone), alone)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int16], ids=str)
def test_elements_that_are_not_side_by_side_and_memory_that_is_not_aligned(dtype: torch.dtype) -> None:
    x = drawn(dtype, 40_000)
    for part in (x[1:], x[3:-1], x[::3], x.view(200, 200)[:, 7], x[:1].expand(30_000)):
        check(of_elements(part), part)


@needs_compiler
@pytest.mark.parametrize("far", [1e4, 1e6])
def test_a_mean_far_from_zero_costs_the_std_no_digits(far: float) -> None:
    x = torch.randn(500_000) + far
    check(of_elements(x), x)


@needs_compiler
def test_any_number_of_threads_gives_the_same_bits() -> None:
    x, before = torch.randn(4 << 22), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3, 64):
        torch.set_num_threads(threads)
        found.append(of_elements(x))
    torch.set_num_threads(before)
    assert found[0] is not None
    assert [one == found[0] for one in found] == [True] * 4


@needs_compiler
def test_integers_at_their_ends_are_exact() -> None:
    for dtype in (torch.int8, torch.int32, torch.int64, torch.uint64):
        ends = torch.iinfo(dtype)
        found = of_elements(torch.tensor([ends.max, ends.min, 0, ends.max], dtype=dtype), ("min", "max", "zero"))
        assert found == [ends.min, ends.max, 1 + (ends.min == 0)]
    assert of_elements(torch.full((1_000_001,), 2**31 - 2, dtype=torch.int64), ("mean",)) == [2**31 - 2]


@needs_compiler
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_many_tensors_have_each_their_own(dtype: torch.dtype) -> None:
    tensors = [drawn(dtype, count, seed) for seed, count in enumerate((1, 700, 3, 512, 20_000))]
    found = of_parts([raw(x) for x in tensors], dtype)
    assert found is not None and len(found) == 5
    for one, x in zip(found, tensors, strict=True):
        check(one, x)
    few = of_parts([raw(x) for x in tensors], dtype, ("max", "count"))
    assert few == [[one[STATISTICS.index("max")], one[0]] for one in found]


@needs_compiler
@pytest.mark.parametrize("part", [b"", b"12345"])
def test_bytes_that_are_no_elements_are_refused(part: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(part)} bytes"):
        of_parts([b"1234", part], torch.float32)


def test_what_it_does_not_know_is_left_to_torch() -> None:
    assert of_elements(torch.ones(3, dtype=torch.complex64)) is None
    assert of_elements(torch.ones(3, device="meta")) is None
    assert of_parts([b"1234"], torch.float8_e5m2) is None
    assert (of_elements(torch.ones(3)) is not None) == IS_COMPILED
