"""Tensors made of other tensors are described by what they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.overrides import TorchFunctionMode

from aten_dump.capture.values.tensor_subclasses import describe_subclass

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


class Mine(torch.Tensor):
    pass


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter, Mine])
def test_a_class_that_stands_on_no_other_tensor_is_not_described(kind: type) -> None:
    from torch.distributed import tensor  # noqa: F401

    assert describe_subclass(kind) is None


def test_a_dtensor_is_its_part_the_mesh_and_the_placements(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    class Derived(DTensor):
        pass

    local = torch.ones(2, 3)
    sharded, replica = DTensor.from_local(local, mesh, [Shard(1)]), DTensor.from_local(local, mesh, [Replicate()])
    describe = describe_subclass(DTensor)
    assert describe is not None and describe_subclass(Derived) is describe
    tensor, entries, identity = describe(sharded)
    assert tensor is sharded._local_tensor
    assert entries == {
        "mesh": {"device": "cpu", "dim_names": ["tp"], "shape": [1], "ranks": [0]},
        "placements": [repr(Shard(1))],
    }
    assert identity == (mesh, (repr(Shard(1)),))
    assert describe(replica)[2] != identity, "the same part placed otherwise is another value"


def test_a_collective_s_tensor_is_the_tensor_in_it() -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    inner = torch.ones(3)
    describe = describe_subclass(AsyncCollectiveTensor)
    assert describe is not None
    tensor, entries, identity = describe(AsyncCollectiveTensor(inner))
    assert tensor is inner and (entries, identity) == ({}, ())


def test_a_mode_of_the_program_s_does_not_see_the_look_at_a_mesh(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    asked: list[Any] = []

    class Asked(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            return func(*args, **(kwargs or {}))

    tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    describe = describe_subclass(DTensor)
    assert describe is not None
    with Asked():
        describe(tensor)
    assert asked == []
