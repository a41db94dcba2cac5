"""The list of tests that cannot run on a device names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cpu_only

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", [*cpu_only._ANY, *cpu_only._NPU])
def test_each_entry_is_a_test(name: str) -> None:
    path, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text() if test else (ROOT / path).exists()
