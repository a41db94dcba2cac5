"""Every tensor is an array: where numpy has no such dtype, the next wider one with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aten_dump.export.values.arrays import as_array

HALVES = [0.5, -1.5, 2.0]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float64", "float64"), ("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"), ("float8_e5m2", "float32"), ("int8", "int8"), ("int64", "int64"),
        ("uint8", "uint8"), ("uint16", "uint16"), ("complex64", "complex64"), ("complex128", "complex128"),
    ],
)  # fmt: skip
def test_numbers_are_the_same_in_the_next_wider_dtype(dtype: str, expected: str) -> None:
    numbers = [0, 1, 2] if "int" in dtype else HALVES
    found = as_array(torch.tensor(numbers).to(getattr(torch, dtype)))
    assert found.dtype == np.dtype(expected)
    np.testing.assert_array_equal(found, numbers)


def test_complex_halves_are_no_reals() -> None:
    x = torch.view_as_complex(torch.tensor([[0.5, -2.0]], dtype=torch.float16))
    found = as_array(x)
    assert found.dtype == np.complex64 and found.tolist() == [0.5 - 2j]


def test_bits_of_views_are_applied() -> None:
    x = torch.tensor([1 + 2j])
    assert as_array(x.conj()).tolist() == [1 - 2j]
    assert as_array(x.conj().imag).tolist() == [-2.0]


def test_layouts_and_gradients_are_left_behind() -> None:
    dense = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    np.testing.assert_array_equal(as_array(dense.to_sparse()), dense.numpy())
    np.testing.assert_array_equal(as_array(dense.to_sparse_csr()), dense.numpy())
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert as_array(torch.ones(2, 3).t()).shape == (3, 2)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_quantized_numbers_are_those_they_stand_for() -> None:
    x = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 3, torch.quint8)
    assert as_array(x).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4", "int2", "bits8", "bits16"])
def test_what_torch_reads_no_numbers_of_stays_bytes(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    raw = torch.arange(8, dtype=torch.uint8)
    found = as_array(raw.view(dtype))
    assert found.view(np.uint8).tolist() == raw.tolist() and found.size == 8 // dtype.itemsize
