"""Which bytes of memory that began undefined were written, against one bool for each byte."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from aten_dump.capture.memory import written_bytes
from aten_dump.capture.memory.geometry import Geometry, byte_extent
from aten_dump.capture.memory.written_bytes import WrittenRanges

ELEMENTS, ITEM = 24, 2


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, False, False


def some_view(chance: random.Random, base: torch.Tensor) -> torch.Tensor:
    rows, columns, step = chance.randrange(1, 4), chance.randrange(4), chance.choice((1, 1, 2))
    width = (columns - 1) * step + 1
    stride = chance.choice((columns or 1, width + 1, 5))
    reach = (rows - 1) * stride + width
    return base.as_strided((rows, columns), (stride, step), chance.randrange(ELEMENTS - reach + 1))


def touched(tensor: torch.Tensor) -> np.ndarray:
    """One bool for each byte of the storage: whether it belongs to an element of the tensor."""
    marks = torch.zeros(ELEMENTS, dtype=torch.bool)
    marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    return marks.cpu().numpy().repeat(ITEM)


@pytest.mark.parametrize("seed", range(40))
def test_writes_and_losses_in_any_order(seed: int) -> None:
    chance, base = random.Random(seed), torch.zeros(ELEMENTS, dtype=torch.int16)
    found, model = WrittenRanges(ELEMENTS * ITEM), np.zeros(ELEMENTS * ITEM, np.bool_)
    for _ in range(14):
        view = some_view(chance, base)
        match chance.randrange(4):
            case 0:
                low, high = byte_extent(view)
                found.forget(low, high)
                model[low:high] = False
            case 1:
                low, high = byte_extent(view)
                found.define(low, high)
                model[low:high] = True
            case _:
                model |= touched(view)
                assert found.write(view, geometry_of(view)) == model.all()
        looked = some_view(chance, base)
        assert found.covers(looked, geometry_of(looked)) == model[touched(looked)].all()


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_defines_what_is_defined_of_its_source(seed: int) -> None:
    chance = random.Random(seed)
    bases = [torch.zeros(ELEMENTS, dtype=torch.int16) for _ in range(2)]
    found = [WrittenRanges(ELEMENTS * ITEM) for _ in range(2)]
    models = [np.zeros(ELEMENTS * ITEM, np.bool_) for _ in range(2)]
    for which in (0, 1):
        view = some_view(chance, bases[which])
        found[which].write(view, geometry_of(view))
        models[which] |= touched(view)
    target, source = bases[0][: ELEMENTS // 2], bases[1][ELEMENTS // 2 :]
    models[0][: ELEMENTS * ITEM // 2] = models[1][ELEMENTS * ITEM // 2 :]
    assert found[0].copy(target, found[1], source, geometry_of(target)) == models[0].all()
    for start in range(ELEMENTS):
        one = bases[0][start : start + 1]
        assert found[0].covers(one, geometry_of(one)) == models[0][start * ITEM : (start + 1) * ITEM].all()


def test_tensors_of_as_many_dimensions_as_torch_has() -> None:
    base, found = torch.zeros(8, dtype=torch.int16), WrittenRanges(16)
    every_other = base[::2].view(*[1] * 31, 2, *[1] * 31, 2)
    assert not found.write(every_other, geometry_of(every_other))
    assert found.covers(every_other, geometry_of(every_other))
    rest = base[1::2].view(*[1] * 62, 4, 1)
    assert not found.covers(rest, geometry_of(rest))

    other, target = WrittenRanges(8), torch.zeros(2, *[1] * 61, 3, 2, dtype=torch.int16)
    source = torch.zeros(2, 2, dtype=torch.int16)[1:].view(1, 2)
    other.write(source, geometry_of(source))
    copied = WrittenRanges(24)
    assert copied.copy(target, other, source, geometry_of(target)), "the same two elements for each row"
    assert not found.copy(rest, other, torch.zeros(4, dtype=torch.int16)[:, None], geometry_of(rest))
    assert found.covers(base[4:], (4,)) and not found.covers(base[2:], (2,))


def test_elements_that_are_seen_often_are_looked_at_once() -> None:
    base, found = torch.zeros(8), WrittenRanges(32)
    found.write(base[::2], geometry_of(base[::2]))
    often = base[::2].view(1, 2, 2).expand(1 << 40, 2, 2)
    assert found.covers(often, geometry_of(often))
    assert not found.covers(base[1::2].expand(1 << 40, 4), (0,))


def test_memory_too_large_for_a_mask_never_claims_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_bytes, "_MASK_BYTES", 0)
    base = torch.zeros(4, 6)
    found = WrittenRanges(96)
    left, right = base[:, :3], base[:, 3:]
    assert not found.write(left, geometry_of(left))
    assert found.covers(left, geometry_of(left))
    assert not found.covers(base, geometry_of(base))
    assert not found.covers(base[0, :4], geometry_of(base[0, :4]))
    assert not found.write(left, geometry_of(left)), "the same part again is no other part"
    assert found.write(right, geometry_of(right))


@pytest.mark.parametrize("seed", range(60))
def test_memory_too_large_for_a_mask_against_one_bool_for_each_byte(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(written_bytes, "_MASK_BYTES", 0)
    chance, base = random.Random(seed), torch.zeros(ELEMENTS, dtype=torch.int16)
    found, model = WrittenRanges(ELEMENTS * ITEM), np.zeros(ELEMENTS * ITEM, np.bool_)
    for _ in range(30):
        view = some_view(chance, base)
        if chance.randrange(12) == 0:
            found.forget(*byte_extent(view))
            model[slice(*byte_extent(view))] = False
        else:
            model |= touched(view)
            assert model.all() or not found.write(view, geometry_of(view))
        looked = some_view(chance, base)
        assert model[touched(looked)].all() or not found.covers(looked, geometry_of(looked))


def columns(base: torch.Tensor, order: list[int]) -> list[torch.Tensor]:
    return [base[:, :, column] for column in order]


@pytest.mark.parametrize(
    "views",
    [
        lambda x: [x[:, :, 2:], x[:, :, 1:3], x[:, :, 0]],
        lambda x: columns(x, [3, 1, 2, 1, 0]),
        lambda x: [x.transpose(0, 2)[1::2], x.transpose(0, 2)[::2]],
        lambda x: [x[1::2], x[:1]],
        lambda x: [x[:, 1:], x[:, :1]],
        lambda x: [x[..., 1:], x[0], x[:, 0], x],
    ],
)
def test_parts_of_all_rows_are_defined_together_when_none_is_left(
    monkeypatch: pytest.MonkeyPatch, views: Callable[[torch.Tensor], list[torch.Tensor]]
) -> None:
    monkeypatch.setattr(written_bytes, "_MASK_BYTES", 0)
    base, found = torch.zeros(2, 3, 4), WrittenRanges(96)
    *some, last = views(base)
    for view in some:
        assert not found.write(view, geometry_of(view))
        assert found.covers(view, geometry_of(view)) and not found.covers(base, geometry_of(base))
    assert found.write(last, geometry_of(last))


def test_parts_that_lie_on_one_another_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_bytes, "_MASK_BYTES", 0)
    base, found = torch.zeros(6, 4), WrittenRanges(96)
    for view in (base[:, 0:2], base[:, 1:3], base[:3], base[:, 0], base[::2, 2:], base.as_strided((8, 3), (1, 7))):
        assert not found.write(view, geometry_of(view))
    assert not found.covers(base[:, 3], geometry_of(base[:, 3]))


def test_a_view_that_has_elements_twice_and_gaps_defines_no_more_than_it_has() -> None:
    base, found = torch.zeros(4, dtype=torch.uint8), WrittenRanges(4)
    twice = base.as_strided((2, 2), (0, 3))  # as many elements as memory has
    assert not found.write(twice, geometry_of(twice))
    assert not found.covers(base[1:2], geometry_of(base[1:2]))


def test_what_memory_grows_by_is_undefined() -> None:
    base, found = torch.zeros(8, dtype=torch.uint8), WrittenRanges(4)
    found.define(0, 4)
    found.resize(4, 8)
    assert found.covers(base[:4], geometry_of(base[:4]))
    assert not found.covers(base[3:5], geometry_of(base[3:5]))
    found.write(base[::2], geometry_of(base[::2]))  # a mask from here on
    found.resize(8, 12)
    assert found.covers(base[::2], geometry_of(base[::2]))
    assert not found.write(base[5:6], geometry_of(base[5:6]))
