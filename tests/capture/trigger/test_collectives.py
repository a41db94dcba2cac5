"""What a collective brings from other ranks is not said to be made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.store.op_names import COLLECTIVE_NAMESPACES


@pytest.fixture(params=sorted(COLLECTIVE_NAMESPACES))
def gather(request: pytest.FixtureRequest) -> Iterator[torch._ops.OpOverload]:
    """An op of each collective namespace that returns NaN, as if another rank had sent it."""
    namespace, name = request.param, "aten_dump_test_gather"
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: torch.full_like(x, float("nan")), "CompositeExplicitAutograd")
    yield getattr(getattr(torch.ops, namespace), name).default
    library._destroy()


def run(gather: torch._ops.OpOverload, config: DumpConfig) -> None:
    with DumpMode(config):
        gathered = gather(torch.ones(3) * 2)
        torch.ops._c10d_functional.wait_tensor(gathered)


def test_a_trigger_says_that_nan_was_brought(gather: torch._ops.OpOverload, tmp_path: Path) -> None:
    run(gather, DumpConfig(path=str(tmp_path / "dump"), trigger="nonfinite"))
    notes = open_dump(tmp_path / "dump").step(0).rank(0).notes
    reasons = [note.message for note in notes if note.code == "trigger"]
    assert reasons[0].startswith(f"{gather.name()} brought NaN")


def test_the_search_explains_it_by_other_ranks(gather: torch._ops.OpOverload, tmp_path: Path) -> None:
    run(gather, DumpConfig(path=str(tmp_path / "dump"), data="full"))
    found = find_nonfinite(open_dump(tmp_path / "dump").step(0).rank(0))
    assert found.producers[0].op == gather.name()  # and, where it returns early, the wait for it
    assert {event.why for event in found.producers} == {
        "a collective: another rank sent it, see that rank's dump, or the sum overflowed"
    }
