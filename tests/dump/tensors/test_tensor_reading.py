from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from aten_dump.dump import Value, open_dump
from aten_dump.errors import FormatError, MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.dump.scenario import linear_step

DTYPES = sorted(
    {
        d
        for d in vars(torch).values()
        if isinstance(d, torch.dtype) and not str(d).startswith(("torch.q", "torch.bits")) and d.itemsize
    },
    key=str,
)


def read(builder: Builder, number: int) -> Value:
    return open_dump(builder.finish()).rank(0, 0).value_by_id(number)


def same_bytes(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layout", ["strided", "compact"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(builder: Builder, dtype: torch.dtype, layout: str) -> None:
    content = torch.randint(0, 2, (8 * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    tensor = content.as_strided((2, 2), (1, 3), 1)
    builder.blob(b"odd")  # so that the bytes are not aligned in the file
    if layout == "compact":
        places = (torch.arange(4).reshape(2, 2) % 2 * 3 + torch.tensor([[1], [2]])).flatten()
        dense = content.view(torch.uint8).reshape(8, -1)[places].contiguous().flatten()
        number = builder.value(tensor, store=None)
        builder.emit(r.Data(r.DATA, number, builder.blob(bytes(dense.tolist())), 0, 1))
    else:
        number = builder.value(tensor)
    found = read(builder, number).tensor()
    assert (found.shape, found.dtype, found.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
    for i in range(2):
        for j in range(2):
            start = (1 + i + 3 * j) * dtype.itemsize
            expected = content.view(torch.uint8)[start : start + dtype.itemsize].tolist()
            flat = found.as_strided((5,), (1,), 0).view(torch.uint8)
            at = (i + 3 * j) * dtype.itemsize
            assert flat[at : at + dtype.itemsize].tolist() == expected


@pytest.mark.parametrize("layout", ["strided", "compact"])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0),
        torch.empty(2, 0, 3),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(8)[2:7:2],
        torch.randn(6).unfold(0, 3, 1),
        torch.randn(4, 4).t()[1:],
        torch.randn(1).expand(5),
    ],
    ids=["0d", "empty", "empty3d", "expanded", "channels_last", "stepped", "overlapping", "transposed", "one"],
)
def test_geometry(builder: Builder, tensor: torch.Tensor, layout: str) -> None:
    same_bytes(read(builder, builder.value(tensor, store=layout)).tensor(), tensor)


def test_a_write_reaches_neither_the_file_nor_the_next_reader(builder: Builder) -> None:
    number = builder.value(torch.arange(4.0))
    found = read(builder, number)
    found.tensor().fill_(9)
    gc.collect()
    assert found.tensor().tolist() == [0, 1, 2, 3]
    assert open_dump(builder.root).rank(0, 0).value_by_id(number).tensor().tolist() == [0, 1, 2, 3]


def test_views_share_their_bytes(builder: Builder) -> None:
    base = torch.arange(10.0)
    first, second = builder.value(base), builder.value(base[4:8])
    assert len(builder.blobs) == 1
    assert read(builder, second).tensor().tolist() == [4, 5, 6, 7]
    assert read(builder, first).tensor().tolist() == base.tolist()


def test_sample(builder: Builder) -> None:
    number = builder.value(torch.arange(12.0).reshape(3, 4).t(), store="sample", sample=5)
    assert read(builder, number).tensor().tolist() == [0, 4, 8, 1, 5]


def test_conj_and_neg(builder: Builder) -> None:
    base = torch.randn(3, dtype=torch.complex64)
    conj = builder.value(base, flags=r.CONJUGATE)
    negative = builder.value(base.imag, flags=r.NEGATIVE, raw=base.imag)
    assert torch.equal(read(builder, conj).tensor(), base.conj().resolve_conj())
    assert torch.equal(read(builder, negative).tensor(), -base.imag)
    assert read(builder, negative).tensor().stride() == (2,)


def quantized_extra(tensor: torch.Tensor) -> dict[str, object]:
    if tensor.qscheme() == torch.per_tensor_affine:
        return {"scheme": "per_tensor_affine", "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "scheme": "per_channel_affine",
        "scales": tensor.q_per_channel_scales().tolist(),
        "zero_points": tensor.q_per_channel_zero_points().tolist(),
        "points_dtype": "int64",
        "axis": tensor.q_per_channel_axis(),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["quint8", "qint8", "qint32", "per_channel"])
def test_quantized(builder: Builder, kind: str) -> None:
    dense = torch.randn(2, 3)
    if kind == "per_channel":
        tensor = torch.quantize_per_channel(dense, torch.tensor([0.1, 0.2]), torch.tensor([1, 2]), 0, torch.quint8)
    else:
        tensor = torch.quantize_per_tensor(dense, 0.1, 3, getattr(torch, kind))
    number = builder.value(tensor, raw=tensor.int_repr(), extra={"quantized": quantized_extra(tensor)})
    found = read(builder, number)
    assert found.dtype == tensor.dtype
    assert torch.equal(found.tensor(), tensor)
    assert torch.equal(found.tensor().dequantize(), tensor.dequantize())


DENSE = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 0.0]])
COMPRESSED = {"sparse_csr": "row", "sparse_csc": "col", "sparse_bsr": "row", "sparse_bsc": "col"}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_coo", *COMPRESSED])
def test_sparse(builder: Builder, layout: str) -> None:
    if layout == "sparse_coo":
        sparse = DENSE.to_sparse()
        parts = {"indices": sparse.indices(), "values": sparse.values()}
    else:
        sparse = DENSE.to_sparse(layout=getattr(torch, layout), blocksize=(2, 2) if "bs" in layout else None)
        outer = COMPRESSED[layout]
        inner = "col" if outer == "row" else "row"
        parts = {
            f"c{outer}_indices": getattr(sparse, f"c{outer}_indices")(),
            f"{inner}_indices": getattr(sparse, f"{inner}_indices")(),
            "values": sparse.values(),
        }
    extra = {"layout": layout, "parts": {name: builder.value(part) for name, part in parts.items()}, "device": "cpu"}
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [2, 4], [], 0, extra))
    found = read(builder, number)
    assert found.layout == sparse.layout
    assert found.tensor().layout == sparse.layout
    assert torch.equal(found.tensor().to_dense(), DENSE)
    assert found.nbytes == sum(part.nbytes for part in parts.values())
    assert found.device == torch.device("cpu")


