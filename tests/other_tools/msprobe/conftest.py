from __future__ import annotations

from collections.abc import Iterator

import pytest

from aten_dump.compat import PrecisionDebugger


@pytest.fixture(autouse=True)
def each_test_its_own_debugger() -> Iterator[None]:
    """A process has one; what ends it here is what ends it when the process does."""
    yield
    debugger, PrecisionDebugger._instance = PrecisionDebugger._instance, None
    if debugger is not None:
        debugger._close()
