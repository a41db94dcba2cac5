"""Every test here runs on one thread and must leave the process as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import seed_all, single_thread


@pytest.fixture(autouse=True)
def _quiet_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ATEN_DUMP_CONFIG", raising=False)
    seed_all(0)
    with single_thread():
        yield
    dispatch = torch._C._len_torch_dispatch_stack()
    function = torch._C._len_torch_function_stack()
    assert (dispatch, function) == (0, 0), "a test left a mode on the stack"


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