@pytest.mark.parametrize(("recorded", "parts"), [(["indices"], "indices"), (["size", "indices"], "size, indices")])
def test_a_sparse_tensor_without_a_part_says_which_there_are(builder: Builder, recorded: list[str], parts: str) -> None:
    ids = {name: builder.value(torch.zeros(2, 0, dtype=torch.int64)) for name in recorded}
    extra = {"layout": "sparse_coo", "parts": ids, "device": "cpu"}
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [2, 4], [], 0, extra))
    with pytest.raises(MissingDataError, match=rf"were not recorded; recorded parts: {parts}$"):
        read(builder, number).tensor()


def missing(builder: Builder, number: int, commit: bool = True) -> str:
    rank = open_dump(builder.finish(commit=commit)).rank(0, 0)
    with pytest.raises(MissingDataError) as caught:
        rank.value_by_id(number).tensor()
    assert "step 0, rank 0" in str(caught.value)
    return str(caught.value)


def test_no_bytes_as_undefined(builder: Builder) -> None:
    assert "nothing had written yet" in missing(builder, builder.value(torch.zeros(1), flags=r.UNDEFINED, store=None))


def test_no_bytes_as_opaque(builder: Builder) -> None:
    assert "meta, fake" in missing(builder, builder.value(torch.zeros(1), flags=r.OPAQUE, store=None))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"data": "structure"}, 'data="structure".*record again with data="tensor"'),
        ({"data": "statistic"}, 'data="statistic".*record again with data="tensor"'),
        ({"max_bytes": 100}, "max_bytes=100 may have been spent"),
        ({"io": "output"}, 'io="output" left it out'),
        ({}, "the recorder did not store it; it noted: two were lost"),
    ],
)
def test_no_bytes_as_configured(builder: Builder, config: dict[str, object], message: str) -> None:
    builder.records[0].config.update(config)
    builder.emit(r.Note(r.NOTE, "lost", "two were lost", 2))
    with pytest.raises(MissingDataError, match=message):
        read(builder, builder.value(torch.zeros(1), store=None)).tensor()


def test_no_bytes_as_interrupted(builder: Builder) -> None:
    number = builder.value(torch.zeros(1), store=None)
    builder.emit(r.Data(r.DATA, number, 77, 0, 0))
    assert "interrupted before they were written; no commit record" in missing(builder, number, commit=False)


def test_a_blob_that_is_too_short(builder: Builder) -> None:
    number = builder.value(torch.zeros(4), store=None)
    builder.emit(r.Data(r.DATA, number, builder.blob(b"1234"), 0, 0))
    with pytest.raises(FormatError, match="ends at byte 16 of blob 1, which has 4"):
        read(builder, number).tensor()


def test_a_dtype_that_this_torch_lacks(builder: Builder) -> None:
    number = builder.value(torch.zeros(4))
    builder.records = [
        r.Text(r.TEXT, rec.id, "float3") if isinstance(rec, r.Text) and rec.text == "float32" else rec
        for rec in builder.records
    ]
    found = read(builder, number)
    assert found.dtype_name == "float3"
    with pytest.raises(MissingDataError, match="has dtype 'float3'"):
        found.tensor()


