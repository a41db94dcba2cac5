"""Bytes of tensors: what a shard calls them, and that they are the elements in row-major order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from aten_dump.capture.data import hash_functions
from aten_dump.capture.data.blob_dtypes import blob_dtype
from aten_dump.capture.data.byte_copies import copy_bytes
from aten_dump.capture.data.tensor_bytes import copied_bytes, gathered, host_bytes, row_major
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.store.writing.host_bytes import HostBytes
from tests.store.memory_sink import MemorySink

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32,
]  # fmt: skip


def test_copied_bytes_are_those_of_the_elements_in_row_major_order() -> None:
    base = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    for one in (base, base.t(), base[1:, ::2], base[:1].expand(3, 6), base[2, 3], base[:0]):
        with quiet():
            assert copied_bytes(one) == one.contiguous().numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_names_are_those_that_safetensors_reads(dtype: torch.dtype) -> None:
    name, size = blob_dtype(dtype, 8 * dtype.itemsize)
    header = safetensors.torch.save({"x": torch.zeros(8, dtype=torch.uint8).view(torch.uint8)})
    assert f'"dtype":"{name}"'.encode() in safetensors.torch.save({"x": torch.zeros(2, dtype=dtype)}), header
    assert size == dtype.itemsize


def test_every_dtype_has_elements_of_its_size() -> None:
    names = (
        "complex32",
        "complex128",
        "uint64",
        "float8_e8m0fnu",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "qint8",
        "quint8",
        "qint32",
    )
    for dtype in [*DTYPES, *(getattr(torch, name) for name in names if hasattr(torch, name))]:
        name, size = blob_dtype(dtype, 8 * dtype.itemsize)
        assert size == (dtype.itemsize // 2 if name in ("F16", "F64") and dtype.is_complex else dtype.itemsize)
        assert blob_dtype(dtype, 0) == (name, size)


def test_bytes_that_are_no_whole_elements_are_bytes() -> None:
    assert blob_dtype(torch.float32, 7) == ("U8", 1)
    assert blob_dtype(torch.complex128, 32) == ("F64", 8)
    assert blob_dtype(torch.quint4x2, 3) == ("U8", 1)


def expected(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().untyped_storage())[: tensor.numel() * tensor.element_size()]


@pytest.mark.parametrize("first", [None, 0, 1, 3, 5, 24, 99])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[:, 1::2],
        lambda x: x[:, :1].expand(-1, 5),
        lambda x: x.flip(0),
        lambda x: x[:, 1],
    ],
    ids=["plain", "transposed", "gaps", "expanded", "flipped", "column"],
)
def test_row_major(view: Callable[[Tensor], Tensor], first: int | None) -> None:
    x = view(torch.randn(4, 6))
    with quiet():
        found = row_major(x, first)
    assert expected(found) == expected(x.reshape(-1)[:first])


def test_row_major_is_raw_and_host_bytes_are_resolved() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    negative = torch._neg_view(torch.arange(3.0))
    with quiet():
        assert expected(row_major(x.conj(), None)) == expected(x)
        assert expected(row_major(negative, None)) == expected(torch.arange(3.0))
        for given, plain in ((x.conj(), x.conj().resolve_conj()), (negative, -torch.arange(3.0)), (x[:0], x[:0])):
            _owner, data = host_bytes(given)
            assert bytes(data) == expected(plain)


def test_a_copy_of_bytes_begins_where_it_is_told() -> None:
    x, sink = torch.arange(64, dtype=torch.uint8), MemorySink(piece_bytes=16)
    sink.store("U8", [40], 40, copy_bytes(x[3:], 10, {"copy": 0.0}))
    assert sink.blobs[1] == bytes(range(10, 50))


@pytest.mark.parametrize("shift", [0, 1, 16, 32])  # of the memory that it is copied to
@pytest.mark.parametrize("nbytes", [100, 300_000, 1_000_001])
def test_a_checksum_that_is_told_of_a_copy_is_that_of_its_bytes(nbytes: int, shift: int) -> None:
    x = torch.randint(0, 256, (nbytes + 5,), dtype=torch.uint8)
    fill = copy_bytes(x, 5, {"copy": 0.0})
    assert isinstance(fill, HostBytes)
    memory = ctypes.create_string_buffer(nbytes + 96)
    place = -(-ctypes.addressof(memory) // 64) * 64 + shift
    fill(0, place, nbytes)
    copied = ctypes.string_at(place, nbytes)
    assert copied == bytes(x[5:].tolist()) and fill.checksum in (b"", xxhash.xxh3_64_digest(copied))
    is_taken = hash_functions.IS_COMPILED and nbytes > 300 and shift % 32 == 0
    assert bool(fill.checksum) == is_taken
    fill(64, place, nbytes - 64)
    assert fill.checksum == b"", "it is not that of a part"


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t(),
    lambda x: x[:, ::2],
    lambda x: x.view(2, 3, 4).permute(2, 0, 1),
    lambda x: x[:, :1].expand(6, 5),
    lambda x: x[::2, 1],
    lambda x: x.view(1, 6, 1, 4).transpose(1, 3),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.int64, torch.complex128, torch.float8_e5m2], ids=str
)
def test_elements_that_lie_apart_are_gathered_from_any_to_any(
    layout: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    tensor = layout((torch.arange(24.0) % 7).to(dtype).view(6, 4))
    size, count = tensor.element_size(), tensor.numel()
    with quiet():
        whole = row_major(tensor, None).view(torch.uint8)
        for first in range(count):
            for past in range(first + 1, count + 1):
                found = gathered(tensor, first, past, resolved=True)
                assert found is not None and torch.equal(found, whole[first * size : past * size])


@pytest.mark.parametrize("view", [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.conj().t()])
def test_bits_are_applied_to_what_is_gathered_where_that_is_asked(view: Callable[[Tensor], Tensor]) -> None:
    tensor = view(torch.complex(torch.arange(6.0), torch.arange(6.0) + 10).view(2, 3))
    resolved = gathered(tensor, 1, 5, resolved=True)
    assert resolved is not None
    expected = tensor.contiguous().resolve_conj().resolve_neg().view(-1)[1:5]
    assert torch.equal(resolved.view(tensor.dtype), expected)
    raw = gathered(tensor, 1, 5, resolved=False)
    with quiet():
        in_memory = row_major(tensor, None)[1:5]
    assert torch.equal(in_memory if raw is None else raw.view(tensor.dtype), in_memory)


def test_what_lies_in_a_row_is_not_gathered() -> None:
    x = torch.arange(24.0).view(6, 4)
    assert gathered(x, 0, 24, resolved=True) is None and gathered(x[2:], 3, 4, resolved=False) is None
