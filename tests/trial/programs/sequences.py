"""Recurrent models: a tagger on GRUs, a forecaster on LSTMs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class Tagger(nn.Module):
    """Bidirectional GRU over words and their shapes; the loss leaves padding out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.shapes = nn.Embedding(50, 20, padding_idx=0), nn.Embedding(7, 6)
        self.gru = nn.GRU(26, 18, num_layers=2, batch_first=True, bidirectional=True)
        self.norm, self.head = nn.LayerNorm(36), nn.Linear(36, 9)

    def forward(self, words: Tensor, shapes: Tensor, tags: Tensor) -> Tensor:
        x = torch.cat([self.words(words), self.shapes(shapes)], dim=-1)
        states, _ = self.gru(x)
        scores = self.head(F.gelu(self.norm(states)))
        return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=-1, label_smoothing=0.05)


def tagger() -> Training:
    torch.manual_seed(11)
    batches = []
    for _ in range(STEPS):
        words, tags = torch.randint(1, 50, (4, 10)), torch.randint(0, 9, (4, 10))
        words[2, 7:], tags[2, 7:] = 0, -1
        batches.append({"words": words, "shapes": torch.randint(0, 7, (4, 10)), "tags": tags})
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "foreach": True}
    return Training(Tagger(), batches, lambda m, b: m(**b), torch.optim.SGD, settings, clip=2.0)


class Forecaster(nn.Module):
    """LSTM that tells quantiles of the next values; the series is normalised by its own mean and deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 16)
        self.lstm = nn.LSTM(16, 20, num_layers=2, batch_first=True)
        self.head = nn.Linear(20, 3)
        self.register_buffer("quantiles", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, series: Tensor, goal: Tensor) -> Tensor:
        mean, deviation = series.mean(1, keepdim=True), series.std(1, keepdim=True, unbiased=False)
        x = torch.tanh(self.inner((series - mean) / (deviation + 1e-3)))
        states, _ = self.lstm(x)
        off = goal.unsqueeze(-1) - self.head(states)
        return torch.maximum(self.quantiles * off, (self.quantiles - 1) * off).mean()


def forecaster() -> Training:
    torch.manual_seed(12)
    batches = [{"series": torch.randn(6, 12, 5).cumsum(1), "goal": torch.randn(6, 12)} for _ in range(STEPS)]
    settings = {"lr": 0.01, "alpha": 0.95, "momentum": 0.5, "foreach": True}
    return Training(Forecaster(), batches, lambda m, b: m(**b), torch.optim.RMSprop, settings)


PROGRAMS = [Program("gru tagger", "recurrent", tagger), Program("lstm forecaster", "recurrent", forecaster)]
