"""A training run whose loss becomes NaN: a variance that is negative by rounding, below a square root."""

import torch
from torch import nn


class Normalize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) / variance.sqrt()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Normalize(), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        if step == 3:
            x[5] = 0.1  # a sample of silence: its variance is 0, or below by rounding
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
