"""Objects of torch.distributed as literals: what tells one apart from another, and nothing that changes by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist

from aten_dump.capture.values.distributed_literals import describe, group_named, mesh_of
from aten_dump.store.records import TREE_BYTES, TREE_DICT, TREE_LIST, TREE_OBJECT
from tests.capture.bits import calls

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.distributed_c10d._get_default_group()
    dist.destroy_process_group()


@pytest.mark.parametrize("item", [None, 3, "sum", object(), torch.ones(1), [1]], ids=lambda item: type(item).__name__)
def test_other_objects_are_left_to_others(item: Any) -> None:
    assert describe(item) is None


@pytest.mark.parametrize("name", ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_a_reduce_op_is_its_name_however_it_is_given(name: str) -> None:
    kind = getattr(dist.ReduceOp.RedOpType, name)
    assert describe(kind) == describe(dist.ReduceOp(kind)) == (TREE_BYTES, f"ReduceOp.{name}")


def test_a_group_is_its_name_backend_and_ranks(group: Any) -> None:
    assert describe(group) == (
        TREE_DICT, "group", group.group_name, "backend", "gloo", "ranks", (TREE_LIST, 0),
    )  # fmt: skip
    assert describe(group.boxed()) == describe(group)


def test_a_group_that_torch_distributed_was_not_told_of_counts_its_ranks() -> None:
    group, kind = dist.ProcessGroup(dist.HashStore(), 0, 1), dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(dist.HashStore(), 0, 1))
    group._set_default_backend(kind)
    group._set_group_name("mine")
    assert describe(group) == (TREE_DICT, "group", "mine", "backend", "gloo", "ranks", (TREE_LIST, 0))


def test_a_group_without_name_or_backend_fails_as_it_does_unrecorded(record: Callable[..., Any]) -> None:
    x = torch.ones(2)
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    with pytest.raises(RuntimeError) as bare:
        group.allreduce([x])
    errors: list[str] = []

    def body() -> None:
        try:
            group.allreduce([x])
        except RuntimeError as error:
            errors.append(str(error))

    rank = record(body)
    assert [error.partition("\n")[0] for error in errors] == [str(bare.value).partition("\n")[0]]
    assert calls(rank, op="c10d::allreduce_")[0].error


def test_a_functional_collective_names_its_group(group: Any) -> None:
    assert group_named(group.group_name) == describe(group)
    assert group_named("no such group") == "no such group"
    assert group_named(group) == describe(group)


def test_without_a_group_the_name_is_told_as_it_is() -> None:
    assert group_named("0") == "0"


def test_a_mesh_is_its_device_names_shape_and_ranks(group: Any) -> None:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    named = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert mesh_of(named) == {"device": "cpu", "dim_names": ["dp", "tp"], "shape": [1, 1], "ranks": [0]}
    assert mesh_of(DeviceMesh("cpu", [0]))["dim_names"] is None
    assert describe(named) == (
        TREE_DICT, "device", "cpu", "dim_names", (TREE_LIST, "dp", "tp"), "shape", (TREE_LIST, 1, 1),
        "ranks", (TREE_LIST, 0),
    )  # fmt: skip


def test_a_placement_is_its_text() -> None:
    from torch.distributed.tensor import Replicate, Shard

    assert describe(Shard(1)) == (TREE_BYTES, repr(Shard(1)))
    assert describe(Replicate()) == (TREE_BYTES, repr(Replicate()))


def test_an_object_of_torchscript_is_its_class() -> None:
    future: Any = torch._C._distributed_c10d._create_work_from_future(torch.futures.Future())
    assert describe(future.boxed()) == (TREE_OBJECT, "c10d.Work")
