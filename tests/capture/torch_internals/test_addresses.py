"""A tensor that is copy-on-write shares its memory as in the bare program, whatever is recorded of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.torch_internals.addresses import address_in, address_of, address_of_storage, is_copy_on_write
from tests.capture.bits import calls
from tests.structure import PACKAGE, files
from tests.torch_features import needs_saved_hooks_shown

Record = Callable[..., Any]
DATA = ("structure", "hash", "statistic", "tensor", "full")
SIZES = {"small": 40, "batched": 3200, "large": 10_000, "many threads": 600_000}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64)
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda t: t,
    "offset": lambda t: t[7:],
    "column": lambda t: t.view(-1, 10)[:, 3],
    "transposed": lambda t: t.view(-1, 10).t(),
    "expanded": lambda t: t.expand(3, -1),
    "channels last": lambda t: t.view(1, 2, -1, 10).permute(0, 3, 1, 2),
}


def lazy_clones(source: Tensor, count: int) -> list[Tensor]:
    return [torch._lazy_clone(source) for _ in range(count)]


def made_real(tensors: Iterable[Tensor], address: int) -> list[int]:
    """Return which of some tensors no longer share the memory at an address."""
    pairs = enumerate(tensors)
    return [i for i, t in pairs if not torch._C._is_cow_tensor(t) or torch._C._data_address(t) != address]


def read_views(source: Tensor, record: Record, **config: Any) -> list[Any]:
    """Record a look at each view, each of a lazy clone of its own; return the values that were seen."""
    clones = lazy_clones(source, len(VIEWS))
    address = torch._C._data_address(source)

    def body() -> None:
        for view, clone in zip(VIEWS.values(), clones, strict=True):
            view(clone).isnan()
        source.isnan()

    rank = record(body, **config)
    assert made_real([source, *clones], address) == []
    return [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::ne.Tensor")]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("data", DATA)
def test_what_is_recorded_shares_memory_as_before(record: Record, data: str, size: int) -> None:
    source = torch.arange(size) % 200 / 3
    found = read_views(source, record, data=data)
    if data in ("tensor", "full"):
        for value, view in zip(found, VIEWS.values(), strict=False):
            assert torch.equal(value.tensor(), view(source))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("data", ["hash", "full"])
def test_of_each_dtype(record: Record, data: str, dtype: torch.dtype) -> None:
    for size in (40, 10_000):
        read_views((torch.arange(size) % 3).to(dtype), record, data=data)


@pytest.mark.parametrize(
    "config",
    [
        {"hash": "sha256"},
        {"dedup": "content"},
        {"sample": 5},
        {"trigger": "nonfinite"},
        {"max_bytes": 1 << 30},
        pytest.param({"saved_tensors": "hooks"}, marks=needs_saved_hooks_shown),
    ],
    ids=str,
)
def test_however_it_is_recorded(tmp_path: Path, config: dict[str, Any]) -> None:
    for size in (40, 10_000):
        source = torch.arange(size) / 3
        clones = lazy_clones(source, len(VIEWS))
        address = torch._C._data_address(source)

        def body(clones: list[Tensor] = clones) -> None:
            for view, clone in zip(VIEWS.values(), clones, strict=True):
                view(clone).isnan()

        with DumpMode(DumpConfig(str(tmp_path / str(size)), data="full", **config)):
            body()
        assert made_real([source, *clones], address) == []


def program(size: int) -> list[Any]:
    """Share and write in all orders; return what each tensor holds, and who shares memory at each point."""
    told: list[Any] = []
    x = torch.arange(size) / 7
    y = torch._lazy_clone(x)
    z = torch._lazy_clone(y)
    w = torch.nn.Parameter(torch._lazy_clone(x))

    def tell(*group: Tensor) -> None:
        told.append([torch._C._is_cow_tensor(t) for t in group])
        told.append([torch._C._data_address(t) == torch._C._data_address(u) for t in group for u in group])

    tell(x, y, z, w)
    (w * y).sum().backward()
    tell(x, y, z, w)
    y[1:].mul_(2)
    tell(x, y, z, w)
    x.add_(1)
    tell(x, y, z, w)
    z.view(-1, 10).t().sum()
    torch.optim.SGD([w], lr=0.5).step()
    tell(x, y, z, w)
    del x
    z.zero_()
    return [*told, *(t.tolist() for t in (y, z, w, w.grad))]


@pytest.mark.parametrize("size", [40, 10_000])
@pytest.mark.parametrize("data", DATA)
def test_writes_part_what_is_shared_as_in_the_bare_program(record: Record, data: str, size: int) -> None:
    bare = program(size)
    told: list[Any] = []
    record(lambda: told.extend(program(size)), data=data)
    assert told == bare


def test_a_tensor_is_the_same_value_before_and_after_it_shares_memory(record: Record) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.uint8, torch.bool, torch.complex64):
        base = (torch.arange(24) % 2).to(dtype)

        def body(base: Tensor = base) -> None:
            x = base.clone()
            views = [x, x.view(4, 6)[:, 1:], x.view(4, 6).t(), x[3], x[:0]]

            def look() -> None:
                for view in views:
                    view.isnan()

            look()
            y = torch._lazy_clone(x)
            look()
            x.data_ptr()  # gives it memory of its own, unseen
            look()
            y.isnan()

        rank = record(body, data="tensor")
        (clone,) = calls(rank, kind="aten", op="aten::clone")
        (shared,) = calls(rank, kind="aten", op="aten::_lazy_clone")
        found = [c.inputs[0][0] for c in calls(rank, kind="api", op="torch.Tensor.isnan")]
        ids = [value.id for value in found]
        assert ids[:5] == ids[5:10] == ids[10:15] and len(set(ids)) == 6
        assert found[10].producer[0].id == clone.id and found[15].producer[0].id == shared.id
        assert torch.equal(found[15].tensor(), base) and torch.equal(found[11].tensor(), base.view(4, 6)[:, 1:])


def test_the_lazy_clone_of_memory_that_nothing_wrote_is_undefined(record: Record) -> None:
    rank = record(lambda: torch._lazy_clone(torch.empty(5000)), data="full")
    (call,) = calls(rank, kind="aten", op="aten::_lazy_clone")
    assert call.outputs.undefined


def test_undefined_memory_that_is_watched_while_a_step_is_paused_is_shared_as_before(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(str(tmp_path / "d"), data="full")) as dump:
        x = torch.empty(5000)
        y = torch._lazy_clone(x)
        dump.pause()
        dump.resume()
        assert made_real([x, y], torch._C._data_address(x)) == []
    (call,) = calls(open_dump(tmp_path / "d").step(0).rank(0), kind="aten", op="aten::_lazy_clone")
    assert call.outputs.undefined


def test_a_learning_rate_is_read_where_it_lies(record: Record) -> None:
    rate = torch.tensor(0.5)
    lent = torch._lazy_clone(rate)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.param_groups[0]["note"] = lent
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    record(optimizer.step, data="structure")
    assert made_real([rate, lent], torch._C._data_address(rate)) == []


def test_an_address_to_read_from_is_that_to_write_to() -> None:
    x = torch.arange(12.0).view(3, 4)
    wide = x.as_strided((0,), (1,), 5)
    for tensor in (x, x[1:], x.t(), x[:, 2], x[2, 3], x.double(), torch.zeros(0), wide, torch.zeros(2, device="meta")):
        assert address_of(tensor) == tensor.data_ptr()
        assert address_of_storage(tensor) == tensor.untyped_storage().data_ptr()
        assert not is_copy_on_write(tensor)
    y = torch._lazy_clone(x)
    assert address_of(y[1:]) == address_of(x[1:]) == address_in(y.untyped_storage()) + 16
    assert is_copy_on_write(y) and is_copy_on_write(x)


def test_no_address_to_write_to_is_asked_of_the_program_s_tensors() -> None:
    """Nothing that makes copy-on-write tensors real is used, but on memory of the recorder's own or just resized."""
    own = {
        "data/statistics/fused_launches.py": ["into.data_ptr()"],
        "data/host_memory.py": ["tensor.numpy()"],
        "memory/storage_table.py": ["storage.data_ptr()", "storage.data_ptr()"],
    }
    asked = {
        file.relative_to(PACKAGE / "capture").as_posix(): found
        for file in files(PACKAGE / "capture")
        if (found := re.findall(r"[\w.]*\.(?:data_ptr|numpy|__dlpack__|to_dlpack)\(\)", code_of(file)))
    }
    assert asked == own


def code_of(file: Path) -> str:
    return re.sub(r"``.*?``|`.*?`", "", file.read_text(encoding="utf-8"))
