"""What forward calls keep alive for backward: bytes of storages, each counted once."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode
from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.saved_for_backward import Offload, SavedForBackward, distinct_nbytes
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.torch_features import needs_saved_tensors


def test_saved_for_backward(rank: RankDump) -> None:
    saved = rank.saved_for_backward()
    assert [(s.call.name, s.node, len(s.values), s.nbytes) for s in saved] == [
        ("Aten.addmm.0.forward", "AddmmBackward0", 3, 32 + 48),  # w and its view wt are one storage
        ("Aten.relu_.0.forward", "ReluBackward0", 1, 24),
    ]
    assert saved.nbytes == 32 + 48 + 24
    assert saved.outside_nbytes == 32 + 48
    assert saved.by_call() == {rank.call(4): 80, rank.call(6): 24}
    assert saved.by_module() == {"net.fc": 80, "": 24}
    assert saved.by_module(depth=1) == {"net": 80, "": 24}
    assert len(saved[1:]) == 1
    assert isinstance(saved[1:], SavedForBackward) and saved[1:].nbytes == 24
    assert repr(saved) == "<2 saved entries, 104 bytes>"


def test_views_of_a_storage_count_once_with_the_greatest_size(builder: Builder) -> None:
    base = torch.arange(10.0)
    views = [builder.value(base), builder.value(base[2:4]), builder.value(torch.zeros(3))]
    rank = open_dump(builder.finish()).rank(0, 0)
    assert distinct_nbytes(rank.value_by_id(number) for number in views) == 40 + 12
    assert distinct_nbytes([]) == 0


def test_a_sparse_value_counts_what_it_is_made_of(builder: Builder) -> None:
    parts = {name: builder.value(torch.zeros(size)) for name, size in (("indices", 2), ("values", 3))}
    number = builder.next("value")
    extra = {"layout": "sparse_coo", "parts": parts}
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [5], [], 0, extra))
    rank = open_dump(builder.finish()).rank(0, 0)
    assert distinct_nbytes([rank.value_by_id(number)]) == 8 + 12


def test_modules_are_cut_to_a_depth(builder: Builder) -> None:
    exp = builder.op("aten", "aten::exp", "Aten", "exp")
    for n, module in enumerate(("a.b.c", "a.b.d", "a.e", "")):
        call = builder.call(exp, n=n, module=module)
        builder.emit(r.Saved(r.SAVED, call, "ExpBackward0", [builder.value(torch.zeros(1 + n))]))
    saved = open_dump(builder.finish()).rank(0, 0).saved_for_backward()
    assert saved.by_module() == {"a.b.c": 4, "a.b.d": 8, "a.e": 12, "": 16}
    assert saved.by_module(2) == {"a.b": 12, "a.e": 12, "": 16}
    assert saved.by_module(1) == {"a": 24, "": 16}


def test_offload_counts_what_is_freed_and_what_is_moved_for_nothing(builder: Builder) -> None:
    exp = builder.op("aten", "aten::exp", "Aten", "exp")
    weight = builder.value(torch.zeros(100))
    for n, module in enumerate(("a.b", "a.c")):
        made = builder.value(torch.zeros(10 + n))
        call = builder.call(exp, n=n, module=module, outputs=[r.TREE_VALUE, made])
        builder.emit(r.Saved(r.SAVED, call, "ExpBackward0", [weight, made]))
        builder.emit(r.Saved(r.SAVED, call, "MulBackward0", [made]))
    saved = open_dump(builder.finish()).rank(0, 0).saved_for_backward()
    assert saved.offload() == [Offload("a.c", 44, 400 + 88, 444), Offload("a.b", 40, 400 + 80, 440)]
    assert saved.offload(1) == [Offload("a", 84, 968, 884)]


@needs_saved_tensors
def test_save_on_cpu_moves_what_offload_says(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(3, 8)
    with DumpMode(DumpConfig(tmp_path, data="structure"), model=model):
        model(x).sum().backward()
    moved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.nbytes)
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum().backward()
    offload = open_dump(tmp_path).rank(0, 0).saved_for_backward().offload()
    assert sum(one.moved_bytes for one in offload) == sum(moved)
    assert all(one.freed_bytes + one.wasted_bytes >= one.moved_bytes for one in offload)


def test_tensors_that_hooks_saw_saved_and_fetched(builder: Builder) -> None:
    number = builder.value(torch.zeros(3))
    call = builder.call(builder.op("aten", "aten::exp", "Aten", "exp"))
    builder.emit(r.Packed(r.PACKED, 1, call, number, 10))
    builder.emit(r.Packed(r.PACKED, 2, 0, 0, 20))  # a Python number, outside of all calls
    builder.emit(r.Fetched(r.FETCHED, 1, call, 30))
    builder.emit(r.Fetched(r.FETCHED, 1, 0, 40))
    rank = open_dump(builder.finish()).rank(0, 0)
    first, second = rank.packed_tensors()
    assert (first.value, first.call, first.at_ns) == (rank.value_by_id(number), rank.call(call), 10)
    assert first.fetched == ((rank.call(call), 30), (None, 40))
    assert (second.value, second.call, second.at_ns, second.fetched) == (None, None, 20, ())
