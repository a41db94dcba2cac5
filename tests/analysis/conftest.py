"""Every test here runs on one thread, so that sums are the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import seed_all, single_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    seed_all(0)
    with single_thread():
        yield


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Any]:
    """record(body, model=None, **config): run `body` in a DumpMode and return the RankDump of step 0."""
    from aten_dump import DumpConfig, DumpMode, open_dump

    count = iter(range(1000))

    def run(body: Callable[[], object], model: torch.nn.Module | None = None, **config: Any) -> Any:
        path = tmp_path / f"dump{next(count)}"
        with DumpMode(DumpConfig(path=str(path), **({"data": "tensor"} | config)), model=model) as dump:
            body()
            dump.step()
        return open_dump(str(path)).step(0).rank(0)

    return run
