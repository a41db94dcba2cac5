"""Elements copied by the compiled file against torch's own copies: every size, layout and range, bit by bit."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aten_dump.capture.data import gather
from aten_dump.capture.data.byte_copies import copy_elements
from aten_dump.capture.data.gather import GatheredBytes, can_gather, lie_apart, read_at_once
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.store.writing.checksums import HASHERS, HASHES
from tests.capture.bits import raw
from tests.store.memory_sink import MemorySink
from tests.store.recording import begin, blobs_of, writer

needs_compiler = pytest.mark.skipif(
    not gather.IS_COMPILED, reason="nothing is compiled here: `make test-compiled` runs it"
)
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128)  # of 1 to 16 bytes


def drawn(elements: int, dtype: torch.dtype) -> Tensor:
    """Any bits, NaNs among them."""
    generator = torch.Generator().manual_seed(elements)
    return torch.randint(0, 256, (elements * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def copied(x: Tensor, first: int = 0, past: int | None = None, threads: int = 1, at: int = 64) -> bytes:
    """What the compiled file copies; raises if it writes beside that."""
    past = x.numel() if past is None else past
    nbytes = (past - first) * x.element_size()
    memory = ctypes.create_string_buffer(b"\xa5" * (nbytes + 2 * at), nbytes + 2 * at)
    place = ctypes.addressof(memory) + at
    gather.copy(x.data_ptr(), x.element_size(), tuple(x.shape), x.stride(), first, past, place, threads)
    assert memory.raw[:at] == memory.raw[at + nbytes :] == b"\xa5" * at
    return memory.raw[at : at + nbytes]


def expected(x: Tensor, first: int = 0, past: int | None = None) -> bytes:
    return raw(x.reshape(-1)[first:past])


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x[: 200 * 300].view(200, 300).t(),
    "transposed, a power of two": lambda x: x[: 64 * 1024].view(64, 1024).t(),
    "transposed to a power of two": lambda x: x[: 1024 * 48].view(1024, 48).t(),
    "transposed, tall": lambda x: x[: 3 * 20_001].view(3, 20_001).t(),
    "transposed, wide": lambda x: x[: 20_001 * 3].view(20_001, 3).t(),
    "transposed, every other one": lambda x: x[: 400 * 170].view(400, 170).t()[::2, 1:],
    "from an odd place": lambda x: x[7 : 7 + 150 * 333].view(150, 333).t()[5:, 3:],
    "heads": lambda x: x[: 4 * 64 * 8 * 32].view(4, 64, 8, 32).transpose(1, 2),
    "keys": lambda x: x[: 4 * 64 * 8 * 32].view(4, 64, 8, 32).permute(0, 2, 3, 1),
    "channels_last": lambda x: x[: 4 * 30 * 30 * 17].view(4, 30, 30, 17).permute(0, 3, 1, 2),
    "images": lambda x: x[: 2 * 100 * 100 * 3].view(2, 100, 100, 3).permute(0, 3, 1, 2),
    "split": lambda x: x[: 4 * 100 * 150].view(4, 100, 150)[..., 50:100],
    "columns": lambda x: x[:66_000].view(330, 200)[:, ::2],
    "one of three": lambda x: x[:66_000].view(330, 200)[:, ::3],
    "pairs": lambda x: x[:66_000].view(165, 200, 2).transpose(0, 1),
    "a row for all": lambda x: x[:300].expand(200, 300),
    "a column for all": lambda x: x[:300, None].expand(300, 200),
    "windows": lambda x: x.unfold(0, 100, 7)[:600],
    "windows across": lambda x: x.as_strided((300, 200), (1, 2)),
    "reversed dimensions": lambda x: x[: 2 * 3 * 4 * 5 * 6 * 7 * 8].view(2, 3, 4, 5, 6, 7, 8).permute(6, 5, 4, 3, 2, 1, 0),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_tensors_whole_and_in_parts(dtype: torch.dtype, layout: str) -> None:
    x = LARGE[layout](drawn(70_000, dtype))
    whole, size = expected(x), x.element_size()
    assert copied(x) == whole
    for first, past in ((1, 70), (33, 10_000), (1_000, x.numel() - 1), (x.numel() - 3, x.numel()), (9, 9)):
        assert copied(x, first, past) == whole[first * size : past * size], (first, past)
    given = GatheredBytes(x)
    assert b"".join(map(bytes, given.pieces(len(whole)))) == whole
    assert b"".join(map(bytes, given.pieces(640))) == whole[:640]


@st.composite
def layouts(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes and strides of elements, and a place: overlapping, with gaps, in any order, of one element or none."""
    shape = draw(st.lists(st.sampled_from((1, 1, 2, 3, 5, 8, 17, 40, 130)), max_size=5))
    while torch.Size(shape).numel() > 40_000:
        shape.pop()
    order = draw(st.permutations(range(len(shape))))
    strides, pitch = [0] * len(shape), 1
    for i in order:
        strides[i] = draw(st.sampled_from((pitch, pitch, pitch, pitch, 0, 1, pitch + 1, 2 * pitch)))
        pitch = max(1, strides[i]) * shape[i]
    strides = [10**15 if size == 1 and draw(st.booleans()) else s for size, s in zip(shape, strides, strict=True)]
    return tuple(shape), tuple(strides), draw(st.integers(0, 70))


