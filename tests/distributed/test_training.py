"""DDP, FSDP2, tensor parallel and pipeline training in two real processes: unchanged, and recorded truly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump import compare
from tests.capture.bits import calls, raw, values
from tests.distributed.comparing import differences
from tests.distributed.launching import RANKS, Launched, launch, launch_once
from tests.torch_features import SHOWS_REDUCTIONS, needs_fsdp_on_cpu

STEPS = 2


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("ddp", tmp_path_factory)


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("fsdp", tmp_path_factory)


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("tensor_parallel", tmp_path_factory)


def assert_unchanged(launched: Launched, bare: str, *dumped: str) -> None:
    """Losses, gradients and parameters of every dumped run are those of the bare one, bit by bit."""
    for rank, result in enumerate(launched.results):
        for name in dumped:
            assert result[name].keys() == result[bare].keys()
            for key, expected in result[bare].items():
                assert raw(result[name][key]) == raw(expected), f"rank {rank}: {key} differs under the dump {name!r}"


def local(value: Any) -> Any:
    """The value that holds the bytes: of a DTensor, its local tensor's."""
    number = value.extra.get("local")
    return value if number is None else value._rank.value_by_id(number)


def assert_gradients(launched: Launched, dump: str, bare: str, prefix: str = "") -> None:
    """The recorded gradient of each parameter is the one that the program had after the backward."""
    for rank in range(RANKS):
        for step in range(STEPS):
            recorded = launched.rank(dump, rank, step).gradients
            expected = {
                key.removeprefix(f"gradient.{step}.{prefix}"): tensor
                for key, tensor in launched.results[rank][bare].items()
                if key.startswith(f"gradient.{step}.")
            }
            names = {name.removeprefix(prefix) for name in recorded}
            assert names == expected.keys()
            for name, value in recorded.items():
                assert raw(local(value).tensor()) == raw(expected[name.removeprefix(prefix)]), (rank, step, name)


def distributed(rank: Any) -> list[Any]:
    return [c for c in calls(rank, kind="aten") if c.op.startswith(("c10d::", "_c10d_functional::"))]


class TestDDP:
    def test_training_is_unchanged(self, ddp: Launched) -> None:
        assert_unchanged(ddp, "bare", "dump")
        assert_unchanged(ddp, "views.bare", "views")

    @pytest.mark.parametrize(("dump", "bare"), [("dump", "bare"), ("views", "views.bare")])
    def test_gradients_are_those_after_the_reduction(self, ddp: Launched, dump: str, bare: str) -> None:
        assert_gradients(ddp, dump, bare, prefix="module.")

    def test_the_reducer_s_all_reduce_is_recorded_with_its_result(self, ddp: Launched) -> None:
        ranks = [ddp.rank("dump", rank) for rank in range(RANKS)]
        found = [[c for c in distributed(rank) if c.op == "c10d::allreduce_"] for rank in ranks]
        assert [len(c) for c in found] == [1, 1]
        sums = []
        for (call,) in found:
            assert call.name.startswith("Distributed.allreduce_.")
            assert call.phase == "backward"
            assert call.inputs[0][1] == {"group": "0", "backend": "gloo", "ranks": [0, 1]}
            if SHOWS_REDUCTIONS:  # this one is asked for by C++ code
                assert call.inputs[0][2].text == "ReduceOp.SUM"
            (before,), (after,) = values(call.inputs), values(call.outputs)
            assert not before.undefined and not after.undefined
            sums.append(after.tensor())
        parts = [values(c.inputs)[0].tensor() for (c,) in found]
        assert torch.equal(sums[0], parts[0] + parts[1])
        assert torch.equal(sums[0], sums[1])


@needs_fsdp_on_cpu
class TestFSDP:
    def test_training_is_unchanged(self, fsdp: Launched) -> None:
        assert_unchanged(fsdp, "bare", "one", "two")

    def test_gradients_of_the_shards_are_recorded(self, fsdp: Launched) -> None:
        assert_gradients(fsdp, "one", "bare")

    def test_two_equal_runs_give_equal_dumps(self, fsdp: Launched) -> None:
        for rank in range(RANKS):
            for step in range(STEPS):
                one, two = fsdp.rank("one", rank, step), fsdp.rank("two", rank, step)
                assert list(differences(one, two)) == []

    def test_a_gathered_parameter_is_whole_after_the_gather_and_undefined_before(self, fsdp: Launched) -> None:
        shards = []
        for rank in range(RANKS):
            gather = next(c for c in distributed(fsdp.rank("one", rank)) if c.op == "c10d::_allgather_base_")
            output, shard = gather.inputs[0][:2]
            assert output.undefined and not shard.undefined
            shards.append(shard.tensor())
        assert torch.equal(gather.outputs[0].tensor(), torch.cat(shards))

    def test_memory_that_was_given_back_is_undefined(self, fsdp: Launched) -> None:
        """The parameters that the second step meets were freed in the first."""
        rank = fsdp.rank("one", 0, 1)
        filled = [c for c in rank.calls if c.op == "fsdp::split_with_sizes_copy"]
        assert len(filled) >= 6  # three groups, forward and backward
        for call in filled:
            assert all(value.undefined for value in values(call.inputs[1]["out"])), call
        assert not [note for note in rank.notes if note.code == "unreadable"]


