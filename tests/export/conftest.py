from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu(self.fc1(x)))
        for block in self.blocks:
            x = nn.functional.gelu(block(x)) + x
        return self.head(x)


def record(path: Path, *, steps: int = 2, fault: float = 0.0, data: str = "full", **fields: object) -> Path:
    """Train `Net`; `fault` is added to one weight of the second block."""
    torch.manual_seed(0)
    model = Net()
    if fault:
        with torch.no_grad():
            model.blocks[1].weight[0, 0] += fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path, data=data, **fields), model=model) as dump:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            odd = torch.ones(3, dtype=torch.bfloat16) * 0.3
            torch.complex(odd.float(), odd.float()).conj().mul(2)
            torch.empty(5)
            dump.step()
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "my dump")
