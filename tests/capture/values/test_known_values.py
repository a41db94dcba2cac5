"""Two looks at a tensor find one value exactly where memory, version and place are the same: compiled and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import IS_COMPILED
from aten_dump.capture.values import known_values
from aten_dump.capture.values.known_values import KEYED_DTYPES, look
from tests.capture.bits import calls

Record = Callable[..., Any]
needs_compiler = pytest.mark.skipif(
    not known_values.FINDS, reason="nothing is compiled here, or torch has nothing where it is looked for"
)


def read(record: Record, *looks: Callable[[], object], **config: Any) -> list[Any]:
    """Return what `exp` was given in each of some looks."""

    def body() -> None:
        for one in looks:
            one()

    rank = record(body, **{"data": "tensor", **config})
    return [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]


@pytest.mark.parametrize("dtype", sorted(KEYED_DTYPES | {torch.complex64, torch.complex128}, key=str), ids=str)
def test_each_view_of_a_storage_is_one_value_however_often_it_is_read(record: Record, dtype: torch.dtype) -> None:
    base = torch.arange(24).to(dtype).reshape(4, 6)
    views = [base, base.t(), base[1:], base[:, 1], base[:, ::2], base.view(-1), base[2, 3], base.view(2, 2, 6)]
    views += [base.as_strided((1, 6), (6, 1)), base.as_strided((1, 6), (100, 1))]
    found = read(record, *[view.exp for _ in range(3) for view in views])
    ids = [value.id for value in found]
    assert ids[: len(views)] == ids[len(views) : 2 * len(views)] == ids[2 * len(views) :]
    assert len(set(ids)) == len(views)
    for value, view in zip(found, views, strict=False):
        assert torch.equal(value.tensor(), view) and value.stride == view.stride()


@pytest.mark.skipif(
    not IS_COMPILED or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="nothing is compiled here, or torch is older than DLPack's C functions",
)
def test_where_torch_has_the_parts_of_a_tensor_is_found() -> None:
    """Else nothing is wrong, but nothing is gained."""
    assert known_values.FINDS


@needs_compiler
@pytest.mark.parametrize("dtype", sorted(KEYED_DTYPES, key=str), ids=str)
def test_where_elements_lie_is_told_as_torch_would(dtype: torch.dtype) -> None:
    base = torch.arange(24).to(dtype).reshape(4, 6)
    views = [base, base.t(), base[1:], base[:, 1], base[:, ::2], base.view(-1), base[2, 3], base.view(2, 2, 6)]
    views += [base[1:2], base[:, 2:3], base.as_strided((1, 6), (100, 1), 3), base.expand(2, 4, 6), base[:1].t()]
    for view in views:
        size = view.element_size()
        layout = None if view.is_contiguous() else (tuple(view.shape), view.stride())
        lies = (dtype, view.storage_offset() * size, view.numel() * size, view.data_ptr(), layout)
        assert look(view, {})[6] == lies
    assert any(view.is_contiguous() for view in views) and not all(view.is_contiguous() for view in views)


def test_what_lies_at_one_place_as_another_dtype_is_another_value(record: Record) -> None:
    x = torch.arange(8, dtype=torch.float32)
    views = [x, x.view(torch.int32), x.view(torch.uint8), x.view(torch.bfloat16), x.view(torch.float16)]
    found = read(record, *[view.exp for _ in range(2) for view in views])
    assert [value.id for value in found[:5]] == [value.id for value in found[5:]]
    assert len({value.id for value in found}) == 5
    assert [value.dtype for value in found[:5]] == [view.dtype for view in views]


def test_a_negative_or_conjugate_view_of_the_same_elements_is_another_value(record: Record) -> None:
    c = torch.tensor([1 + 2j, 3 - 4j])
    views = [c, c.conj(), c.imag, c.conj().imag, c.real, c.conj().real]
    rank = record(lambda: [view.exp() for view in views * 2], data="tensor")
    found = [call.inputs[0][0] for call in calls(rank, kind="api", op="torch.Tensor.exp")]  # the op gets them resolved
    assert [value.id for value in found[:6]] == [value.id for value in found[6:]]
    assert len({value.id for value in found}) == 5  # the two real parts lie in one place, and are the same
    for value, view in zip(found, views, strict=False):
        assert torch.equal(value.tensor(), view.resolve_conj().resolve_neg())


def test_a_write_makes_new_values_of_all_views(record: Record) -> None:
    x = torch.arange(6.0)
    views = [x, x[1:], x[::2]]
    looks = [view.exp for view in views]
    found = read(record, *looks, lambda: x.mul_(2), *looks, *looks)
    ids = [value.id for value in found]
    assert len(set(ids)) == 6 and ids[3:6] == ids[6:]
    assert [value.tensor().tolist() for value in found[3:6]] == [
        (torch.arange(6.0) * 2)[k].tolist() for k in (slice(None), slice(1, None), slice(None, None, 2))
    ]


def test_memory_that_another_tensor_gets_is_another_value(record: Record) -> None:
    def body() -> None:
        for number in range(50):
            torch.full((16,), float(number)).exp()  # freed at once: the next one lies in the same place

    rank = record(body, data="tensor")
    found = [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]
    assert len({value.id for value in found}) == 50
    assert [value.tensor()[0].item() for value in found] == list(map(float, range(50)))


def test_a_parameter_that_is_given_other_data_is_another_value(record: Record) -> None:
    p = torch.nn.Parameter(torch.zeros(2, 3))
    q = torch.ones(2, 3)

    def give(data: torch.Tensor) -> Callable[[], None]:
        def look() -> None:
            p.data = data

        return look

    found = read(record, p.exp, give(q), p.exp, give(q.t()), p.exp, give(q), p.exp)
    assert [tuple(value.shape) for value in found] == [(2, 3), (2, 3), (3, 2), (2, 3)]
    assert found[1].id == found[3].id and len({value.id for value in found}) == 3


def test_a_storage_that_shrinks_and_grows_is_read_anew(record: Record) -> None:
    x = torch.arange(8.0)
    storage = x.untyped_storage()

    def resize(nbytes: int) -> Callable[[], object]:
        return lambda: storage.resize_(nbytes)

    found = read(record, x.exp, resize(64), x.exp, lambda: x.fill_(3), x.exp)
    assert len({value.id for value in found}) == 3
    assert found[2].tensor().tolist() == [3.0] * 8


def test_tensors_without_elements_lie_where_they_lie(record: Record) -> None:
    x = torch.arange(6.0)
    views = [x[2:2], x[4:4], x[2:2].view(0, 5), x]
    found = read(record, *[view.exp for _ in range(2) for view in views])
    assert [value.id for value in found[:4]] == [value.id for value in found[4:]]
    assert len({value.id for value in found}) == 4


def test_more_dims_than_a_key_holds(record: Record) -> None:
    x = torch.arange(2.0).reshape([1] * 11 + [2])
    found = read(record, x.exp, x.exp, lambda: x.add_(1), x.exp)
    assert found[0].id == found[1].id != found[2].id and found[2].tensor().flatten().tolist() == [1.0, 2.0]


def key_of(tensor: torch.Tensor) -> bytes | None:
    """Return the key of a tensor that has not been seen."""
    described = look(tensor, {})
    if described is None:
        return None
    key = described[4]
    assert isinstance(key, bytes)
    return key


@needs_compiler
def test_a_new_tensor_is_described_as_torch_would() -> None:
    x = torch.arange(24.0)
    for view in (x, x[3:7], x.view(4, 6).t(), x[5], x.view(torch.uint8)[4:], torch.nn.Parameter(x)):
        storage, address, nbytes, geometry, _, is_cpu, _ = look(view, {})
        assert (storage.data_ptr(), address, nbytes, is_cpu) == (x.data_ptr(), x.untyped_storage()._cdata, 96, True)
        assert geometry == (view.storage_offset(), view.shape, view.stride(), view.dtype, False, False)
        assert type(geometry[1]) is tuple


@needs_compiler
def test_keys_are_had_where_they_tell_all() -> None:
    x = torch.arange(6.0)
    assert key_of(x) == key_of(x.detach()) == key_of(x[0:]) == key_of(x.clone()), "each storage has values of its own"
    others = [x[1:], x[:5], x[::2], x.view(2, 3), x.view(3, 2), x.view(torch.int32), x.view(1, 6)]
    assert len({key_of(x), *map(key_of, others)}) == len(others) + 1
    c = torch.tensor([1 + 2j])
    without = [
        c.conj().imag,
        torch.zeros(0),
        torch.zeros([1] * 9),
        torch.zeros(2, device="meta"),
    ]
    assert [key_of(one) for one in without] == [None] * len(without)


@needs_compiler
def test_a_tensor_that_has_no_storage_is_left_to_be_asked_and_what_is_none_is_refused() -> None:
    assert look(torch.zeros(2).to_sparse(), {}) is None
    with pytest.raises(TypeError, match="look takes 2 arguments, got 1"):
        look(torch.zeros(2))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="look takes a tensor, got int"):
        look(2, {})  # type: ignore[arg-type]
