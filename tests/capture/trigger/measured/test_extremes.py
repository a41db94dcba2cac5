"""The extremes of tensors: what they are, and that on a device nobody waits for each of them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.trigger.measured import extremes as extremes_module
from aten_dump.capture.trigger.measured.extremes import Extremes, ExtremesOfValues
from tests.capture.bits import assert_same
from tests.models import Program, build, outcome_of, run_steps, train, train_step

INF, NAN = math.inf, math.nan


@pytest.fixture
def like_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as a device whose results one has to wait for."""
    monkeypatch.setattr(extremes_module, "READ_AT_ONCE", frozenset())


def seen(tensors: list[torch.Tensor]) -> list[Extremes | None]:
    storages: dict[int, StorageState] = {}
    found = ExtremesOfValues(lambda one: one.nan or one.infinite)
    for value, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        state = storages.setdefault(storage._cdata, StorageState(len(storages), storage.nbytes(), 0))
        found.measure(tensor, value, state)
    found.collect()
    return [found.get(value) for value in range(len(tensors))]


@pytest.mark.parametrize("device_like", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_dtype_and_layout(dtype: torch.dtype, device_like: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if device_like:
        monkeypatch.setattr(extremes_module, "READ_AT_ONCE", frozenset())
    nan, inf = torch.ones(3, 4).to(dtype), torch.ones(3, 4).to(dtype)
    nan[1, 2], inf[2, 3] = NAN, -INF
    column = nan[:, 2]
    results = seen([nan, nan.t(), column, nan[:, 1], inf, torch.ones(3).to(dtype), torch.empty(0).to(dtype)])
    assert [one is not None and one.nan for one in results] == [True, True, True, False, False, False, False]
    assert [one is not None and one.infinite for one in results] == [False] * 4 + [True, False, False]


@pytest.mark.usefixtures("like_a_device")
def test_what_takes_a_copy_is_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes_module, "MOST_ELEMENTS", 7)
    x = torch.complex(torch.arange(24.0) - 5, torch.arange(24.0) * 3 - 8)
    tensors = [x.conj(), x.conj().imag, x.conj().imag.view(4, 6)[:, ::2], x.view(4, 6).t().conj()]
    tensors.append(x.real.to(torch.float8_e5m2))
    found = ExtremesOfValues(lambda one: True)
    for value, tensor in enumerate(tensors):
        found.measure(tensor, value, StorageState(value, tensor.untyped_storage().nbytes(), 0))
    found.collect()
    ends = [found.get(value) for value in range(len(tensors))]
    assert ends == [(-61, 18), (-61, 8), (-58, 8), (-61, 18), (-5, 16)]
    with_nan = x.clone()
    with_nan[20] = complex(NAN, 0)
    assert [one is not None and one.nan for one in seen([with_nan.conj()])] == [True]


def test_numbers_of_eight_bits_and_integers() -> None:
    eight = torch.tensor([1.0, NAN]).to(torch.float8_e5m2)
    assert [one is not None for one in seen([eight, torch.tensor([1, 2]), torch.tensor([True])])] == [
        True,
        False,
        False,
    ]


def numbers_read(program: Program, dump: DumpMode | None) -> Counter[str]:
    """Count the ops of a training step that bring a number to Python or look at a tensor, the recorder's own too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train_step(program)
        if dump is not None:
            dump.step()
    return Counter({event.key: event.count for event in profile.key_averages()})


@pytest.mark.usefixtures("like_a_device")
def test_no_number_is_read_for_each_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes_module, "MOST_SECONDS", 1e9)
    program = build("gpt2")
    train_step(program)
    bare = numbers_read(program, None)
    with DumpMode(
        DumpConfig(path=str(tmp_path / "d"), data="structure", trigger="nonfinite"), model=program.model
    ) as dump:
        dumped = numbers_read(program, dump)
    assert dumped["aten::aminmax"] > 300
    assert dumped["aten::item"] == bare["aten::item"]
    assert dumped["aten::to"] - bare["aten::to"] == 1, "one copy to the host for all extremes"
    assert open_dump(tmp_path / "d").steps == []


@pytest.mark.usefixtures("like_a_device")
@pytest.mark.parametrize("pending", [1, 7, 512])
def test_what_is_found_late_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending: int) -> None:
    monkeypatch.setattr(extremes_module, "MOST_SECONDS", 1e9)
    monkeypatch.setattr(extremes_module, "MOST_PENDING", pending)
    program = build("gpt2")
    with torch.no_grad():
        dict(program.model.named_parameters())["transformer.h.1.mlp.c_fc.bias"][3] = 3e38
        program.model.lm_head.weight.mul_(1e5)
    config = DumpConfig(
        path=str(tmp_path / "d"), data="full", trigger="nonfinite", trigger_before=20, trigger_after=30, stacks=False
    )
    with DumpMode(config, model=program.model) as dump:
        program.loss(program.model).backward()
        dump.step()
    rank = open_dump(tmp_path / "d").step(0).rank(0)
    (note,) = [note.message for note in rank.notes if note.code == "trigger"]
    assert note.startswith("aten::pow.Tensor_Scalar made Inf: call ")
    fired = int(note.split("call ")[1].split(",")[0])
    inner = [call for call in rank.calls if call.kind == "aten"]
    assert fired in [call.id for call in inner]
    assert [call.op for call in inner if call.id == fired] == ["aten::pow.Tensor_Scalar"]
    assert len(rank.calls) >= 51
    assert torch.isinf(next(c for c in inner if c.id == fired).outputs.tensor()).any()


@pytest.mark.usefixtures("like_a_device")
def test_the_program_is_the_same(tmp_path: Path) -> None:
    train_step(build("bert"))  # every kernel has run once
    bare = train(build("bert"), 2)
    program = build("bert")
    config = DumpConfig(path=str(tmp_path / "d"), data="structure", trigger="nonfinite")
    with DumpMode(config, model=program.model) as dump:
        losses = run_steps(program, 2, dump.step)
    dumped = outcome_of(program, losses).tensors()
    for name, expected in bare.tensors().items():
        assert_same(expected, dumped[name], name)
