"""Calls that are there because of the parallel layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.layout_calls import LAYOUT_TEXTS, layout_calls
from tests.dump.across_ranks.ranks_of_a_step import dtensor
from tests.dump.building import Builder, value

DISTRIBUTED = ("/venv/torch/distributed/tensor/_api.py", 3, "redistribute", False)
PLUMBING = ("/venv/torch/autograd/function.py", 5, "apply", False)
USER = ("/home/me/train.py", 7, "main", True)
MODULE = ("/venv/torch/nn/modules/linear.py", 9, "forward", False)


class Calls:
    """Calls of one rank, by hand."""

    def __init__(self, folder: Path) -> None:
        self.b = Builder(folder)

    def tensor(self) -> int:
        return self.b.value(torch.ones(2))

    def dtensor(self, local: int | None = None) -> int:
        return dtensor(self.b, (2,), self.tensor() if local is None else local, "Replicate()")

    def call(self, op: str, kind: str = "aten", **options: Any) -> int:
        number = self.b.op(kind, op, "Aten", op.rpartition(":")[2].rpartition(".")[2])
        return self.b.call(number, **options)

    def kinds(self) -> dict[int, str]:
        return dict(layout_calls(open_dump(self.b.finish()).rank(0, 0)))


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


@pytest.mark.parametrize(
    ("op", "kind", "found"),
    [
        ("c10d::allreduce_", "aten", "collective"),
        ("_c10d_functional::all_gather_into_tensor", "aten", "collective"),
        ("_c10d_functional_autograd::reduce_scatter_tensor", "aten", "collective"),
        ("_dtensor::shard_dim_alltoall", "aten", "collective"),
        ("symm_mem::one_shot_all_reduce", "aten", "collective"),
        ("fsdp::all_gather_copy_in", "aten", "collective"),
        ("torch.distributed.distributed_c10d.all_reduce", "api", "collective"),
        ("profiler::_record_function_enter_new", "aten", "mark"),
        ("torch.distributed.tensor.DTensor.redistribute", "api", "data movement"),
        ("torch.distributed.tensor.Linear", "module", None),
        ("aten::mm", "aten", None),
        ("torch.relu", "api", None),
    ],
)
def test_by_the_name_of_the_op(calls: Calls, op: str, kind: str, found: str | None) -> None:
    id = calls.call(op, kind)
    assert calls.kinds().get(id) == found
    assert found is None or found in LAYOUT_TEXTS


def test_what_runs_inside_is_of_the_same_kind_but_in_modules(calls: Calls) -> None:
    inside = calls.call("aten::copy_", id=2, parent=1)
    calls.call("c10d::allreduce_", id=1)
    deeper = calls.call("aten::add.Tensor", id=4, parent=2)
    plain = calls.call("aten::mm", id=6, parent=5)
    calls.call("torch.distributed.fsdp.FullyShardedDataParallel", "module", id=5)
    found = calls.kinds()
    assert found == {1: "collective", inside: "collective", deeper: "collective"}
    assert plain not in found


def test_ops_inside_an_op_on_dtensors(calls: Calls) -> None:
    local = calls.tensor()
    whole = calls.dtensor(local)
    inner = calls.call("aten::mm", id=2, parent=1, args=[value(local)], outputs=value(local), start_ns=2000)
    calls.call("aten::mm", id=1, args=[value(whole)], outputs=value(whole), start_ns=1000, duration_ns=9000)
    after = calls.call("aten::relu", id=3, args=[value(local)], outputs=value(local), start_ns=20_000)
    assert calls.kinds() == {inner: "local op"}
    assert after == 3


@pytest.mark.parametrize("where", ["args", "kwargs", "outputs", "written"])
def test_a_dtensor_anywhere_makes_it_one(calls: Calls, where: str) -> None:
    whole = value(calls.dtensor())
    options: dict[str, Any] = {
        "args": {"args": [whole]},
        "kwargs": {"kwargs": {"out": whole}},
        "outputs": {"outputs": whole},
        "written": {"written": ["self", whole]},
    }[where]
    calls.call("aten::mm", id=2, parent=1)
    calls.call("aten::mm", id=1, **options)
    assert calls.kinds() == {2: "local op"}


def test_by_time_where_the_op_around_is_no_parent(calls: Calls) -> None:
    whole = value(calls.dtensor())
    calls.call("aten::mm", id=1, args=[whole], start_ns=1000, duration_ns=500)
    calls.call("aten::mm", id=2, start_ns=1400)
    calls.call("aten::mm", id=3, start_ns=1500)
    assert calls.kinds() == {2: "local op"}


def test_sums_of_gradients_are_the_programs(calls: Calls) -> None:
    whole = value(calls.dtensor())
    calls.call("torch.distributed.tensor.DTensor.redistribute", "api", id=1, start_ns=100)
    calls.call("aten::add.Tensor", id=2, parent=1, phase="backward", start_ns=200)
    calls.call("aten::add.Tensor", id=3, parent=1, phase="forward", start_ns=300)
    calls.call("aten::add.Tensor", id=4, phase="backward", args=[whole], start_ns=1000, duration_ns=500)
    calls.call("aten::add.Tensor", id=5, phase="backward", start_ns=1100)
    assert calls.kinds() == {1: "data movement", 3: "data movement", 5: "local op"}


def test_the_backward_of_a_redistribution(calls: Calls) -> None:
    moves = calls.call("torch.distributed.tensor.DTensor.redistribute", "api", id=1)
    calls.call("aten::slice.Tensor", id=2, phase="backward", forward=moves)
    calls.call("aten::mm", id=3)
    calls.call("aten::mm", id=4, phase="backward", forward=3)
    calls.call("DistributedBackward", "node", id=5, phase="backward", forward=1)
    assert calls.kinds() == {1: "data movement", 2: "data movement", 5: "data movement"}


@pytest.mark.parametrize(
    ("frames", "moves"),
    [
        ((DISTRIBUTED, USER), True),
        ((PLUMBING, DISTRIBUTED, USER), True),
        ((USER, DISTRIBUTED), False),
        ((MODULE, DISTRIBUTED), False),
        ((PLUMBING, USER), False),
        ((PLUMBING,), False),
        ((), False),
    ],
)
def test_by_who_called(calls: Calls, frames: tuple[Any, ...], moves: bool) -> None:
    id = calls.call("aten::view", stack=calls.b.stack(*frames))
    assert calls.kinds() == ({id: "data movement"} if moves else {})


@pytest.mark.parametrize(
    ("op", "parent", "moves"),
    [
        ("aten::copy_", "torch.Tensor.backward", True),
        ("aten::view", "torch.autograd.backward", True),
        ("aten::div_.Scalar", "torch.Tensor.backward", True),
        ("aten::mm", "torch.Tensor.backward", False),
        ("aten::copy_", "torch.nn.functional.linear", False),
        ("aten::copy_", None, False),
    ],
)
def test_buffers_that_hooks_of_backward_lay_out(calls: Calls, op: str, parent: str | None, moves: bool) -> None:
    calls.call(op, id=2, parent=1 if parent else 0)
    if parent:
        calls.call(parent, "api", id=1)
    assert calls.kinds() == ({2: "data movement"} if moves else {})
