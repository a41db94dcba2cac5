"""xxh3 by several threads, and of elements that do not lie in a row, against xxhash: every length, layout and dtype."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aten_dump.capture.data import hash_functions
from aten_dump.capture.data.hash_functions import LEAST_BYTES, digest_of_elements
from aten_dump.store.writing.checksums import HASHERS, HASHES
from tests.capture.bits import raw
from tests.capture.data.test_gather import DTYPES, LARGE, drawn

needs_compiler = pytest.mark.skipif(
    not hash_functions.IS_COMPILED, reason="not compiled here, or no AVX2: `make test-compiled` runs it"
)


def found(x: Tensor, threads: int) -> bytes:
    return hash_functions.xxh3_of_elements(x.data_ptr(), x.element_size(), tuple(x.shape), x.stride(), threads)


def at_once(x: Tensor) -> bytes | None:
    nbytes = x.numel() * x.element_size()
    return digest_of_elements("xxh3", (x.dtype, 0, nbytes, x.data_ptr(), (tuple(x.shape), x.stride())))


@needs_compiler
def test_every_length_up_to_three_blocks() -> None:
    x = drawn(3100, torch.uint8)
    for nbytes in range(LEAST_BYTES, 3100):
        assert found(x[:nbytes], 1) == xxhash.xxh3_64_digest(raw(x[:nbytes])), nbytes


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("nbytes", [1 << 16, (1 << 18) + 1, (4 << 20) + 1, (4 << 20) + 1025, 9_000_001])
def test_long_memory_by_any_number_of_threads(nbytes: int, threads: int) -> None:
    x = drawn(nbytes, torch.uint8)
    assert found(x, threads) == xxhash.xxh3_64_digest(raw(x))


@needs_compiler
@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_that_do_not_lie_in_a_row(dtype: torch.dtype, layout: str) -> None:
    x = LARGE[layout](drawn(70_000, dtype))
    expected = xxhash.xxh3_64_digest(raw(x.contiguous()))
    assert found(x, 1) == found(x, 2) == at_once(x) == expected


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    dtype=st.sampled_from(DTYPES),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    threads=st.integers(1, 3),
)
def test_any_layout(sizes: list[int], dtype: torch.dtype, order: random.Random, step: int, threads: int) -> None:
    whole = drawn(torch.Size(sizes).numel() * step, dtype).view(*sizes[:-1], sizes[-1] * step)[..., ::step]
    dims = list(range(len(sizes)))
    order.shuffle(dims)
    x = whole.permute(dims)
    if x.numel() * x.element_size() >= LEAST_BYTES:
        assert found(x, threads) == xxhash.xxh3_64_digest(raw(x.contiguous()))


@needs_compiler
def test_several_threads_of_python_at_once() -> None:
    tensors = [drawn(1_000_000 + i, torch.float32)[i:].view(1000, 1000).t() for i in range(4)]
    expected = [xxhash.xxh3_64_digest(raw(x.contiguous())) for x in tensors]
    wrong = []

    def hash_often(i: int) -> None:
        wrong.extend(i for _ in range(20) if at_once(tensors[i]) != expected[i])

    threads = [threading.Thread(target=hash_often, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_compiler
def test_fewer_bytes_than_it_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="240 bytes are hashed here, at least 241 must be"):
        found(drawn(240, torch.uint8), 1)


def copied_and_hashed(x: Tensor, threads: int) -> tuple[bytes, bytes]:
    """The copy of some bytes and what is said to be its hash; raises if anything is written beside it."""
    memory = np.full(x.numel() + 192, 0xA5, np.uint8)
    start = 64 + -memory.ctypes.data % 64
    digest = hash_functions.copy_and_digest(x.data_ptr(), x.numel(), memory.ctypes.data + start, threads)
    assert (memory[:start] == 0xA5).all() and (memory[start + x.numel() :] == 0xA5).all()
    return memory[start : start + x.numel()].tobytes(), digest


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 1, 37])
@pytest.mark.parametrize(
    "nbytes", [241, 255, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 65_535, 65_537, 300_001, (4 << 20) + 1]
)
def test_a_copy_is_whole_and_has_the_hash_that_is_told(nbytes: int, start: int, threads: int) -> None:
    x = drawn(nbytes + start, torch.uint8)[start:]
    copy, digest = copied_and_hashed(x, threads)
    assert copy == raw(x) and digest == xxhash.xxh3_64_digest(copy)


@needs_compiler
def test_of_memory_that_is_written_meanwhile_the_hash_is_that_of_the_copy() -> None:
    x, is_over = torch.zeros(3_000_001, dtype=torch.uint8), threading.Event()

    def write() -> None:
        while not is_over.is_set():
            x.random_(0, 256)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        copies = [copied_and_hashed(x, 2) for _ in range(40)]
    finally:
        is_over.set()
        writing.join()
    assert len({copy for copy, _ in copies}) > 1, "it was written"
    assert all(xxhash.xxh3_64_digest(copy) == digest for copy, digest in copies)


@needs_compiler
@pytest.mark.parametrize("to", [0, 8, 48])
def test_a_copy_to_a_place_that_vectors_do_not_fit_is_refused(to: int) -> None:
    with pytest.raises(ValueError, match=f"a copy to {to} was asked for; the address must be a multiple of 32"):
        hash_functions.copy_and_digest(drawn(300, torch.uint8).data_ptr(), 300, to)


@pytest.mark.parametrize("nbytes", [0, 1, 240, 241, 5000, 300_000, 5_000_001])
@pytest.mark.parametrize("algorithm", tuple(HASHES))
def test_memory_in_a_row(algorithm: str, nbytes: int) -> None:
    x = drawn(max(nbytes, 1), torch.uint8)
    hasher = HASHERS[algorithm]()
    hasher.update(raw(x)[:nbytes])
    assert digest_of_elements(algorithm, (x.dtype, 0, nbytes, x.data_ptr(), None)) == hasher.digest()