def test_bytes_that_changed_are_an_error_at_the_first_read(tmp_path: Path) -> None:
    """Every bit of a shard, one at a time, in the first bytes of each blob: never a wrong tensor."""
    root = linear_step(tmp_path / "dump").builder.finish()
    shard = next(root.glob("step0/rank0/shard-*"))
    whole = shard.read_bytes()
    rank = open_dump(root).rank(0, 0)
    blobs = {blob.id: rank.tables.shards[blob.shard].header_bytes + blob.offset for blob in rank.tables.blobs.records()}
    readable = [value for value in rank.values if value.data is not None]
    right = {value.id: value.tensor() for value in readable}
    assert len(blobs) > 2
    for blob, start in blobs.items():
        spoiled = bytearray(whole)
        spoiled[start] ^= 4
        shard.write_bytes(spoiled)
        checked, unchecked = open_dump(root).rank(0, 0), open_dump(root, verify=False).rank(0, 0)
        for value in readable:
            again = checked.value_by_id(value.id)
            assert value.data is not None
            if value.data.blob != blob:
                assert torch.equal(again.tensor(), right[value.id])
                continue
            for _ in range(2):  # also when asked again
                with pytest.raises(FormatError, match=f"blob {blob}, .* has checksum .* was recorded"):
                    again.tensor()
            assert unchecked.value_by_id(value.id).tensor().shape == value.shape
    shard.write_bytes(whole)


def test_a_part_of_a_long_blob_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aten_dump.store.shard_reader.PIECE_BYTES", 10)
    root = linear_step(tmp_path / "dump").builder.finish()
    rank = open_dump(root).rank(0, 0)
    blob = next(blob for blob in rank.tables.blobs.records() if blob.nbytes > 16)
    start = rank.tables.shards[blob.shard].header_bytes + blob.offset
    whole = rank.read_blob(blob.id, 0, blob.nbytes)
    assert open_dump(root).rank(0, 0).read_blob(blob.id, 4, 9).tobytes() == whole[4:9].tobytes()
    shard = next(root.glob("step0/rank0/shard-*"))
    data = bytearray(shard.read_bytes())
    data[start + blob.nbytes - 1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FormatError, match="these are not the bytes that were written"):
        open_dump(root).rank(0, 0).read_blob(blob.id, 4, 9)


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (0, 1 << 40), (1 << 40, 1 << 41), (8, 4)])
def test_bytes_beyond_a_blob_are_refused(builder: Builder, start: int, stop: int) -> None:
    """Who reads blobs itself, as replay does, may ask for what a hostile index told it."""
    builder.value(torch.ones(4))
    rank = open_dump(builder.finish()).rank(0, 0)
    blob = next(iter(rank.tables.blobs))
    with pytest.raises(FormatError, match="the index is damaged"):
        rank.read_blob(blob, start, stop)


@pytest.mark.parametrize("index", [3, 1 << 40, -1])
def test_a_sparse_tensor_whose_indices_are_out_of_range_is_refused(builder: Builder, index: int) -> None:
    """Made of them it would end the process at the next op that follows the indices."""
    parts = {"indices": builder.value(torch.tensor([[0, index]])), "values": builder.value(torch.ones(2))}
    builder.emit(
        r.Value(
            r.VALUE,
            builder.next("value"),
            0,
            0,
            0,
            builder.text("float32"),
            [3],
            [],
            0,
            {"layout": "sparse_coo", "parts": parts},
        )
    )
    rank = open_dump(builder.finish()).rank(0, 0)
    with pytest.raises(FormatError, match="cannot be a sparse_coo tensor"):
        rank.values[-1].tensor()


@pytest.mark.parametrize("scheme", [{}, {"scheme": "per_tensor_affine"}, {"scheme": "per_tensor_affine", "scale": "x"}])
def test_a_scheme_of_a_quantized_tensor_that_makes_none_is_refused(builder: Builder, scheme: dict[str, object]) -> None:
    builder.value(torch.ones(3, dtype=torch.uint8), extra={"quantized": {"a": 1, **scheme}})
    rank = open_dump(builder.finish()).rank(0, 0)
    with pytest.raises(FormatError, match="cannot be a quantized tensor"):
        rank.values[-1].tensor()


@pytest.mark.parametrize(("shape", "stride"), [((3,), (1 << 50,)), ((2, 5), (1 << 50, 0))])
def test_a_forged_stride_that_no_memory_holds(
    builder: Builder, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    number, storage, dtype = builder.next("value"), builder.storage(40, "cpu"), builder.text("float32")
    builder.emit(r.Value(r.VALUE, number, storage, 0, 0, dtype, list(shape), list(stride)))
    builder.emit(r.Data(r.DATA, number, builder.blob(bytes(40)), 0, r.LAYOUTS.index("compact")))
    with pytest.raises(FormatError, match=r"reaches over \d{16} bytes .* its storage had 40, and \d\d are stored"):
        read(builder, number).tensor()
