"""Fixtures of the tests that record: one step of a program, in a process that must be left as it was found.

A folder's conftest.py imports those that its tests use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import seed_all, single_thread


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One seed, and one thread of torch's, so that sums are the same each time."""
    seed_all(0)
    with single_thread():
        yield


@pytest.fixture
def no_mode_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration from outside, and no mode of torch's on its stacks afterwards."""
    monkeypatch.delenv("ATEN_DUMP_CONFIG", raising=False)
    before = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    yield
    after = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    assert after == before, "a test left a mode on the stack"


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Any]:
    """record(body, model=None, **config): run `body` in a DumpMode and return the RankDump of step 0."""
    from aten_dump import DumpConfig, DumpMode, open_dump

    count = iter(range(1000))

    def run(body: Callable[[], object], model: torch.nn.Module | None = None, **config: Any) -> Any:
        path = tmp_path / f"dump{next(count)}"
        with DumpMode(DumpConfig(path=str(path), **config), model=model) as dump:
            body()
            dump.step()
        return open_dump(str(path)).step(0).rank(0)

    return run
