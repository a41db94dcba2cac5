"""Runs a program bare and under DumpMode and holds the results together, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import raw
from tests.devices import drawn, random_states
from tests.models import seed_all


def outcome(program: Callable[[], Any]) -> list[Any]:
    """What a program left: bits of its tensors, other results as text, its error, the state of the generator."""
    seed_all(0)
    try:
        left = tree_leaves(program())
    except Exception as error:
        left = [f"raised {type(error).__name__}: {error}"]
    with torch.no_grad():
        return [
            (str(t.dtype), tuple(t.shape), raw(t)) if isinstance(t, torch.Tensor) else repr(t)
            for t in [*left, *random_states()]
        ]


def batch() -> torch.Tensor:
    """The same five rows of four numbers each time."""
    return drawn(5, 4, seed=1)


def trained(model: Any, run: Any) -> Callable[[], Any]:
    """Return a program that runs `run` (the model, or what was made of it) forward and backward."""

    def program() -> Any:
        model.zero_grad()
        y = run(batch())
        y.sum().backward()
        return y.detach(), [p.grad for p in model.parameters()]

    return program


def recorded(path: Path, program: Callable[[], Any], warm: bool = True, **config: Any) -> Any:
    """Assert that a program does the same bare, under a DumpMode and bare again; return its RankDump.

    Args:
        path: a folder of the test.
        program: makes its own models and inputs, or leaves those it uses as they were.
        warm: run it once before.
    """
    if warm:
        outcome(program)
    bare = outcome(program)
    assert not str(bare[0]).startswith("'raised"), bare[0]
    with DumpMode(DumpConfig(path=str(path / "dump"), **{"data": "full", **config})):
        dumped = outcome(program)
    assert dumped == bare
    assert outcome(program) == bare, "the dump left something behind"
    return open_dump(str(path / "dump")).step(0).rank(0)


def note(rank: Any, code: str) -> Any:
    """The note of a code; there must be one."""
    found = [n for n in rank.notes if n.code == code]
    assert len(found) == 1, f"{code}: {rank.notes}"
    return found[0]


def ops(calls: Any) -> list[str]:
    return [call.op for call in calls]
