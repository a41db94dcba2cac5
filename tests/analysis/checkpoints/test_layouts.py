"""One tensor against one: each way it may be laid out, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import aten_dump


def matrix() -> Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(3))


ORDER = torch.randperm(64, generator=torch.Generator().manual_seed(4))
WAYS: dict[str, Any] = {
    "equal": (lambda w: w.clone(), "equal", "equal"),
    "transposed": (lambda w: w.T.contiguous(), "transposed", "transposed"),
    "rows": (lambda w: w[ORDER], "permuted", "rows in another order"),
    "columns": (lambda w: w.flip(1), "permuted", "columns in reverse order"),
    "heads": (lambda w: w.view(4, 16, 32)[[2, 0, 3, 1]].reshape(64, 32), "permuted", "blocks of 16 rows (heads)"),
    "reshaped": (lambda w: w.view(4, 16, 32), "reshaped", "reshaped from [64, 32]"),
    "squeezed": (lambda w: w[:, :, None, None], "equal", "equal"),
    "scaled": (lambda w: w * 0.125, "scaled", "times 0.125"),
    "negative": (lambda w: -w, "scaled", "times -1"),
    "padded": (lambda w: torch.cat([w, torch.zeros(8, 32)]), "padded", "padded: rows 64-71 are 0"),
    "padded columns": (lambda w: torch.cat([w, torch.zeros(64, 8)], 1), "padded", "padded: columns 32-39 are 0"),
    "half": (lambda w: w.half(), "cast", "float32 to float16, at most 0.5 ulp of float16"),
    "bfloat16": (lambda w: w.bfloat16(), "cast", "float32 to bfloat16, at most 0.5 ulp of bfloat16"),
    "double": (lambda w: w.double(), "cast", "float32 to float64, exactly"),
    "through bfloat16": (lambda w: w.bfloat16().float(), "cast", "rounded to bfloat16, kept as float32"),
    "truncated": (
        lambda w: (w.view(torch.int32) & -65536).view(torch.float32).bfloat16(),
        "cast",
        "float32 to bfloat16, at most 1 ulp of bfloat16",
    ),
    "transposed and cast": (lambda w: w.T.bfloat16(), "cast", "transposed, float32 to bfloat16"),
    "to and fro": (lambda w: (w.double() * 3 / 3 * (1 + 1e-8)).float(), "", ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways(way: str) -> None:
    make, kind, text = WAYS[way]
    found = aten_dump.weights({"ours": make(matrix())}, {"theirs": matrix()})
    assert found.exit_code == 0, found.answer()
    (weight,) = found
    assert (weight.target, weight.baseline) == (("ours",), ("theirs",))
    assert not kind or kind in weight.how
    assert text in weight.text


def element(w: Tensor) -> Tensor:
    w[40, 7] += 0.01
    return w


def rows_swapped_within(w: Tensor) -> Tensor:
    w[5, [0, 1]] = w[5, [1, 0]]
    return w


FAULTS: dict[str, Any] = {
    "one element": (element, "1 of 2048 elements differ, in rows 40"),
    "one row": (lambda w: torch.cat([w[:9], w[9:10] + 1, w[10:]]), "32 of 2048 elements differ, in rows 9"),
    "two elements of a row changed places": (rows_swapped_within, "2 of 2048 elements differ, in rows 5"),
    "one NaN": (lambda w: w.index_fill(0, torch.tensor([3]), float("nan")), "32 of 2048 elements differ, in rows 3"),
    "a permutation twice": (lambda w: w[ORDER][:, ORDER % 32][:, :32], ""),
    "scale of one part in two hundred": (lambda w: (w * 1.005).bfloat16(), "times 1.005"),
    "other weights": (lambda w: torch.randn(64, 32), "nothing in common"),
    "trained on": (lambda w: w + 1e-3 * torch.randn(64, 32), "2048 of 2048 elements differ"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    make, text = FAULTS[fault]
    found = aten_dump.weights({"layer.weight": make(matrix())}, {"layer.weight": matrix()})
    assert text in found.answer()
    assert found.exit_code == 1 or "times 1.005" in text  # a factor is said, whatever it is for


def test_a_factor_for_each_row_needs_a_norm_that_makes_it() -> None:
    factors = torch.rand(64, 1) + 0.5
    found = aten_dump.weights({"layer.weight": matrix() * factors}, {"layer.weight": matrix()})
    assert found.exit_code == 1
    assert "each of its rows times a factor of its own" in found.answer()
    with_norm = {"layer.weight": matrix(), "norm.weight": factors[:, 0]}
    assert aten_dump.weights({"layer.weight": matrix() * factors}, with_norm).exit_code == 0


def test_elements_in_an_order_that_nothing_explains() -> None:
    scrambled = matrix().view(-1)[torch.randperm(2048)].view(64, 32)
    found = aten_dump.weights({"layer.weight": scrambled}, {"layer.weight": matrix()})
    assert found.exit_code == 1
    assert "the same elements in another order" in found.answer()


def test_a_kernel_that_was_viewed_in_the_order_of_another_framework() -> None:
    kernel = torch.randn(48, 16, 3)
    for wrong in (kernel.permute(2, 1, 0).reshape(48, 16, 3), kernel.permute(1, 0, 2).reshape(48, 16, 3)):
        assert aten_dump.weights({"conv.weight": wrong}, {"conv.weight": kernel}).exit_code == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_zero_is_altered_by_next_to_nothing(dtype: torch.dtype) -> None:
    """A bias that was never trained, one that was for a step; and one element of a weight."""
    for size in (64, 768):
        biases = {f"{n}.bias": torch.zeros(size, dtype=dtype) for n in range(8)}
        trained = {name: 1e-3 * torch.randn(size).to(dtype) for name in biases}
        found = aten_dump.weights(trained, biases)
        assert [weight.how[0] for weight in found] == ["altered"] * 8
        assert all(weight.target == weight.baseline for weight in found)
    weight = matrix().to(dtype)
    weight[3] = 0
    other = weight.clone()
    other[3, 4] = 1e-3
    found = aten_dump.weights({"w": other}, {"w": weight})
    assert [one.differing for one in found if one.target] == [1]


def test_vectors_follow_in_any_order() -> None:
    bias = torch.randn(64)
    found = aten_dump.weights({"q.bias": bias.view(4, 2, 8).transpose(1, 2).reshape(64).half()}, {"q.bias": bias})
    assert found.exit_code == 0
    assert "permuted within heads of 16: halves became pairs" in found.of("q.bias").text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_nearly_the_same(dtype: torch.dtype) -> None:
    """All but the same direction: a common offset is larger than what tells them apart."""
    near = 1 + 0.05 * torch.randn(128, 64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(128, generator=torch.Generator().manual_seed(2))
    found = aten_dump.weights({"down": near[order].to(dtype)}, {"down": near})
    assert found.exit_code == 0, found.answer()


def test_rows_that_are_repeated() -> None:
    """Keys and values of grouped heads, written out for each head."""
    found = aten_dump.weights({"k": matrix().view(4, 16, 32).repeat_interleave(2, 0).reshape(128, 32)}, {"k": matrix()})
    assert found.exit_code == 0
    assert "rows are repeated" in found.of("k").text


def test_what_holds_nothing_learned_is_no_fault() -> None:
    plain = {"layer.weight": matrix()}
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    frequencies = 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32)
    more = plain | {"attn.bias": mask, "rotary.inv_freq": frequencies, "positions": torch.arange(64)[None]}
    for found in (aten_dump.weights(more, plain), aten_dump.weights(plain, more)):
        assert found.exit_code == 0
        assert all(text in found.answer() for text in ("a causal mask", "frequencies", "positions 0, 1, 2"))
    assert aten_dump.weights(plain | {"norm.weight": torch.ones(32)}, plain).exit_code == 1  # never loaded?


def test_equal_norms_are_paired_by_their_names() -> None:
    """All 1: contents say nothing."""
    ours = {f"layers.{n}.norm.weight": torch.ones(32) for n in range(12)} | {"layers.3.w": matrix()}
    theirs = {f"h.{n}.ln.weight": torch.ones(32) for n in range(12)} | {"h.3.w": matrix()}
    found = aten_dump.weights(ours, theirs)
    assert found.exit_code == 0
    assert found.of("layers.11.norm.weight").baseline == ("h.11.ln.weight",)


def test_scalars_empty_tensors_integers_and_complex_ones() -> None:
    state = {
        "scale": torch.tensor(0.5), "none": torch.zeros(0, 4), "ids": torch.tensor([3, 1, 2]),
        "rotations": torch.randn(8, 8, dtype=torch.complex64), "short": torch.tensor([1.5, 2.5]),
    }  # fmt: skip
    assert aten_dump.weights(state, dict(state)).exit_code == 0
    found = aten_dump.weights(state | {"scale": torch.tensor(0.25), "ids": torch.tensor([3, 1, 4])}, state)
    assert {weight.target[0] for weight in found if not weight.accounted} == {"scale", "ids"}


def test_eight_bits() -> None:
    found = aten_dump.weights({"w": (matrix() * 4).to(torch.float8_e4m3fn)}, {"w": matrix()})
    assert found.exit_code == 0
    assert "float8_e4m3fn" in found.answer()


def test_large_tensors_are_read_in_parts() -> None:
    """More elements than are taken to float64 at a time, of a length that does not divide."""
    torch.manual_seed(0)
    wide = torch.randn(3001, 2503)
    found = aten_dump.weights({"a": wide.T.contiguous(), "b": wide[ORDER.sort().values + 100].bfloat16()}, {"w": wide})
    assert found.of("a").how == ("transposed",)
    assert found.of("b").part == "rows 100-163 of 3001"
