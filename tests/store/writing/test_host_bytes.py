"""Bytes in host memory are copied from where they are."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from aten_dump.store.writing.host_bytes import HostBytes, bytes_at, memory_at


@pytest.mark.parametrize("nbytes", [0, 1, 100, 1 << 17])
@pytest.mark.parametrize("offset", [0, 64])
def test_parts_are_copied(nbytes: int, offset: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes + offset, dtype=np.uint8).tobytes()
    seconds = {"copy": 0.0}
    source = HostBytes.of(data)
    source = HostBytes(source._address, data, seconds)
    target = ctypes.create_string_buffer(nbytes + 1)
    source(offset, ctypes.addressof(target), nbytes)
    assert target.raw == data[offset:] + b"\0", "and not a byte more"
    assert seconds["copy"] > 0


def test_no_bytes() -> None:
    HostBytes.of(b"")(0, 0, 0)


def test_a_copy_stays_as_it_was_and_a_view_follows_its_memory() -> None:
    array = np.arange(5, dtype=np.uint8)
    copy, view = bytes_at(array.ctypes.data + 1, 3), memory_at(array.ctypes.data + 1, 3)
    array[:] = 9
    assert (copy, bytes(view), view.readonly, view.format) == (b"\1\2\3", b"\t\t\t", True, "B")