@needs_compiler
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(DTYPES), layouts(), st.data())
def test_any_layout_and_any_range(dtype: torch.dtype, layout: Any, data: Any) -> None:
    shape, strides, offset = layout
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    x = drawn(offset + extent, dtype).as_strided(shape, strides, offset)
    first = data.draw(st.integers(0, x.numel()))
    past = data.draw(st.integers(first, x.numel()))
    assert copied(x, first, past) == expected(x, first, past)
    assert 1 <= gather.stretch(x.element_size(), shape, strides) <= x.numel()


@needs_compiler
@pytest.mark.parametrize("threads", [2, 3, 64])
@pytest.mark.parametrize("name", LARGE)
def test_several_threads_copy_the_same(name: str, threads: int) -> None:
    x = LARGE[name](drawn(1 << 17, torch.float32))
    for first, past in ((0, x.numel()), (1, x.numel() - 1), (x.numel() // 3, x.numel() // 2)):
        assert copied(x, first, past, threads) == expected(x, first, past)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [64, 65, 79, 127])
def test_a_long_row_is_copied_from_any_place_to_any_other(at: int, threads: int) -> None:
    x = drawn(600_000, torch.uint8)
    for first, past in ((0, 600_000), (1, 599_999), (17, 17 + (1 << 18)), (64, 64 + (1 << 18) - 1), (5, 399_999)):
        assert copied(x, first, past, threads, at) == expected(x, first, past), (first, past)


@needs_compiler
@pytest.mark.parametrize("algorithm", HASHES)
def test_the_hash_of_pieces_is_that_of_the_whole(algorithm: str) -> None:
    x, hasher = torch.randn(700, 500).t(), HASHERS[algorithm]()
    pieces = 0
    for piece in GatheredBytes(x).pieces(x.numel() * 4):
        hasher.update(piece)
        pieces += 1
    assert pieces > 5 and hasher.digest() == HASHES[algorithm](raw(x))


@needs_compiler
def test_pieces_are_of_whole_lines_of_memory_and_stay_in_cache() -> None:
    stretch = gather.stretch
    assert stretch(4, (256, 512), (1, 256)) * 4 <= 1 << 19
    assert stretch(4, (512, 8192), (1, 512)) == 16 * 8192  # a line of sixteen floats of each column
    assert stretch(2, (512, 50_257), (1, 512)) == 32 * 50_257
    assert stretch(4, (512, 10**9), (1, 512)) * 4 <= 1 << 19  # no memory for sixteen such rows
    assert stretch(4, (5, 100_000), (1, 5)) == 5 * 100_000  # there are no sixteen
    assert stretch(4, (6, 100, 100), (10_000, 1, 100)) % 10_000 == 0
    assert stretch(8, (0, 5), (5, 1)) == 0 and stretch(8, (), ()) == 1


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["transposed", "from an odd place", "heads"])
def test_elements_are_read_at_once_where_they_are_few(layout: str, dtype: torch.dtype) -> None:
    few = LARGE[layout](drawn(70_000, dtype))[:30, :4]
    with quiet():
        found = read_at_once(few, lambda address: ctypes.string_at(address, few.numel() * few.element_size()))
    assert lie_apart(few) and found == raw(few)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["in a row", "transposed", "from an odd place", "heads", "a row for all"])
def test_elements_of_which_is_known_where_they_lie_are_copied(layout: str, dtype: torch.dtype) -> None:
    base = drawn(70_000, dtype)
    x = base[5:405] if layout == "in a row" else LARGE[layout](base)[:30, :4]
    nbytes = x.numel() * x.element_size()
    assert gather.bytes_of_elements((dtype, 0, nbytes, x.data_ptr(), (tuple(x.shape), x.stride()))) == raw(x)


@needs_compiler
def test_many_elements_are_not_read_at_once() -> None:
    many = torch.randn(1100, 1000).t()
    assert read_at_once(many, lambda _: pytest.fail("more than the memory for them holds")) is None


