"""With another default device, dumps are read, compared and replayed in host memory as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.analysis.host_default import made_on_the_host
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.dump.shown.short_texts import format_exactly


def recorded(path: Path, scale: float) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    with torch.no_grad():
        model[0].weight.mul_(scale)
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    sparse = torch.eye(3).to_sparse()
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        model(images).square().sum().backward()
        torch.sparse.mm(sparse, torch.randn(5, 3).t()[:, ::2])
        torch.eye(3).to_sparse_csr().values().neg()
        torch.empty(0, 3).abs()
        dump.step()
    return path


@pytest.fixture
def default_is_meta() -> Iterator[None]:
    torch.set_default_device("meta")  # the default is of the thread
    yield
    torch.set_default_device(None)


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    return [recorded(tmp_path / "one", 1.0), recorded(tmp_path / "two", 1.01)]


@pytest.mark.usefixtures("dumps", "default_is_meta")
def test_every_tensor_is_read_into_host_memory(dumps: list[Path]) -> None:
    rank = open_dump(dumps[0]).step(0).rank(0)
    kinds = set()
    for value in (value for value in rank.values if not value.undefined):
        tensor = value.tensor()
        assert tensor.device.type == "cpu", value
        kinds.add((value.layout_name, tensor.numel() == 0, tensor.layout is torch.strided and tensor.is_contiguous()))
    assert len(kinds) >= 5, "or too few kinds were read to show much"


def test_compare_replay_and_nonfinite_find_the_same(dumps: list[Path]) -> None:
    rank = open_dump(dumps[0]).step(0).rank(0)
    expected = str(compare(*dumps)), [op.name for op in replay(rank).ops], str(find_nonfinite(rank))
    torch.set_default_device("meta")
    try:
        found = str(compare(*dumps)), [op.name for op in replay(rank).ops], str(find_nonfinite(rank))
    finally:
        torch.set_default_device(None)
    assert found == expected


@pytest.mark.usefixtures("default_is_meta")
def test_only_what_runs_within_is_made_there() -> None:
    assert made_on_the_host(lambda: torch.ones(2))().device.type == "cpu"
    assert torch.ones(2).device.type == "meta"
    assert format_exactly(1.5, "float32") == "1.5", "what messages and pages show is"
