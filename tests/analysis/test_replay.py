"""Replay: every recorded op run again from its own inputs, bit by bit and against float64."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, MissingDataError, ReplayError, open_dump, replay
from aten_dump.analysis.replay import replay_all, replay_call
from aten_dump.analysis.replay_result import Replay
from aten_dump.analysis.rerun.repro_script import repro_script
from aten_dump.store import records as r
from tests.analysis.wrong_ops import Wrong, replaced, zeroed
from tests.models import _token_loss, build, train_step
from tests.sampling import diagonal
from tests.torture.changing import records_of, signed

A = torch.ops.aten
EMPTY = "it returns undefined memory: there is nothing to compare"
PROFILER = "profiler ops compute nothing that is recorded"
STEPS = [
    pytest.param("gpt2", "sgd_momentum", marks=pytest.mark.slow),
    pytest.param("llama", "adamw_foreach", marks=pytest.mark.slow),
    ("bert", "adamw_foreach"),
    ("resnet", "adamw_fused"),
    ("resnet_channels_last", "sgd_momentum"),
]


def step_of(record: Callable[..., Any], model: str, optimizer: str, dtype: torch.dtype = torch.float32) -> Any:
    program = build(model, optimizer)
    program.model.to(dtype)
    train_step(program)  # the optimizer has its state, every kernel has run once
    return record(lambda: train_step(program), program.model)


@pytest.mark.parametrize(("model", "optimizer"), STEPS)
def test_a_whole_step_is_bit_equal(record: Callable[..., Any], model: str, optimizer: str) -> None:
    rank = step_of(record, model, optimizer)
    found = replay(rank, dtype=None)
    ops = [call for call in rank.calls if call.kind == "aten"]
    print(f"{model}: {len(found.ops)} of {len(ops)} ops bit-equal, not replayed: {dict(found.reasons)}")
    assert [op.name for op in found.unequal] == []
    assert set(found.reasons) <= {EMPTY, PROFILER}
    assert len(found.ops) + len(found.skipped) == len(ops)
    assert {op.phase for op in found.ops} == {"forward", "backward", "optimizer"}
    assert any(op.drew for op in found.ops) == any(call.random_state for call in ops) != 0
    judged = replay(rank)
    assert judged.suspects == ()
    assert {op.op for op in judged.ops if op.reference != "float64"} <= {
        "aten::randint.low",
        "aten::bernoulli_.float",
        "aten::randn",
    }, "only ops that drew random numbers have no reference"


BUGS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "scale in the forward": (A.addmm.default, 3, {"result": lambda r: r * 1.02}),
    "scale in the backward": (A.mm.default, 7, {"result": lambda r: r * 1.02}),
    "eps of a layer norm": (A.native_layer_norm.default, 2, {"args": replaced(4, 1e-2)}),
    "one zeroed element of a product": (A.bmm.default, 2, {"result": zeroed}),
    "one zeroed element of tanh": (A.tanh.default, 0, {"result": zeroed}),
    "two rows swapped": (A.addmm.default, 5, {"result": lambda r: r[[1, 0, *range(2, len(r))]]}),
    "NaN in one element": (A._softmax.default, 1, {"result": lambda r: zeroed(r) / zeroed(torch.ones_like(r))}),
    "gradient only": (A.tanh_backward.default, 1, {"result": lambda r: -r}),
}


@pytest.mark.parametrize(("bug", "dtype"), diagonal([*BUGS], [torch.float32, torch.bfloat16]))
def test_the_guilty_op_comes_first(record: Callable[..., Any], bug: str, dtype: torch.dtype) -> None:
    op, n, how = BUGS[bug]
    program = build("gpt2")
    program.model.to(dtype)

    def backward() -> None:
        loss = program.loss(program.model)
        loss.backward()

    with Wrong(op, n, **how):
        rank = record(backward, program.model)
    found: Replay = replay(rank)
    assert found.guilty is not None
    api = op.name().removeprefix("aten::").partition(".")[0]
    assert found.guilty.name.startswith(f"Aten.{api}.{n}.")
    assert [suspect.name for suspect in found.suspects] == [found.guilty.name], "what follows is only wrong input"
    body = _token_loss.__code__  # a backward op is told by the line of its forward call
    assert found.guilty.source.endswith(f", from {body.co_filename}:{body.co_firstlineno + 2} in {body.co_name}")


def test_a_wrong_kernel_of_a_custom_op(record: Callable[..., Any]) -> None:
    """The kernel that was wrong is mended before the replay, as on the other device."""
    eps = [1e-2]

    @torch.library.custom_op("aten_dump_test::rms_norm", mutates_args=())
    def rms_norm(x: torch.Tensor, eps_: float) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps[0])

    rank = record(lambda: rms_norm(torch.randn(8, 64), 1e-5) * 3)
    eps[0] = 1e-5
    found = replay(rank, allow_ops=["aten_dump_test::*"])
    assert found.guilty is not None
    assert found.guilty.op == "aten_dump_test::rms_norm"
    assert len(found.suspects) == 1


def test_strides_aliases_and_in_place_ops(record: Callable[..., Any]) -> None:
    def body() -> None:
        x = torch.arange(24.0).view(4, 6)
        x.add_(x[:1] + 1).addcmul_(x, x)  # it reads what it writes
        x[0].add_(x[1])
        y = torch.randn(6, 4).t()
        torch.add(y, x[:, :6:1][:, :6], out=torch.empty(4, 6))
        torch.cat([x[:, ::2], x[:, 1::2]], dim=1)
        torch._foreach_mul_([x[0], x], 2.0)  # doubles the first row twice: they share memory
        big = torch.randn(1000)
        big[::100].mul_(3)  # recorded as elements, not as memory
        torch.ones(3, 1).expand(3, 5) + torch.randn(3, 5).T.contiguous().T
        x.as_strided((2, 2), (6, 1), 3).sum()
        z = torch.randn(4, 4, dtype=torch.complex64)
        z.conj() @ z
        torch.view_as_real(z).mul_(2)
        (z.imag * 2).sum()

    rank = record(body)
    found = replay(rank, dtype=None)
    assert [(op.name, op.worst) for op in found.unequal] == []
    assert set(found.reasons) == {EMPTY}
    judged = replay(rank)
    assert [op.name for op in judged.suspects] == []
    writing = replay_call(next(call for call in rank.calls if call.op == "aten::add_.Tensor"), dtype=None)
    assert list(writing.mutated) == ["self"]
    assert torch.equal(writing.mutated["self"], writing.outputs)


def test_random_ops_draw_what_they_drew(record: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(5)

    def body() -> None:
        torch.randn(3)
        torch.rand(4, generator=generator)
        torch.empty(5).uniform_(-1, 1, generator=generator)
        F.dropout(torch.ones(64), 0.5)
        torch.randperm(10)
        torch.multinomial(torch.ones(20), 5)
        q = torch.randn(1, 2, 4, 8)
        F.scaled_dot_product_attention(q, q, q)

    rank = record(body)
    before = torch.get_rng_state()
    found = replay(rank, dtype=None)
    assert torch.equal(before, torch.get_rng_state()), "replay does not move the generator"
    assert found.unequal == ()
    assert sum(op.drew for op in found.ops) == 7
    judged = {op.op: op for op in replay(rank).ops}
    assert judged["aten::_scaled_dot_product_flash_attention_for_cpu"].reference == "float64", "dropout 0 draws nothing"
    assert judged["aten::randperm"].reference == "recorded dtype"


def test_what_cannot_be_replayed_is_listed(record: Callable[..., Any]) -> None:
    def body() -> None:
        torch.empty(3) + 1  # reads undefined memory
        torch.empty(3).fill_(2)  # does not
        torch.empty(3)
        with pytest.raises(RuntimeError):
            torch.ones(2) @ torch.ones(3)

    found = replay(record(body), dtype=None)
    reasons = {(call.op, call.reason.partition(":")[0]) for call in found.skipped}
    assert (
        "aten::add.Tensor",
        "it reads memory that was undefined (torch.empty), whose contents are not recorded",
    ) in reasons
    assert ("aten::empty.memory_format", "it returns undefined memory") in reasons
    assert ("aten::dot", "it raised in the program") in reasons
    assert [op.op for op in found.ops if op.op == "aten::fill_.Scalar"] == ["aten::fill_.Scalar"]


def test_missing_bytes_are_a_reason_or_an_error(record: Callable[..., Any]) -> None:
    with pytest.raises(MissingDataError, match='replay needs data="tensor"'):
        replay(record(lambda: torch.ones(3) * 2, data="statistic"))
    with pytest.raises(MissingDataError, match='record with level="aten" or "mix"'):
        replay(record(lambda: torch.ones(3) * 2, level="api"))
    found = replay(record(lambda: torch.ones(300) * 2, sample=10))
    assert all("DumpConfig.sample" in call.reason for call in found.skipped)
    assert found.skipped
    spent = replay(record(lambda: torch.randn(300) * 2, max_bytes=100))
    assert [call.op for call in spent.skipped] == ["aten::randn", "aten::mul.Tensor"]
    assert "the state of the generator was not recorded" in spent.skipped[0].reason
    assert "max_bytes" in spent.skipped[1].reason
    with pytest.raises(ReplayError, match=r"allowed: torch.float64"):
        replay(record(lambda: torch.ones(3)), dtype=torch.float32)


def test_bytes_that_were_announced_and_never_written_are_a_reason(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.ones(3) + torch.ones(3))
    index = rank.directory / "index.msgpack"
    index.write_bytes(signed([row for row in records_of(index) if row[0] != r.BLOB]))
    cut = open_dump(rank.directory.parent.parent).rank(0, 0)
    assert "the index does not describe" in str(replay_call(cut["Aten.add.0.forward"]).reason)
    with pytest.raises(MissingDataError, match="the index does not describe"):
        repro_script(cut["Aten.add.0.forward"])


def test_an_overflow_of_the_dtype_is_not_an_error(record: Callable[..., Any]) -> None:
    def body() -> None:
        torch.full((8,), 300.0, dtype=torch.float16) * 300
        torch.tensor([1e30, 1.0]) * 1e30
        torch.zeros(4) / torch.zeros(4)

    assert replay(record(body)).suspects == ()


def test_calls_results_and_executors(tmp_path: Path) -> None:
    model = nn.Linear(8, 4)
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="tensor"), model=model) as dump:
        for _ in range(2):
            model(torch.randn(3, 8)).sum().backward()
            dump.step()
    opened = open_dump(tmp_path / "d")
    alone = replay_all(opened)
    assert [(found.step, len(found.ops)) for found in alone] == [(0, len(alone[0].ops)), (1, len(alone[1].ops))]
    assert pickle.loads(pickle.dumps(alone)) == alone
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert replay_all(tmp_path / "d", threads) == alone
        assert replay_all(tmp_path / "d", processes) == alone
    call = opened.step(0).rank(0)["Aten.addmm.0.forward"]
    wide = replay_call(call)
    assert wide.outputs.dtype == torch.float64
    assert wide.reason is None
    assert torch.equal(replay_call(call, dtype=None).outputs, call.outputs.tensor())
    api = opened.step(0).rank(0)["Functional.linear.0.forward"]
    assert "replay the aten ops inside it" in str(replay_call(api).reason)


def test_a_tensor_that_is_set_to_another_is_replayed(record: Callable[..., Any]) -> None:
    found = replay(record(lambda: torch.zeros(2).set_(torch.randn(3, 4))))
    assert "aten::set_.source_Tensor" in {op.op for op in found.ops} and found.suspects == ()
    assert set(found.reasons) == set()
