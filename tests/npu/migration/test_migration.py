"""From the CPU to an NPU: honest runs agree, and each planted fault is named by call, source line and module.

Run with `make test-npu`; docs/guide/npu-migration.md walks through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from aten_dump import compare
from tests.checkout import ROOT
from tests.npu.migration.faults import FAULTS, planted
from tests.npu.migration.models import PROGRAMS, trained


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a Llama trained on the CPU, with these steps recorded."""
    made: dict[str, Path] = {}

    def of(steps: str) -> Path:
        if steps not in made:
            made[steps] = trained("llama", "cpu", tmp_path_factory.mktemp("cpu") / "dump", steps=steps)
        return made[steps]

    return of


SAMPLED = ("llama", "swiglu swaps halves", "stale saved statistics")  # the others run in `make test-npu-all`


def sampled(names: Iterable[str]) -> list[Any]:
    return [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", sampled(PROGRAMS))
def test_honest_runs_agree(tmp_path: Path, name: str) -> None:
    """GPT-2, a Llama with fused kernels and a ResNet, three steps each, with the optimizer's kernel fused too."""
    found = compare(trained(name, "npu", tmp_path / "npu"), trained(name, "cpu", tmp_path / "cpu"))
    assert found.verdict == "within", found.answer()
    assert len(found.ranks) == 3 and not any(evidence.findings for evidence in found.ranks)


@pytest.mark.parametrize("name", sampled(FAULTS))
def test_each_fault_is_named(tmp_path: Path, baseline: Callable[[str], Path], name: str) -> None:
    fault = FAULTS[name]
    with planted(fault):
        target = trained(fault.program, "npu", tmp_path / "npu", steps=fault.steps)
    found = compare(target, baseline(fault.steps))
    assert found.verdict == "different" and found.first is not None
    place = found.first[1].row.place
    assert (place.op, place.phase, place.module) == (fault.op, fault.phase, fault.module), found.answer()
    path, _, rest = place.source.partition(", called from")[0].rpartition(":")
    line = (
        (ROOT / path if not Path(path).is_absolute() else Path(path)).read_text().splitlines()[int(rest.split()[0]) - 1]
    )
    assert fault.line in line, place.source
