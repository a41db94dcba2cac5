"""Every dtype, layout and geometry that torch can make on a CPU is recorded and read back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.errors import MissingDataError
from tests.capture.bits import assert_same, calls, raw
from tests.devices import here

Record = Callable[..., Any]

QUANTIZED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and str(dtype).removeprefix("torch.") not in QUANTIZED
}


def of_dtype(dtype: torch.dtype, n: int = 24) -> Tensor:
    """`n` elements with arbitrary bits, so that nothing but the bytes can be kept."""
    if dtype == torch.bool:
        return torch.arange(n) % 3 == 0
    generator = torch.Generator(here()).manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.randint(0, 256, (n * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def recorded(record: Record, tensor: Tensor, **config: Any) -> tuple[Any, Any]:
    """The Values of the input and the output of `tensor.detach()`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rank = record(lambda: tensor.detach(), **{"data": "tensor", **config})
    call = calls(rank, kind="aten")[-1]
    return call.inputs[0][0], call.outputs


@pytest.mark.parametrize("data", ["tensor", "full"])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(record: Record, name: str, data: str) -> None:
    tensor = of_dtype(DTYPES[name])
    before = raw(tensor)
    for value in recorded(record, tensor, data=data):
        assert value.dtype == tensor.dtype
        assert (tuple(value.shape), tuple(value.stride), value.nbytes) == (
            tuple(tensor.shape),
            tensor.stride(),
            len(before),
        )
        assert_same(tensor, value.tensor(), name, stride=True)
    assert raw(tensor) == before


@pytest.mark.parametrize("data", ["statistic", "hash"])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_has_a_count_and_a_hash(record: Record, name: str, data: str) -> None:
    value, _ = recorded(record, of_dtype(DTYPES[name]), data=data)
    if data == "hash":
        assert value.hash
    else:
        assert value.stats.count == 24


def base() -> Tensor:
    return torch.arange(120.0)


GEOMETRIES: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: base().view(10, 12).t(),
    "permuted": lambda: base().view(4, 5, 6).permute(2, 0, 1),
    "expanded": lambda: base()[:5].view(5, 1).expand(5, 7),
    "expanded_scalar": lambda: torch.tensor(3.0).expand(1000, 1000),
    "channels_last": lambda: base().view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels_last_3d": lambda: base().view(1, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d),
    "strided_slice": lambda: base()[3::7],
    "diagonal": lambda: base()[:100].view(10, 10).diagonal(),
    "one_element_of_another_stride": lambda: base()[77:].as_strided((1, 1), (7, 5)),
    "one_complex_element_of_another_stride": lambda: torch.randn(3, 4, dtype=torch.complex64).diagonal(2)[1:],
    "overlapping": lambda: base().as_strided((10, 4), (2, 1)),
    "unfold": lambda: base().unfold(0, 8, 3),
    "offset": lambda: base()[50:],
    "zero_size": lambda: torch.empty(0),
    "zero_size_3d": lambda: torch.empty(3, 0, 2),
    "zero_size_at_offset": lambda: base()[60:60],
    "scalar": lambda: torch.tensor(2.5),
    "scalar_of_a_view": lambda: base()[77],
    "conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "conjugate_slice": lambda: torch.randn(5, 4, dtype=torch.complex128).conj()[1:3, ::2],
    "negative_bit": lambda: torch.randn(5, dtype=torch.complex64).conj().imag,
    "real_part": lambda: torch.randn(5, dtype=torch.complex64).real,
    "view_as_real": lambda: torch.view_as_real(torch.randn(5, dtype=torch.complex64)),
    "other_dtype_of_the_storage": lambda: torch.randn(6).view(torch.int16)[1:],
    "nan_payloads": lambda: torch.tensor([0x7FC00001, -4194303, 0x7F800001], dtype=torch.int32).view(torch.float32),
    "negative_zero": lambda: torch.tensor([0.0, -0.0]),
}


@pytest.mark.parametrize("data", ["tensor", "full"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry(record: Record, name: str, data: str) -> None:
    tensor = GEOMETRIES[name]()
    for value in recorded(record, tensor, data=data):
        found = value.tensor()
        assert tuple(value.stride) == tensor.stride()
        assert_same(tensor, found, name, stride=True)
        assert (found.is_conj(), found.is_neg()) == (tensor.is_conj(), tensor.is_neg())


def test_an_expanded_tensor_stores_its_own_bytes_only(record: Record, tmp_path: Any) -> None:
    recorded(record, torch.tensor(3.0).expand(1000, 1000))
    assert sum(file.stat().st_size for file in tmp_path.rglob("shard-*")) < 100_000


def test_hash_is_of_the_elements_not_of_the_geometry(record: Record) -> None:
    x = torch.randn(6, 4)
    transposed, _ = recorded(record, x.t(), data="hash")
    compact, _ = recorded(record, x.t().contiguous(), data="hash")
    assert transposed.hash == compact.hash
    assert recorded(record, x, data="hash")[0].hash != transposed.hash


def _per_tensor() -> Tensor:
    return torch.quantize_per_tensor(torch.randn(4, 6), 0.1, 3, torch.quint8)


def _per_channel() -> Tensor:
    return torch.quantize_per_channel(torch.randn(4, 6), torch.rand(4).double() + 0.1, torch.arange(4), 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["structure", "hash", "statistic", "tensor", "full"])
@pytest.mark.parametrize(
    "make", [_per_tensor, _per_channel, lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint32)]
)
def test_quantized(record: Record, make: Callable[[], Tensor], data: str) -> None:
    q = make()
    before = raw(q)
    rank = record(lambda: q.dequantize(), data=data)
    value = next(c for c in calls(rank, kind="aten") if "dequantize" in c.op).inputs[0][0]
    assert raw(q) == before
    assert (value.dtype, tuple(value.shape)) == (q.dtype, tuple(q.shape))
    if data in ("tensor", "full"):
        found = value.tensor()
        assert found.is_quantized and found.qscheme() == q.qscheme()
        assert_same(q.int_repr(), found.int_repr())
        assert_same(q.cpu().dequantize(), found.dequantize())


def _coo() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0]), (2, 3))


