"""What is reduced on a device and put together on the host; without ``--device``, with the CPU as the device."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.data.statistics import on_device, one_tensor, rows
from aten_dump.capture.devices import has_float64
from aten_dump.capture.torch_internals.quiet import quiet

NAMES = ("count", "min", "max", "mean", "l2norm", "std", "nan", "posinf", "neginf", "zero", "negative", "positive")
CHOICES = [*((name,) for name in NAMES), ("mean", "std"), ("std", "l2norm", "positive"), NAMES]


@pytest.mark.parametrize("count", [1, 2, 1000, 4096, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_each_choice_is_that_of_one_tensor(dtype: torch.dtype, count: int) -> None:
    x = (100 * torch.randn(count)).round().to(dtype)
    within = 1e-5 if has_float64(x.device.type) else 1e-4
    reduce = on_device.reduce_floats if dtype.is_floating_point else on_device.reduce_ints
    for names in CHOICES:
        with quiet():
            reduced = {name: part.cpu().numpy().reshape(-1) for name, part in reduce(x, names).items()}
            expected = one_tensor.compute(x.cpu(), names)
        found = on_device.finish(rows.row_lengths(count), reduced, names)
        for name, one, other in zip(names, found, expected, strict=True):
            assert one == (None if other is None else pytest.approx(other, rel=within)), (names, name)


TENSORS = {
    "transposed": torch.arange(60.0).reshape(6, 10).t(), "gaps": torch.arange(60.0)[::3], "one": torch.tensor([7.0]),
    "expanded": torch.arange(5.0).expand(11, 5), "scalar": torch.tensor(3.0), "part": torch.arange(60.0).reshape(6, 10)[1:5, 2:7],
}  # fmt: skip


@pytest.mark.parametrize("most", [1, 7, 16, 1000])
@pytest.mark.parametrize("name", TENSORS)
def test_pieces_have_each_element_once(name: str, most: int) -> None:
    found = list(on_device.pieces(TENSORS[name], most))
    assert all(piece.dim() == 1 and 0 < piece.numel() <= most for piece in found)
    assert torch.equal(torch.cat(found).sort().values, TENSORS[name].reshape(-1).sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_results_of_pieces_are_those_of_the_whole(dtype: torch.dtype) -> None:
    x = (100 * torch.randn(301, 101)).round().to(dtype)[:, :100]  # pieces of unlike lengths, in rows of unlike lengths
    reduce = on_device.reduce_floats if dtype.is_floating_point else on_device.reduce_ints
    with quiet():
        parts = list(on_device.pieces(x, 4000))
        reduced = on_device.together([reduce(part, NAMES) for part in parts])
        expected = one_tensor.compute(x, NAMES)
    lengths = [length for part in parts for length in rows.row_lengths(part.numel())]
    found = on_device.finish(lengths, {name: part.cpu().numpy().reshape(-1) for name, part in reduced.items()}, NAMES)
    assert len(set(lengths)) > 1, lengths
    for name, one, other in zip(NAMES, found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5), name
