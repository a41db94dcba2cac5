"""A program of this trial: a model, its batches and its loss; and one run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.trial.rewritings import running

UNCOUNTED = -100


class Run(running.Run):
    """One run of a layout; it remembers which mistakes it was asked for."""

    def __init__(self, chosen: tuple[str, ...] = (), path: Path | None = None) -> None:
        super().__init__(chosen, path)
        self.asked: dict[str, None] = {}
        self.guilty: set[str] = set()  # modules whose weights a mistake spoils before anything is recorded

    def bug(self, name: str) -> bool:
        self.asked[name] = None
        return super().bug(name)

    def keep(self, *tensors: Tensor | None) -> None:
        if self.path is None:  # a recording holds what the program does, and no more
            super().keep(*tensors)

    def keep_all(self, tensors: object) -> None:
        if self.path is None:
            super().keep_all(tensors)


@dataclass(frozen=True)
class Batch:
    """What a model is called with, and what it is to say; the first dimension of each is rows."""

    inputs: dict[str, Tensor]
    labels: Tensor

    def rows(self, which: slice | Tensor) -> Batch:
        return Batch({name: one[which] for name, one in self.inputs.items()}, self.labels[which])

    def clone(self) -> Batch:
        return Batch({name: one.clone() for name, one in self.inputs.items()}, self.labels.clone())

    @property
    def counted(self) -> Tensor:
        """How many labels count."""
        return (self.labels != UNCOUNTED).sum()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Task:
    """A model and its work. A model has `first(**inputs)` and `second(hidden, **inputs)`, its two halves."""

    model: nn.Module
    batches: list[Batch]
    loss: Callable[[Tensor, Tensor], Tensor]  # sum over what counts, of outputs and labels
    can: frozenset[str]
    equal: list[Batch] = field(default_factory=list)  # batches of which every row has as many labels that count

    def mean(self, batch: Batch) -> Tensor:
        return self.loss(self.model(**batch.inputs), batch.labels) / batch.counted


def sequences(vocabulary: int, lengths: tuple[int, ...] = (8, 5, 7, 3), steps: int = 2) -> list[Batch]:
    """Return batches of tokens padded on the right with 0; each label is the next token."""
    found = []
    for _ in range(steps):
        tokens = torch.randint(1, vocabulary, (len(lengths), max(lengths) + 1))
        inside = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        labels = torch.where(inside, tokens[:, 1:], UNCOUNTED)
        found.append(Batch({"tokens": tokens[:, :-1] * inside, "lengths": torch.tensor(lengths)}, labels))
    return found