SPARSE: dict[str, Callable[[], Tensor]] = {
    "coo": _coo,
    "coo_coalesced": lambda: _coo().coalesce(),
    "csr": lambda: _coo().to_dense().to_sparse_csr(),
    "csc": lambda: _coo().to_dense().to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["structure", "hash", "statistic", "tensor", "full"])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse(record: Record, name: str, data: str) -> None:
    tensor = SPARSE[name]()
    expected = tensor.to_dense()
    result = []
    rank = record(lambda: result.append(tensor.to_dense()), data=data)
    assert_same(expected, result[0])
    assert_same(expected, tensor.to_dense())
    recorded_inputs = [v for c in calls(rank, kind="aten") for v in [c.inputs[0][0]] if "dense" in c.op]
    assert tuple(recorded_inputs[0].shape) == tuple(tensor.shape)
    assert recorded_inputs[0].dtype == torch.float32
    try:
        found = recorded_inputs[0].tensor()
    except MissingDataError:
        return
    assert found.layout == tensor.layout
    assert_same(expected, found.to_dense())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["tensor", "full"])
def test_training_with_sparse_gradients(record: Record, data: str) -> None:
    def program() -> Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(8, 4, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        table(torch.tensor([1, 1, 5])).pow(2).sum().backward()
        optimizer.step()
        return table.weight.detach().clone()

    expected, found = program(), []
    rank = record(lambda: found.append(program()), data=data)
    assert_same(expected, found[0])
    assert len(calls(rank, kind="aten", phase="optimizer")) >= 1


@pytest.mark.parametrize("data", ["structure", "hash", "statistic", "tensor", "full"])
def test_meta_tensors(record: Record, data: str) -> None:
    x = torch.empty(3, 4, device="meta")
    made: list[Tensor] = []
    rank = record(lambda: made.append(torch.mm(x, x.t()).exp()), data=data)
    assert made[0].is_meta and tuple(made[0].shape) == (3, 3)
    value = calls(rank, kind="aten", op="aten::exp")[0].inputs[0][0]
    assert (tuple(value.shape), str(value.device), value.dtype) == ((3, 3), "meta", torch.float32)
    with pytest.raises(MissingDataError):
        value.tensor()


@pytest.mark.parametrize("data", ["structure", "full"])
def test_fake_tensors_are_not_touched(record: Record, data: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: list[Tensor] = []

    def body() -> None:
        with FakeTensorMode():
            found.append(torch.ones(3, 4) @ torch.ones(4, 5))

    record(body, data=data)
    assert tuple(found[0].shape) == (3, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["structure", "full"])
def test_nested_tensors(record: Record, data: str) -> None:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    found: list[Tensor] = []
    for layout in (torch.strided, torch.jagged):
        record(lambda layout=layout: found.append(torch.nested.nested_tensor(parts, layout=layout).sin()), data=data)
        for part, result in zip(parts, found[-1].unbind(), strict=True):
            assert_same(part.sin(), result)


@pytest.mark.parametrize("data", ["structure", "full"])
def test_subclass_with_its_own_dispatch(record: Record, data: str) -> None:
    """The ops inside a wrapper subclass are recorded, and its results are those of the bare program."""

    class Scaled(Tensor):
        @staticmethod
        def __new__(cls, inner: Tensor) -> Scaled:
            out = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
            out.inner = inner
            return out

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            plain = [a.inner if isinstance(a, Scaled) else a for a in args]
            return Scaled(func(*plain, **(kwargs or {})))

    x = torch.randn(3)
    found: list[Any] = []
    rank = record(lambda: found.append(Scaled(x) + Scaled(x)), data=data)
    assert isinstance(found[0], Scaled)
    assert_same(x + x, found[0].inner)
    adds = calls(rank, kind="aten", op="aten::add.Tensor")
    assert len(adds) == 2  # the op on the subclass, and the op on what it holds
    if data == "full":
        assert_same(x + x, adds[-1].outputs.tensor())
