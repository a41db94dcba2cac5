"""The scale of a gradient scaler is a note, not the difference: what else differs is found beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.distance.value_distance import Factor
from aten_dump.analysis.facts.loss_scales import ScaleRatio
from tests.sampling import diagonal


def record(
    path: Path,
    *,
    scale: float | None = None,
    half: bool = False,
    optimizer: str = "SGD",
    data: Any = "tensor",
    **bug: Any,
) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    stepped = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    generator = torch.Generator().manual_seed(1)
    with DumpMode(DumpConfig(path=path, data=data), model=model) as dump:
        for _ in range(2):
            x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
            stepped.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=half):
                out = model(x)
            loss = F.cross_entropy(out.float() * bug.get("temperature", 1.0), y)
            scaler.scale(loss).backward()
            if bug.get("clip_scaled"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.unscale_(stepped)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(stepped)
            scaler.update()
            dump.step()
    return path


HONEST: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two scales": ({"scale": 65536.0}, {"scale": 1024.0}),
    "a scaler and none": ({"scale": 1000.0}, {}),
    "two scales in float16": ({"scale": 2048.0, "half": True}, {"scale": 1024.0, "half": True}),
    "float16 with a scaler and float32": ({"scale": 1024.0, "half": True}, {}),
    "float16 with a scaler and float32, AdamW": (
        {"scale": 1024.0, "half": True, "optimizer": "AdamW"},
        {"optimizer": "AdamW"},
    ),
}


@pytest.mark.parametrize(("case", "data"), diagonal(list(HONEST), ["tensor", "statistic"]))
def test_runs_of_other_scales_agree_with_a_note(tmp_path: Path, case: str, data: str) -> None:
    one, other = HONEST[case]
    paths = record(tmp_path / "t", data=data, **one), record(tmp_path / "b", data=data, **other)
    for pair in (paths, paths[::-1]):
        found = compare(*pair)
        assert found.verdict == "within", found.answer()
        assert any("the loss is scaled by " in note for note in found.all_notes)


@pytest.mark.parametrize(
    ("bug", "op", "half"),
    diagonal([({"temperature": 1.5}, "aten::mul.Tensor"), ({"clip_scaled": True}, "")], [False, True]),
)
def test_a_bug_beside_another_scale_is_the_headline(tmp_path: Path, bug: dict[str, Any], op: str, half: bool) -> None:
    target = record(tmp_path / "t", scale=1024.0, half=half, **bug)
    found = compare(target, record(tmp_path / "b"))
    assert found.verdict == "different" and found.cause is not None
    if op:
        assert found.cause.row.place.op == op
        assert found.cause.text == "other arguments: other is 1.5, in the baseline 1.0", (
            "the temperature, not the scale"
        )


def test_a_bug_beside_another_scale_is_the_headline_of_statistics_too(tmp_path: Path) -> None:
    target = record(tmp_path / "t", scale=1024.0, temperature=1.5, data="statistic")
    found = compare(target, record(tmp_path / "b", data="statistic"))
    assert found.verdict == "different" and found.cause is not None
    assert found.cause.row.place.op == "aten::mul.Tensor" and "Aten.full.0" not in found.cause.text


def test_only_the_ratio_itself_is_explained() -> None:
    ratio = ScaleRatio(1024.0, None, half=False)
    assert ratio.explains(1023.0, 1.0) and ratio.explains(1 - 1 / 1024, 1.0, one_element=True)
    assert not ratio.explains(1 - 1 / 1024, 1.0), "a gradient that was clipped before it was unscaled"
    assert not ratio.explains(1023.0 * 1.02, 1.0)
    assert not ratio.explains(1023.0, 0.999)
    assert not ratio.explains(None, 1.0) and not ratio.explains(1023.0, None)
    assert ScaleRatio(1024.0, None, half=True).explains(1021.0, 0.99999)


def test_statistics_are_explained_by_the_ratio_itself_alone() -> None:
    ratio = ScaleRatio(1024.0, None, half=False)
    assert ratio.explains_statistics(Factor(1024.0, 0.0, 8))
    assert ratio.explains_statistics(Factor(1 / 1024, 0.0, 1))
    assert not ratio.explains_statistics(Factor(1 / 1024, 0.0, 8))
    assert not ratio.explains_statistics(Factor(1024.0 * 1.02, 0.0, 8))
    assert not ratio.explains_statistics(Factor(1024.0, 0.01, 8)), "one statistic is not the baseline's times 1024"