class TestTensorParallel:
    def test_training_is_unchanged(self, tensor_parallel: Launched) -> None:
        assert_unchanged(tensor_parallel, "bare", "one", "two")
        assert_gradients(tensor_parallel, "one", "bare")

    def test_two_equal_runs_give_equal_dumps(self, tensor_parallel: Launched) -> None:
        for rank in range(RANKS):
            one, two = tensor_parallel.rank("one", rank), tensor_parallel.rank("two", rank)
            assert list(differences(one, two)) == []

    def test_global_ops_have_mesh_placements_and_local_values(self, tensor_parallel: Launched) -> None:
        rank = tensor_parallel.rank("one", 1)
        outer = next(c for c in calls(rank, op="aten::addmm") if c.children)
        (inner,) = [c for c in outer.children if c.op == "aten::addmm"]
        weight = outer.inputs[0][2]
        assert weight.extra["class"].endswith(".DTensor")
        assert weight.extra["mesh"] == {"device": "cpu", "dim_names": ("tp",), "shape": (2,), "ranks": (0, 1)}
        assert weight.extra["placements"] == ("Shard(dim=1)",)
        assert tuple(weight.shape) == (8, 16)
        assert local(weight) == inner.inputs[0][2]
        assert tuple(inner.inputs[0][2].shape) == (8, 8)
        assert local(outer.outputs) == inner.outputs
        assert outer.outputs.producer is not None and outer.outputs.producer[0] == outer

    def test_sharding_propagation_is_not_recorded(self, tensor_parallel: Launched) -> None:
        for rank in range(RANKS):
            dump = tensor_parallel.rank("one", rank)
            assert not [c for c in calls(dump, kind="aten") if "empty_strided" in c.op and c.phase != "optimizer"]
            assert not [v for v in dump.values if "Fake" in v.extra.get("class", "")]

    def test_the_functional_all_reduce_has_the_sum(self, tensor_parallel: Launched) -> None:
        found = []
        for rank in range(RANKS):
            call = next(c for c in distributed(tensor_parallel.rank("one", rank)) if c.op.endswith("::all_reduce"))
            assert call.inputs[0][1:] == ("sum", {"group": "0", "backend": "gloo", "ranks": [0, 1]})
            found.append(call)
        parts = [call.inputs[0][0].tensor() for call in found]
        for call in found:
            assert torch.equal(call.outputs.tensor(), parts[0] + parts[1])


def test_pipeline_stages(tmp_path_factory: pytest.TempPathFactory) -> None:
    launched = launch("pipeline", tmp_path_factory.mktemp("pipeline"))
    assert_unchanged(launched, "bare", "dump")
    for step in range(STEPS):
        first, second = (launched.rank("dump", rank, step) for rank in range(RANKS))
        sent = [c for c in distributed(first) if c.op == "c10d::send"]
        received = [c for c in distributed(second) if c.op == "c10d::recv_"]
        assert len(sent) == len(received) >= 2
        assert step == 0 or len(sent) == 2, "one per microbatch; in the first step the shapes too"
        for one, other in zip(sent, received, strict=True):
            assert one.inputs[0][2] == 1 and other.inputs[0][2] == 0, "the peers"

            assert raw(values(one.inputs)[0].tensor()) == raw(second.tensor(f"{other.name}.mutated.tensors.0"))


def test_a_rank_that_does_not_record_is_not_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    launched = launch("one_sided", tmp_path_factory.mktemp("one_sided"))
    assert_unchanged(launched, "bare", "dump")
    assert [path.name for path in sorted((launched.folder / "dump" / "step0").iterdir())] == ["rank0"]


def test_a_communication_hook_is_unchanged_and_its_callback_is_seen_or_said_to_be_unseen(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    launched = launch("compressed", tmp_path_factory.mktemp("compressed"))
    assert_unchanged(launched, "bare", "dump")
    assert_gradients(launched, "dump", "bare", prefix="module.")
    for rank in range(RANKS):
        for step in range(STEPS):
            dump = launched.rank("dump", rank, step)
            # The callback runs where the reduction ends: at once in the program's thread, or in one of gloo's.
            copies = [c for c in calls(dump, op="aten::copy_") if c.inputs[0][1].dtype == torch.float16]
            assert copies or "unseen" in [note.code for note in dump.notes]


def test_equal_runs_agree_whose_hook_keeps_memory_that_callbacks_write(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    launched = launch("power_sgd", tmp_path_factory.mktemp("power_sgd"))
    assert_unchanged(launched, "bare", "one", "two")
    assert any(call.op == "aten::bmm.out" for call in launched.rank("one").calls)
    found = compare(launched.folder / "one", launched.folder / "two")
    assert found.exit_code == 0, found.answer()