@needs_compiler
def test_a_parameter_is_read_at_once_and_knows_nothing_of_it() -> None:
    x = torch.nn.Parameter(torch.randn(30, 20))
    version = x._version
    with quiet():
        found = read_at_once(x.t(), lambda address: ctypes.string_at(address, x.numel() * 4))
    assert found == raw(x.detach().t()) and x._version == version and x.grad_fn is None


@needs_compiler
def test_memory_of_pieces_is_used_again_and_by_one_reader_at_a_time() -> None:
    x, y = torch.randn(700, 500).t(), torch.randn(400, 900).t()
    both = zip(GatheredBytes(x).pieces(x.numel() * 4), GatheredBytes(y).pieces(y.numel() * 4), strict=False)
    found = [(bytes(one), bytes(other)) for one, other in both]
    assert b"".join(one for one, _ in found) == raw(x)[: sum(len(one) for one, _ in found)]
    assert b"".join(other for _, other in found) == raw(y)[: sum(len(other) for _, other in found)]

    def read(results: list[bool]) -> None:
        results.extend(b"".join(map(bytes, GatheredBytes(x).pieces(x.numel() * 4))) == raw(x) for _ in range(20))

    results: list[bool] = []
    threads = [threading.Thread(target=read, args=(results,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 120 and len(gather._kept) <= gather.MOST_KEPT


class Wrapped(Tensor):
    """A subclass: what it makes of a copy is its own."""


@needs_compiler
def test_what_is_not_gathered_here() -> None:
    x = torch.randn(30, 40)
    assert can_gather(x.t()) and can_gather(torch.nn.Parameter(x).t()) and can_gather(x[:, ::2])
    assert not can_gather(x) and not can_gather(x[:0].t()) and not can_gather(x[:1, :1].t())
    assert not can_gather(x.t().as_subclass(Wrapped))
    assert not can_gather(torch.complex(x, x).t().conj()) and not can_gather(torch._neg_view(x.t()))
    assert not can_gather(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).t())
    assert not can_gather(x.to_sparse()) and not can_gather(x.t().to("meta"))
    shrunk = torch.randn(30, 40).t()
    shrunk.untyped_storage().resize_(400)
    assert not can_gather(shrunk)


@needs_compiler
@pytest.mark.parametrize("item", [0, 3, 32, -4])
def test_elements_of_odd_sizes_are_refused(item: int) -> None:
    with pytest.raises(ValueError, match=f"elements of {item} bytes"):
        gather.stretch(item, (2,), (1,))


@needs_compiler
def test_ranges_and_layouts_that_cannot_be_are_refused() -> None:
    x = torch.randn(4, 5).t()
    for first, past in ((-1, 3), (3, 2), (0, 21)):
        with pytest.raises(ValueError, match=f"20 elements has none from {first} to {past}"):
            gather.copy(x.data_ptr(), 4, (5, 4), (1, 5), first, past, 0)
    for shape, strides in (((5, 4), (1,)), ((1,) * 65, (1,) * 65)):
        with pytest.raises(ValueError, match="as many strides as sizes"):
            gather.stretch(4, shape, strides)
    for shape, strides in (((-5,), (1,)), ((5,), (-1,))):
        with pytest.raises(ValueError, match="negative"):
            gather.stretch(4, shape, strides)
    with pytest.raises(TypeError):
        gather.stretch(4, (2.5,), (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [lambda x: x.t(), lambda x: x[:, ::3], lambda x: x[:, ::3].conj()])
@pytest.mark.parametrize("count", [5, 5_000, None])
def test_elements_are_stored_in_pieces_of_any_size(layout: Callable[[Tensor], Tensor], count: int | None) -> None:
    x = layout(torch.randn(120, 150, dtype=torch.complex64))
    sink, nbytes = MemorySink(piece_bytes=1 << 10), 8 * (count or x.numel())
    sink.store("U8", [nbytes], nbytes, copy_elements(x, count or x.numel(), {"copy": 0.0}))
    assert sink.blobs[1] == raw(torch._conj(x) if x.is_conj() else x)[:nbytes]


@pytest.mark.parametrize("at_once", [True, False])
def test_elements_go_to_a_shard_piece_by_piece(tmp_path: Path, at_once: bool) -> None:
    sink, x = writer(tmp_path, at_once=at_once), torch.randn(1_500, 900).t()
    begin(sink)
    sink.store("F32", list(x.shape), x.numel() * 4, copy_elements(x, x.numel(), {"copy": 0.0}))
    sink.end_step(0, 0, {})
    sink.close()
    assert blobs_of(tmp_path / "step0" / "rank0") == {1: raw(x)}
