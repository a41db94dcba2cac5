"""What is reduced on a device and put together on the host, here with the CPU as the device."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.data.statistics import on_device, one_tensor
from aten_dump.capture.torch_internals.quiet import quiet

NAMES = ("count", "min", "max", "mean", "l2norm", "std", "nan", "posinf", "neginf", "zero", "negative", "positive")
CHOICES = [*((name,) for name in NAMES), ("mean", "std"), ("std", "l2norm", "positive"), NAMES]


@pytest.mark.parametrize("count", [1, 2, 1000, 4096, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_each_choice_is_that_of_one_tensor(dtype: torch.dtype, count: int) -> None:
    x = (100 * torch.randn(count)).round().to(dtype)
    reduce = on_device.reduce_floats if dtype.is_floating_point else on_device.reduce_ints
    for names in CHOICES:
        with quiet():
            reduced = {name: part.numpy().reshape(-1) for name, part in reduce(x, names).items()}
            expected = one_tensor.compute(x, names)
        found = on_device.finish(count, reduced, names)
        for name, one, other in zip(names, found, expected, strict=True):
            assert one == (None if other is None else pytest.approx(other, rel=1e-5)), (names, name)


def test_rows_are_of_the_same_length() -> None:
    for count in (1, 1000, 1023, 2000, 2047, 2048, 100_003, 1 << 20):
        rows = on_device.rows_of(count)
        assert count % rows == 0
        assert rows == 1 or count // rows >= 1024, "rows that are too short cost more than they save"
    assert on_device.rows_of(1 << 20) == 256
