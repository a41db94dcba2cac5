"""Plain, asynchronous and functional collectives: what is recorded is the result after completion."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump import open_dump
from tests.capture.bits import calls, raw
from tests.distributed.launching import RANKS, Launched, launch, launch_once
from tests.torch_features import needs_distributed_seen


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("collectives", tmp_path_factory)


@pytest.fixture(params=range(RANKS))
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def ops(dump: Any, op: str) -> list[Any]:
    return calls(dump, kind="aten", op=op)


def test_a_sync_all_reduce(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    call = ops(dump, "c10d::allreduce_")[0]
    group, operation = call.inputs[0][1:3]
    assert group["ranks"] == [0, 1] and group["group"] != "0", "the group of its own"
    assert operation.text == "ReduceOp.MAX"
    assert call.mutated == ("tensors",)
    assert raw(call.outputs[0][0].tensor()) == raw(seen["max"])


def test_an_async_all_reduce_has_the_result_of_the_wait(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    call = ops(dump, "c10d::allreduce_")[1]
    assert raw(dump.tensor(f"{call.name}.mutated.tensors.0")) == raw(seen["sum"])
    view = ops(dump, "aten::view")[0]
    assert view.inputs[0][0].undefined and view.outputs.undefined, "a look at the buffer in flight"
    assert call.outputs[0][0].consumers[0][0].id > view.id


@needs_distributed_seen
def test_the_calls_of_the_functions_have_the_results(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    for n, result in enumerate(("max", "sum")):
        parent = ops(dump, "c10d::allreduce_")[n].parent
        assert (parent.name, parent.kind) == (f"Distributed.all_reduce.{n}.forward", "api")
        assert raw(dump.tensor(f"{parent.name}.mutated.0")) == raw(seen[result])


def test_waits_out_of_order(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    first, second = ops(dump, "c10d::allreduce_")[2:4]
    assert first.id < second.id and first.name.split(".")[2] < second.name.split(".")[2]
    assert raw(first.outputs[0][0].tensor()) == raw(seen["out of order"][0])
    assert raw(second.outputs[0][0].tensor()) == raw(seen["out of order"][1])


def test_the_rest_of_a_buffer_in_flight_is_defined(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    call = ops(dump, "c10d::allreduce_")[4]
    assert raw(call.outputs[0][0].tensor()) == raw(seen["buffer"][4:])
    add = next(c for c in ops(dump, "aten::add.Tensor") if c.id > call.id)
    assert raw(add.inputs[0][0].tensor()) == raw(torch.zeros(4))
    assert raw(add.outputs.tensor()) == raw(seen["other half"])


def test_all_gather_writes_a_list(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    call = ops(dump, "c10d::allgather_")[0]
    before, after = call.inputs[0][0][0], call.outputs[0][0]
    assert all(value.undefined for value in before)
    assert raw(torch.stack([value.tensor() for value in after])) == raw(seen["gathered"])


def test_send_and_receive_name_their_peers(exchanged: Launched) -> None:
    sent, received = ops(exchanged.rank("dump", 0), "c10d::send")[0], ops(exchanged.rank("dump", 1), "c10d::recv_")[0]
    assert sent.inputs[0][2] == 1 and received.inputs[0][2] == 0
    result = exchanged.rank("dump", 1).tensor(f"{received.name}.mutated.tensors.0")
    assert raw(result) == raw(exchanged.results[1]["seen"]["received"])


def test_functional_collectives(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank), exchanged.results[rank]["seen"]
    reduced, scattered = (
        ops(dump, "_c10d_functional::all_reduce")[0],
        ops(dump, "_c10d_functional::reduce_scatter_tensor")[0],
    )
    assert raw(reduced.outputs.tensor()) == raw(seen["functional"])
    assert raw(scattered.outputs.tensor()) == raw(seen["scattered"])
    assert reduced.inputs[0][2]["ranks"] == [0, 1]
    waits = ops(dump, "_c10d_functional::wait_tensor")
    assert waits[0].inputs[0][0].undefined and waits[0].outputs == reduced.outputs


def test_what_nobody_waited_for_is_undefined_and_said(exchanged: Launched, rank: int) -> None:
    dump = exchanged.rank("dump", rank)
    last = ops(dump, "c10d::allreduce_")[-1]
    assert last.outputs[0][0].undefined
    assert [(note.code, note.count) for note in dump.notes] == [("in_flight", 1)]


def test_what_is_waited_for_in_the_next_step(exchanged: Launched, rank: int) -> None:
    dump, seen = exchanged.rank("dump", rank, step=1), exchanged.results[rank]["seen"]
    assert ops(dump, "aten::view")[0].inputs[0][0].undefined
    add = ops(dump, "aten::add.Tensor")[0]
    assert raw(add.inputs[0][0].tensor()) == raw(seen["forgotten"])
    assert raw(add.outputs.tensor()) == raw(seen["next step"])
    assert not dump.notes


def test_rank_from_the_launcher_s_variables(tmp_path: Any) -> None:
    launched = launch("launched", tmp_path)
    dump = open_dump(str(tmp_path / "dump"))
    assert list(dump.step(0).ranks) == [0, 1]
    for rank in range(RANKS):
        found = dump.step(0).rank(rank)
        assert found.header.world_size == RANKS
        assert raw(ops(found, "c10d::allreduce_")[0].outputs[0][0].tensor()) == raw(launched.results[rank]["total"])
        assert launched.results[rank]["wrapped"] and launched.results[rank]["put back"], "methods of torch's classes"
