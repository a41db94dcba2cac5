"""Where two ranks part, and which rank holds other contents, is found by comparing ranks of one side."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.evidence.findings import Finding
from aten_dump.analysis.world.groups import Group, right_ranks
from tests.distributed.launching import launch_once

RANK = int(os.environ.get("RANK", "0"))
WHOLE = torch.arange(48, dtype=torch.float64).reshape(6, 8)


def group(*pieces: Tensor) -> Group:
    return Group("w", {}, dict(enumerate(pieces)))


def test_the_rank_that_lacks_its_part_is_wrong() -> None:
    one, two, three = WHOLE.chunk(3)
    assert right_ranks(group(one, two, three), group(WHOLE)) == [0, 1, 2]
    assert right_ranks(group(one, two, two), group(WHOLE)) == [0, 1]
    assert right_ranks(group(one, one), group(WHOLE[:4])) == [0], "the part of another rank is not its own"
    assert right_ranks(group(WHOLE, WHOLE.roll(1, 0)), group(WHOLE)) == [0]
    assert right_ranks(group(WHOLE + 1, WHOLE + 2), group(WHOLE)) == []


def train(path: Path, take: Callable[[Tensor], Tensor], reduce: Callable[[Tensor], None]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = take(torch.randn(4, 6)), take(torch.randn(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        ((model(x) - y) ** 2).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            reduce(parameter.grad)
        optimizer.step()


def half(x: Tensor) -> Tensor:
    return x.chunk(2)[RANK]


def mean(gradient: Tensor) -> None:
    dist.all_reduce(gradient)
    gradient.div_(2)


def sum_on_rank_1(gradient: Tensor) -> None:
    dist.all_reduce(gradient)
    if RANK == 0:
        gradient.div_(2)


def own_on_rank_1(gradient: Tensor) -> None:
    own = gradient.clone()
    mean(gradient)
    if RANK == 1:
        gradient.copy_(own)


def record(folder: Path) -> None:
    train(folder / "right", half, mean)
    train(folder / "sum", half, sum_on_rank_1)
    train(folder / "own", half, own_on_rank_1)
    train(folder / "data", lambda x: x.chunk(2)[0], mean)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = launch_once("ranks", tmp_path_factory, "tests.analysis.world.test_peers").folder
    if not (folder / "single").exists():
        train(folder / "single", lambda x: x, lambda gradient: None)
    return folder


def cause(dumps: Path, target: str, baseline: str) -> Finding:
    found = compare(dumps / target, dumps / baseline, together=True)
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    assert found.cause.row.place.rank == 1 or baseline != "single", found.answer()
    return found.cause


def test_honest_ranks_agree_with_one_process(dumps: Path) -> None:
    found = compare(dumps / "right", dumps / "single")
    assert found.exit_code == 0, found.answer()


def test_a_rank_that_does_not_divide_is_named_where_its_peer_does(dumps: Path) -> None:
    found = cause(dumps, "sum", "single")
    assert (found.kind, found.row.place.op) == ("gradient", "c10d::allreduce_")
    assert "rank 0 goes on with aten::div_.Tensor of what it makes, this rank does not" in found.text


def test_a_rank_that_keeps_its_own_gradient_is_named_where_its_peers_is_reduced(dumps: Path) -> None:
    found = cause(dumps, "own", "single")
    assert found.kind == "gradient" and "which nothing has reduced" in found.text


def test_the_data_of_another_rank_is_named_at_its_first_reader(dumps: Path) -> None:
    found = cause(dumps, "data", "single")
    assert (found.kind, found.row.place.op) == ("source", "aten::addmm")
    assert found.text.endswith("it reads other contents, which no call of step 0 made; rank 0 has the same")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/store", rank=RANK, world_size=2)
    record(Path(sys.argv[2]))
    torch.save({}, Path(sys.argv[2]) / f"rank{RANK}.pt")
    dist.destroy_process_group()
