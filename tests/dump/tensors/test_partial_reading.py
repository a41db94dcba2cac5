"""Parts of a tensor are those of the whole, and take no more memory than they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import Value, open_dump
from aten_dump.dump.tensors import partial_reading
from aten_dump.dump.tensors.partial_reading import load_blocks, load_selected
from aten_dump.errors import FormatError, MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder

NUMBERS = torch.arange(6 * 10 * 20, dtype=torch.float32)
SHAPES = {
    "row-major": NUMBERS.view(6, 10, 20),
    "transposed": NUMBERS.view(20, 10, 6).permute(2, 1, 0),
    "first two dimensions changed": NUMBERS.view(10, 6, 20).transpose(0, 1),
    "every third": NUMBERS.view(60, 20)[::3],
    "part of each row": NUMBERS.view(6, 10, 20)[:, 2:7, 1:19],
    "expanded": NUMBERS[:20].expand(6, 10, 20),
    "overlapping": NUMBERS.as_strided((6, 10, 20), (30, 7, 1), 5),
    "one dimension": NUMBERS,
}


def read(builder: Builder, number: int) -> Value:
    return open_dump(builder.finish()).rank(0, 0).value_by_id(number)


def put_together(value: Value, block_bytes: int) -> tuple[torch.Tensor, int]:
    """Return the tensor that the blocks make, and their number; each is consecutive, and none is too large."""
    found, count, done = torch.full(value.shape, -1.0).to(value.dtype), 0, 0
    places = torch.arange(value.numel).view(value.shape)
    for index, block in value.blocks(block_bytes):
        assert block.numel() * block.element_size() <= block_bytes
        assert places[index].flatten().tolist() == list(range(done, done + block.numel())), "row-major, none left out"
        found[index] = block
        count, done = count + 1, done + block.numel()
    return found, count


@pytest.mark.parametrize("block_bytes", [4, 24, 100, 1000, 4000])
@pytest.mark.parametrize("kind", SHAPES)
def test_blocks_make_the_tensor(builder: Builder, kind: str, block_bytes: int) -> None:
    expected = SHAPES[kind]
    value = read(builder, builder.value(expected))
    found, count = put_together(value, block_bytes)
    assert torch.equal(found, expected)
    assert count >= expected.numel() * 4 // block_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex128, torch.bool], ids=str)
def test_blocks_of_every_size_of_element(builder: Builder, dtype: torch.dtype) -> None:
    stored = (NUMBERS % 2).to(dtype).view(60, 20).t()
    value = read(builder, builder.value(stored))
    for index, block in value.blocks(stored.element_size() * 70):
        assert torch.equal(block.contiguous().view(torch.uint8), stored[index].contiguous().view(torch.uint8))


def test_no_more_is_read_at_a_time_whatever_the_geometry(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a wide gap between elements nor a narrow one makes a block read all that lies between its elements."""
    monkeypatch.setattr(partial_reading, "_STRETCH_BYTES", 1 << 13)
    numbers = torch.arange(1 << 17, dtype=torch.int32)  # 512 KiB
    geometries = [numbers.view(32, 4096), numbers.view(32, 4096).t(), numbers.view(1 << 15, 4).t()]
    ids = [builder.value(tensor) for tensor in geometries]
    rank = open_dump(builder.finish()).rank(0, 0)
    read: list[int] = []
    source_read = rank.source.read

    def counted(tables: Any, blob: r.Blob, start: int, stop: int) -> Any:
        read.append(stop - start)
        return source_read(tables, blob, start, stop)

    rank.source.read = counted  # type: ignore[method-assign]
    for number, expected in zip(ids, geometries, strict=True):
        for index, block in rank.value_by_id(number).blocks(1 << 14):
            assert torch.equal(block, expected[index])
    assert max(read) <= 1 << 14 and sum(read) <= 6 * (512 << 10)


def test_what_is_no_part_of_the_file_is_read_whole(builder: Builder) -> None:
    sampled = builder.value(NUMBERS, store="sample", sample=3)
    conjugate = builder.value(NUMBERS.to(torch.complex64), extra=None, flags=r.CONJUGATE)
    rank = open_dump(builder.finish()).rank(0, 0)
    for number, shape in ((sampled, [3]), (conjugate, [1200])):
        value = rank.value_by_id(number)
        [(index, block)] = value.blocks(4)
        assert index == () and list(block.shape) == shape
        assert load_blocks(value, rank.tables, rank.source, 4) is None
        assert load_selected(value, rank.tables, rank.source, {0: 0}) is None


def test_a_part_has_one_index_in_some_dimensions(builder: Builder) -> None:
    ids = {kind: builder.value(tensor) for kind, tensor in SHAPES.items()}
    rank = open_dump(builder.finish()).rank(0, 0)
    for kind, number in ids.items():
        value = rank.value_by_id(number)
        part = load_selected(value, rank.tables, rank.source, {0: 3})
        assert part is not None and torch.equal(part, SHAPES[kind][3])


def test_damage_and_absence_are_told(builder: Builder, tmp_path: Path) -> None:
    none, whole = builder.value(NUMBERS, store=None), builder.value(NUMBERS.clone())
    path = builder.finish()
    rank = open_dump(path).rank(0, 0)
    with pytest.raises(MissingDataError):
        next(rank.value_by_id(none).blocks(4))
    shard = next(path.rglob("shard-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FormatError, match="checksum"):
        next(open_dump(path).rank(0, 0).value_by_id(whole).blocks(4))
