"""Recorded values become tensors again that share memory as they did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import MissingDataError, open_dump
from aten_dump.analysis.rerun.shared_memory import (
    ALIGNMENT,
    Surroundings,
    check_readable,
    extent,
    moment_of,
    storage_bytes,
    tensors_of,
    view_of,
    wide,
)
from aten_dump.dump import Value
from aten_dump.errors import ReplayError
from aten_dump.store import records as r
from tests.dump.building import Builder

WIDE = Surroundings(cast=True)


@pytest.fixture
def values(tmp_path: Path) -> Callable[..., list[Value]]:
    """values(*tensors): recorded values of some tensors; what shares memory shares it there."""
    count = iter(range(100))

    def make(*tensors: torch.Tensor, **options: Any) -> list[Value]:
        b = Builder(tmp_path / str(next(count)))
        ids = [b.value(tensor, **options) for tensor in tensors]
        rank = open_dump(b.finish()).rank(0, 0)
        return [rank.value_by_id(number) for number in ids]

    return make


Values = Callable[..., list[Value]]


def made(values: list[Value], around: Surroundings | None = None, **options: Any) -> list[torch.Tensor]:
    found = tensors_of(values, around or Surroundings(), **options)
    return [found[value.id] for value in values]


# -- dtypes and places ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float64),
        (torch.float8_e4m3fn, torch.float64),
        (torch.float64, torch.float64),
        (torch.complex64, torch.complex128),
        (torch.complex32, torch.complex128),
        (torch.complex128, torch.complex128),
        (torch.int32, torch.int32),
        (torch.bool, torch.bool),
    ],
)
def test_the_reference_dtype(dtype: torch.dtype, wider: torch.dtype) -> None:
    assert wide(dtype) == wider


def test_the_bytes_that_a_value_touches(values: Values) -> None:
    x = torch.arange(24.0).view(4, 6)
    whole, row, column, one, none, spread = values(x, x[1], x[:, 2], x[3, 5], x[:0], x[:1].expand(9, 6))
    assert [extent(v) for v in (whole, row, column, one, none, spread)] == [
        (0, 96),
        (24, 48),
        (8, 8 + 3 * 24 + 4),
        (92, 96),
        (0, 0),
        (0, 24),
    ]
    assert moment_of(row) == (whole.storage, 0)


# -- tensors -------------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "transposed": lambda x: x.t(),
    "a column": lambda x: x[:, 2],
    "expanded": lambda x: x[:1].expand(5, 6),
    "overlapping": lambda x: x.as_strided((3, 3), (2, 1), 3),
    "a number": lambda x: x[2, 3],
    "nothing": lambda x: x[:0],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("store", ["strided", "compact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.bool], ids=str)
def test_geometry_and_bytes_come_back(values: Values, name: str, store: str, dtype: torch.dtype) -> None:
    view = VIEWS[name](torch.arange(24).view(4, 6).to(dtype))
    (again,) = made(values(view, store=store))
    assert torch.equal(again, view) and (again.dtype, again.stride()) == (view.dtype, view.stride())
    (again,) = made(values(view, store=store), WIDE)
    assert torch.equal(again, view.to(wide(dtype))) and again.stride() == view.stride()
    assert again.dtype == wide(dtype)


@pytest.mark.parametrize("around", [Surroundings(), WIDE], ids=["as recorded", "wide"])
def test_what_shared_memory_shares_it(values: Values, around: Surroundings) -> None:
    x = torch.arange(24.0)
    recorded = values(x.view(4, 6), x[6:12], torch.zeros(3))
    whole, row, other = made(recorded, around)
    row.fill_(9)
    assert whole[1].tolist() == [9.0] * 6 and whole[0].tolist() == list(range(6))
    assert other.tolist() == [0.0] * 3
    assert made(recorded, around)[0][1].tolist() == list(range(6, 12)), "each time anew"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_an_op_writes_to_is_no_tensor_that_others_read(values: Values, dtype: torch.dtype) -> None:
    (value,) = values(torch.arange(4.0, dtype=dtype))
    shared = value.shared_tensor()
    made([value], Surroundings(cast=True))[0].zero_()
    assert torch.equal(shared, torch.arange(4.0, dtype=dtype))


def test_versions_are_memories_of_their_own(tmp_path: Path) -> None:
    b, x = Builder(tmp_path / "dump"), torch.arange(4.0)
    ids = [b.value(x), b.value(x, version=1, store="compact", raw=x * 2)]
    rank = open_dump(b.finish()).rank(0, 0)
    before, after = made([rank.value_by_id(number) for number in ids])
    assert (before.tolist(), after.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])
    before.zero_()
    assert after.tolist() == [0, 2, 4, 6]


def test_addresses_have_the_alignment_that_they_had(values: Values) -> None:
    x = torch.arange(100.0)
    for start in (0, 1, 15, 16, 17, 50):
        (again,) = made(values(x[start : start + 8]))
        assert again.data_ptr() % ALIGNMENT == (start * 4) % ALIGNMENT


def test_ops_that_count_from_the_start_of_the_storage_get_all_of_it(values: Values) -> None:
    x = torch.arange(40.0)
    recorded = values(x[20:24])
    (near,), (far,) = made(recorded), made(recorded, absolute=True)
    assert torch.equal(near, far) and far.storage_offset() == 20 and near.storage_offset() == 20 % 16
    assert far.as_strided((40,), (1,), 0).tolist() == list(range(40)), "with what lies around"


def test_conj_and_neg_bits_come_back(values: Values) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    for around in (Surroundings(), WIDE):
        (again,) = made(values(x.conj(), flags=r.CONJUGATE), around)
        assert again.is_conj() and again.tolist() == [1 - 2j, 3 + 4j]
        (again,) = made(values(torch._neg_view(torch.ones(2)), flags=r.NEGATIVE), around)
        assert again.is_neg() and again.tolist() == [-1.0, -1.0]
    compact = values(x.conj(), flags=r.CONJUGATE, store="compact", raw=x)
    assert made(compact)[0].tolist() == [1 - 2j, 3 + 4j]


def test_views_as_other_dtypes_can_be_cast_unless_they_are_written(values: Values) -> None:
    x = torch.tensor([1.0, 2.0])
    recorded = values(x, x.view(torch.float16), x.view(torch.int32))
    single, half, bits = made(recorded, WIDE)
    assert (single.dtype, half.dtype, bits.dtype) == (torch.float64, torch.float64, torch.int32)
    with pytest.raises(ReplayError, match=r"different dtypes \(torch.float16, torch.float32\) share memory"):
        made(recorded[:2], WIDE, written=frozenset({recorded[0].id}))
    assert made(recorded[:1], WIDE, written=frozenset({recorded[0].id}))[0].tolist() == [1.0, 2.0]
    z = torch.tensor([1 + 2j])
    both = made(values(z, torch.view_as_real(z)), WIDE)
    both[1].zero_()
    assert both[0].tolist() == [0j], "complex numbers and their parts are of one dtype"


# -- undefined memory, known memory --------------------------------------------------------------------------------


def test_undefined_memory_is_filled_with_a_byte(values: Values) -> None:
    recorded = values(torch.zeros(4), flags=r.UNDEFINED, store=None)
    assert made(recorded)[0].tolist() == [0.0] * 4
    filled = made(recorded, Surroundings(fill=0x3C))[0]
    assert 0x30 <= min(filled.view(torch.uint8).tolist()) <= max(filled.view(torch.uint8).tolist()) == 0x3C
    assert filled.unique().numel() == filled.numel(), "equal numbers would be lost where a row is normalized"
    mask = values(torch.zeros(4, dtype=torch.bool), flags=r.UNDEFINED, store=None)
    assert made(mask, Surroundings(fill=0x3C))[0].view(torch.uint8).tolist() == [1] * 4, "a bool is 0 or 1"
    defined = values(torch.zeros(4))
    assert made(defined, Surroundings(fill=0x3C))[0].tolist() == [0.0] * 4


def test_known_storages_take_the_place_of_the_recorded(values: Values) -> None:
    x = torch.arange(4.0)
    (value,) = values(x)
    mine = torch.full((4,), 7.0).view(torch.uint8)
    around = Surroundings(known={moment_of(value): mine})
    assert made([value], around)[0].tolist() == [7.0] * 4
    again = made([value], around, written=frozenset({value.id}))[0]
    again.zero_()
    assert mine.view(torch.float32).tolist() == [7.0] * 4, "what is written is a copy"
    (bare,) = values(x, store=None)
    assert made([bare], Surroundings(known={moment_of(bare): mine}))[0].tolist() == [7.0] * 4, (
        "nothing need be recorded"
    )


def test_all_bytes_of_a_storage(values: Values) -> None:
    x = torch.arange(6.0)
    parts = values(x[:2], x[4:], store="compact")
    found = storage_bytes(parts)
    assert found.numel() == 24 and found.view(torch.float32).tolist() == [0, 1, 0, 0, 4, 5]
    assert view_of(parts[1], found).tolist() == [4.0, 5.0]


# -- what cannot be made -------------------------------------------------------------------------------------------


def test_what_cannot_be_read(values: Values) -> None:
    x = torch.arange(6.0)
    check_readable(values(x)[0])
    check_readable(values(torch.empty(0), store=None)[0])
    check_readable(values(x, store=None, flags=r.UNDEFINED)[0])
    for options, error, message in (
        ({"flags": r.OPAQUE, "store": None}, ReplayError, "has no bytes of its own"),
        ({"store": "sample"}, ReplayError, "only the first elements"),
        ({"store": None}, MissingDataError, "the recorder did not store it"),
    ):
        (value,) = values(x, **options)
        with pytest.raises(error, match=message):
            check_readable(value)
        with pytest.raises(error, match=message):
            made([value])


def test_sparse_and_quantized_tensors_share_nothing(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse().coalesce())
    value = next(v for v in rank.values if v.layout_name == "sparse_coo")
    (plain,), (cast,) = made([value]), made([value], WIDE)
    assert plain.to_dense().tolist() == [[0.0, 2.0], [0.0, 0.0]] and cast.dtype == torch.float64
    rank = record(lambda: torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8))
    value = next(v for v in rank.values if v.dtype == torch.qint8)
    assert made([value], WIDE)[0].is_quantized, "it is not cast"
    assert made([value])[0].dequantize().tolist() == [1.0, 2.0]


_BUCKET = """
import resource, sys, torch
from aten_dump import DumpConfig, DumpMode, compare, replay
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
torch.set_num_threads(1)
n, paths = 500_000_000, sys.argv[1:]
for path in paths:
    with DumpMode(DumpConfig(path, data="tensor")):
        bucket = torch.empty(n)
        parts = [bucket.narrow(0, at, 1000) for at in (0, n // 2, n - 1000)]
        for part in parts:
            part.copy_(torch.ones(1000))
        torch._foreach_mul_(parts, 2.0)
        torch.cat(parts).sum()
        bucket.view(-1)[5:10]
        bucket.narrow(0, n // 2, 500).add_(1)
del bucket, parts
before = peak()
found = replay(paths[0])
assert {"Aten.copy_.0.forward", "Aten._foreach_mul_.0.forward", "Aten.cat.0.forward"} <= {op.name for op in found.ops}
assert not found.suspects
compare(*paths)
print(peak() - before)
"""


@pytest.mark.slow  # in `make test`: test_run_op.py, of one op at a time
def test_memory_is_bounded_by_what_ops_read_not_by_the_storage_they_read_it_in(tmp_path: Path) -> None:
    """DeepSpeed's bucket of gradients: 2 GB that nobody touches but for slices."""
    command = [sys.executable, "-W", "ignore", "-c", _BUCKET, str(tmp_path / "one"), str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300, "MiB"
