from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump.dump import RankDump, open_dump
from tests.dump.building import Builder
from tests.dump.scenario import Scenario, linear_step


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "dump")


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    made = linear_step(tmp_path / "dump")
    made.builder.finish()
    return made


@pytest.fixture
def rank(scenario: Scenario) -> RankDump:
    return open_dump(scenario.builder.root).step(0).rank(0)
