"""From stored bytes to a tensor: which part of a blob is read, and what cannot be made a tensor of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from aten_dump.dump import Value, open_dump
from aten_dump.dump.tensors.tensor_reading import Parts, load
from aten_dump.errors import FormatError, MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder


def loaded(builder: Builder, number: int, parts: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    value: Value = open_dump(builder.finish()).rank(0, 0).value_by_id(number)
    given: Parts = {name: lambda tensor=tensor: tensor for name, tensor in (parts or {}).items()}  # type: ignore[misc]
    return load(value, value.rank.tables, value.rank.source, given)


def stored(builder: Builder, tensor: torch.Tensor, content: torch.Tensor, layout: int, offset: int = 0) -> int:
    """Record a value whose data are these elements, in a layout, from an offset on."""
    number = builder.value(tensor, store=None)
    builder.emit(r.Data(r.DATA, number, builder.blob(bytes(content.view(torch.uint8).tolist())), offset, layout))
    return number


X = torch.arange(6.0)


@pytest.mark.parametrize("layout", ["strided", "compact", "sample"])
def test_elements_begin_at_the_offset(builder: Builder, layout: str) -> None:
    number = stored(builder, X[:4], X, r.LAYOUTS.index(layout), offset=8)
    assert loaded(builder, number).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_a_sample_is_what_there_is_of_it(builder: Builder) -> None:
    sample = r.LAYOUTS.index("sample")
    few = stored(builder, torch.zeros(100), X, sample)
    all_of_it = stored(builder, torch.zeros(2, 2), X, sample)
    none = stored(builder, torch.zeros(100), X, sample, offset=24)
    value = open_dump(builder.finish()).rank(0, 0)
    assert value.value_by_id(few).tensor().tolist() == X.tolist()
    assert value.value_by_id(all_of_it).tensor().tolist() == X[:4].tolist(), "as many as it has"
    assert value.value_by_id(none).tensor().tolist() == []


@pytest.mark.parametrize("layout", ["strided", "compact"])
@pytest.mark.parametrize(("shape", "missing"), [((6,), 0), ((7,), 1)])
def test_a_value_ends_within_its_blob(builder: Builder, layout: str, shape: tuple[int, ...], missing: int) -> None:
    number = stored(builder, torch.zeros(shape), X, r.LAYOUTS.index(layout))
    if missing:
        with pytest.raises(FormatError, match="ends at byte 28 of blob 1, which has 24"):
            loaded(builder, number)
    else:
        assert loaded(builder, number).tolist() == X.tolist()


def test_no_elements_need_no_bytes(builder: Builder) -> None:
    number = stored(builder, torch.empty(0, 3), torch.empty(0), 0)
    found = loaded(builder, number)
    assert (found.shape, found.stride(), found.dtype) == ((0, 3), (3, 1), torch.float32)


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (1, 2), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        ((2, 3), (10, 1), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        ((2, 3), (0, 1), [[3.0, 4.0, 5.0], [3.0, 4.0, 5.0]]),
        ((2, 3), (1, 1), [[0.0, 3.0, 4.0], [3.0, 4.0, 5.0]]),
    ],
)
def test_compact_elements_are_laid_out_again(
    builder: Builder, shape: tuple[int, ...], stride: tuple[int, ...], expected: list[list[float]]
) -> None:
    """Where elements lie on one another, the last one stays; what was recorded has equal ones there."""
    memory = torch.zeros(32)
    number = stored(builder, memory.as_strided(shape, stride), X, r.LAYOUTS.index("compact"))
    found = loaded(builder, number)
    assert (found.stride(), found.tolist()) == (stride, expected)


def test_bits_stay_as_they_are(builder: Builder) -> None:
    signalling = torch.tensor([0x7FA00000, 1], dtype=torch.int32)
    number = stored(builder, torch.zeros(4)[::2], signalling, r.LAYOUTS.index("compact"))
    assert loaded(builder, number).view(torch.int32).tolist() == [0x7FA00000, 1]


def test_the_conj_and_neg_bits_apply_to_what_was_read(builder: Builder) -> None:
    z = torch.tensor([1 + 2j])
    number = builder.value(z, flags=r.CONJUGATE)
    assert loaded(builder, number).tolist() == [1 - 2j]


@pytest.mark.parametrize("dtype", [torch.quint4x2, torch.quint2x4])
def test_several_elements_to_a_byte(builder: Builder, dtype: torch.dtype) -> None:
    number = builder.next("value")
    storage = builder.storage(4)
    text = builder.text(str(dtype).removeprefix("torch."))
    builder.emit(r.Value(r.VALUE, number, storage, 0, 0, text, [4], [1], 0))
    builder.emit(r.Data(r.DATA, number, builder.blob(bytes(4)), 0, 0))
    with pytest.raises(MissingDataError, match="several elements to a byte"):
        loaded(builder, number)


# -- sparse ones ---------------------------------------------------------------------------------------------------


def sparse(builder: Builder, layout: str, **extra: object) -> int:
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [2, 2], [], 0, {"layout": layout, **extra}))
    return number


INDICES = torch.tensor([[0, 1], [1, 0]])
VALUES = torch.tensor([3.0, 4.0])
DENSE = [[0.0, 3.0], [4.0, 0.0]]


def test_a_sparse_tensor_is_put_together(builder: Builder) -> None:
    number = sparse(builder, "sparse_coo", coalesced=True)
    found = loaded(builder, number, {"indices": INDICES, "values": VALUES})
    assert found.is_coalesced() and found.to_dense().tolist() == DENSE


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("layout", "outer", "inner", "dense"),
    [
        ("sparse_csr", "crow_indices", "col_indices", [[0.0, 3.0], [4.0, 0.0]]),
        ("sparse_csc", "ccol_indices", "row_indices", [[0.0, 4.0], [3.0, 0.0]]),
    ],
)
def test_compressed_ones_too(builder: Builder, layout: str, outer: str, inner: str, dense: list[list[float]]) -> None:
    parts = {outer: torch.tensor([0, 1, 2]), inner: torch.tensor([1, 0]), "values": VALUES}
    found = loaded(builder, sparse(builder, layout), parts)
    assert (str(found.layout), found.to_dense().tolist()) == (f"torch.{layout}", dense)


def test_parts_that_are_missing_are_named(builder: Builder) -> None:
    number = sparse(builder, "sparse_coo")
    with pytest.raises(MissingDataError, match=r"the values of .* were not recorded; recorded parts: indices"):
        loaded(builder, number, {"indices": INDICES})


def test_without_parts_nothing_was_stored(builder: Builder) -> None:
    with pytest.raises(MissingDataError):
        loaded(builder, sparse(builder, "sparse_coo"))
