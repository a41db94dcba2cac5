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


class Gathered(nn.Module):
    """A layer whose bias lies on the ranks in shards of one size: all of it on rank 0, padding on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 6))
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        if not dist.is_initialized():
            return x @ self.weight.t() + self.bias
        shard = self.bias.detach().clone() if RANK == 0 else PADDING.clone()
        whole = torch.empty(2)
        dist.all_gather_into_tensor(whole, shard)
        return x @ self.weight.t() + whole[:1] + (self.bias - self.bias.detach())


PADDING = torch.zeros(1)


def train_gathered(path: Path, take: Callable[[Tensor], Tensor], reduce: Callable[[Tensor], None]) -> None:
    torch.manual_seed(0)
    model, x = Gathered(), take(torch.randn(4, 6))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        model(x).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            reduce(parameter.grad)


def divide_features(path: Path, orders: tuple[Tensor, Tensor]) -> None:
    """Train with half of the features on each rank; `orders` are those of the rows of the batch, by rank."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 6)[orders[RANK]], torch.randn(5, 3)[orders[RANK]]
    first, second = torch.randn(2, 4, 6)[RANK].requires_grad_(), torch.randn(2, 3, 4)[RANK].requires_grad_()
    with DumpMode(DumpConfig(path=str(path), data="tensor")):
        own = torch.tanh(x @ first.t()) @ second.t()
        whole = own.detach().clone()
        dist.all_reduce(whole)
        ((whole + own - own.detach()) - y).square().mean().backward()


def train_stages(path: Path) -> None:
    """Train with momentum for two steps; each of two ranks has half of the layers, and takes half of the batch at a time."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))
    is_alone = not dist.is_initialized()
    model = layers if is_alone else layers[2 * RANK : 2 * RANK + 2]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for _ in range(2):
            x, y = torch.randn(4, 6), torch.randn(4, 6)
            if is_alone:
                nn.functional.mse_loss(model(x), y).backward()
            for part, wanted in () if is_alone else zip(x.chunk(2), y.chunk(2), strict=True):
                other = torch.empty(2, 6)
                if RANK == 0:
                    h = model(part)
                    dist.send(h.detach(), 1)
                    dist.recv(other, 1)
                    h.backward(other)
                else:
                    dist.recv(other, 0)
                    given = other.requires_grad_()
                    (nn.functional.mse_loss(model(given), wanted) / 2).backward()
                    assert given.grad is not None
                    dist.send(given.grad, 0)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


ROWS = torch.arange(5)
TURNED = torch.tensor([3, 0, 4, 1, 2])


def record(folder: Path) -> None:
    train_stages(folder / "stages")
    train_gathered(folder / "gathered", half, mean)
    train_gathered(folder / "gathered-own", half, own_on_rank_1)
    divide_features(folder / "features", (ROWS, ROWS))
    divide_features(folder / "features-turned", (TURNED, TURNED))
    divide_features(folder / "features-apart", (ROWS, TURNED))
    train(folder / "right", half, mean)
    train(folder / "sum", half, sum_on_rank_1)
    train(folder / "own", half, own_on_rank_1)
    train(folder / "data", lambda x: x.chunk(2)[0], mean)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of both ranks, and of one process: this worker's own."""
    launched = launch_once("ranks", tmp_path_factory, "tests.analysis.world.test_peers").folder
    folder = tmp_path_factory.mktemp("dumps")
    for path in launched.iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
    train_gathered(folder / "gathered-single", lambda x: x, lambda gradient: None)
    train_stages(folder / "stages-single")
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


def test_momentum_of_stages_is_that_of_the_same_parameters_in_one_process(dumps: Path) -> None:
    for target, baseline in (("stages", "stages-single"), ("stages-single", "stages")):
        found = compare(dumps / target, dumps / baseline)
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


def test_padding_of_a_shard_is_no_cause(dumps: Path) -> None:
    honest = compare(dumps / "gathered", dumps / "gathered-single", together=True)
    assert honest.exit_code == 0, honest.answer()
    found = compare(dumps / "gathered-own", dumps / "gathered-single", together=True)
    assert found.cause is not None and "which nothing has reduced" in found.cause.text, found.answer()


def test_ranks_that_compute_with_one_anothers_rows_have_them_in_one_order(dumps: Path) -> None:
    turned = compare(dumps / "features-turned", dumps / "features")
    assert turned.exit_code == 0 and "is in another order" in turned.answer(), turned.answer()
    found = compare(dumps / "features-apart", dumps / "features")
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    assert found.answer().startswith("The dumps differ. In step 0 rank 1")
    assert found.cause.kind == "source" and "row 1 is the baseline's row 0" in found.cause.text
    assert "that of the ranks that it computes with is not" in found.cause.text


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/store", rank=RANK, world_size=2)
    record(Path(sys.argv[2]))
    torch.save({}, Path(sys.argv[2]) / f"rank{RANK}.pt")
    dist.destroy_process_group()
