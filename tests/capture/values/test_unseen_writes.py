"""Writes that no op tells of, and what `dedup="content"` makes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same, calls
from tests.models import build, outcome_of, run_steps, train

Record = Callable[..., Any]


def exps(rank: Any) -> list[Any]:
    return [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]


def unseen(rank: Any) -> list[int]:
    return [note.count for note in rank.notes if note.code == "unseen_writes"]


def numpy_write(x: torch.Tensor) -> None:
    x.numpy()[...] = 7


def raw_write(x: torch.Tensor) -> None:
    ctypes.memset(x.data_ptr(), 0, x.nbytes)


@pytest.mark.parametrize("data", ["tensor", "full", "hash"])
@pytest.mark.parametrize("write", [numpy_write, raw_write])
def test_content_finds_a_write_that_dispatch_does_not_see(record: Record, write: Any, data: str) -> None:
    x = torch.arange(4.0) + 1
    kept: list[torch.Tensor] = []

    def body() -> None:
        x.exp()
        kept.append(x.clone())
        write(x)
        x.exp()
        x.exp()

    rank = record(body, data=data, dedup="content")
    before, after, again = exps(rank)
    assert before.id != after.id == again.id
    assert (before.version, after.version) == (0, 1)
    assert after.producer is None
    if data != "hash":
        assert_same(kept[0], before.tensor())
        assert_same(x, after.tensor())
    if data != "tensor":
        assert before.hash != after.hash
    assert unseen(rank) == [1]


def test_version_does_not_look(record: Record) -> None:
    """The default trusts the ops: what docs/limitations.md says."""
    x = torch.arange(4.0)
    rank = record(lambda: (x.exp(), numpy_write(x), x.exp()), data="tensor")
    before, after = exps(rank)
    assert before.id == after.id
    assert after.tensor().tolist() == [0, 1, 2, 3]
    assert unseen(rank) == []


def test_a_write_through_numpy_is_found_through_another_view(record: Record) -> None:
    """What is known of the storage's bytes is not taken for the bytes of a view that was never seen."""
    x = torch.arange(12.0).reshape(3, 4)

    def body() -> None:
        x.exp()
        x.numpy()[1, 2] = 100
        x[1].exp()
        x.t().exp()

    whole, row, turned = exps(record(body, data="full", dedup="content"))
    assert whole.tensor()[1, 2] == 6
    assert row.tensor().tolist() == [4, 5, 100, 7]
    assert_same(x.t(), turned.tensor(), stride=True)
    assert row.stats.max == turned.stats.max == 100 and whole.stats.max == 11


def test_a_slice_of_a_huge_buffer_is_watched_alone(record: Record, tmp_path: Path) -> None:
    huge = torch.zeros(1 << 22)
    part, array = huge[100:110], huge.numpy()

    def body() -> None:
        part.exp()
        array[200] = 1  # elsewhere
        part.exp()
        array[105] = 1
        part.exp()

    first, second, third = exps(record(body, data="tensor", dedup="content"))
    assert first.id == second.id != third.id
    assert third.tensor().tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert sum(file.stat().st_size for file in tmp_path.rglob("shard-*")) < 200_000


def test_memory_from_empty_is_defined_by_an_unseen_write(record: Record) -> None:
    def body() -> None:
        x = torch.empty(6)
        x.numpy()[...] = 3
        x.exp()

    (value,) = exps(record(body, data="full", dedup="content"))
    assert not value.undefined and value.tensor().tolist() == [3] * 6
    (value,) = exps(record(body, data="full"))
    assert value.undefined  # nothing that the recorder saw wrote it


def test_a_module_that_writes_through_numpy(record: Record) -> None:
    class Clip(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.numpy()[x.numpy() < 0] = 0
            return x

    x = torch.tensor([-1.0, 2.0])
    rank = record(lambda: Clip()(x), level="module", data="tensor", dedup="content")
    call = calls(rank, kind="module")[0]
    assert call.inputs[0][0].tensor().tolist() == [-1, 2]
    assert call.outputs.tensor().tolist() == [0, 2]
    assert call.mutated_values["0"].tensor().tolist() == [0, 2]


def test_every_kind_of_tensor_can_be_hashed(record: Record) -> None:
    kinds = [
        torch.empty(0),
        torch.tensor(1.0).expand(5, 5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.arange(6.0)[::2],
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.ones(2, dtype=torch.bfloat16),
    ]
    rank = record(lambda: [t.clone() for t in kinds], data="tensor", dedup="content")
    assert unseen(rank) == []
    for kind, call in zip(kinds, calls(rank, kind="aten", op="aten::clone"), strict=True):
        if kind.layout is torch.strided and not kind.is_meta:
            assert_same(kind, call.inputs[0][0].tensor())


@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_content_and_version_record_the_same_of_an_honest_program(tmp_path: Path, model: str) -> None:
    """No op of a training step writes unseen; and hashing changes no bit of the program."""
    expected = train(build(model, "adamw_foreach"), 2).tensors()
    recorded = {}
    for dedup in ("version", "content"):
        program = build(model, "adamw_foreach")
        config = DumpConfig(path=str(tmp_path / dedup), data="hash", dedup=dedup, level="aten")
        with DumpMode(config, model=program.model) as dump:
            losses = run_steps(program, 2, dump.step)
        found = outcome_of(program, losses).tensors()
        for name, tensor in expected.items():
            assert_same(tensor, found[name], name)
        rank = open_dump(str(tmp_path / dedup)).step(1).rank(0)
        recorded[dedup] = [(v.storage, v.version, v.shape, v.hash) for v in rank.values]
        assert unseen(rank) == []
    assert recorded["version"] == recorded["content"]
