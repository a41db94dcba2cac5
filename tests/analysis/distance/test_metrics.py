"""Metrics against direct formulas, in one chunk and in many."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.analysis.distance import element_chunks as elements
from aten_dump.analysis.distance import metrics as module
from aten_dump.analysis.distance.metrics import ULP_EDGES, measure


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_numbers_follow_their_formulas(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (elements, module):
        monkeypatch.setattr(part, "CHUNK", chunk)
    b = torch.randn(5, 8, dtype=torch.float64)
    t = b + 1e-3 * torch.randn_like(b)
    t[3, 2] += 0.5
    t[0, 0] = b[0, 0]
    found = measure(t, b)
    error = (t - b).abs()
    assert found.rel_l2 == pytest.approx(float(error.norm() / b.norm()))
    assert found.rmse == pytest.approx(float(error.square().mean().sqrt()))
    assert found.max_abs == float(error.max()) and found.max_abs_at == (3, 2)
    relative = error / b.abs()
    assert found.max_rel == pytest.approx(float(relative.max()))
    assert found.max_rel_at == tuple(int(i) for i in (relative == relative.max()).nonzero()[0])
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(t.flatten(), b.flatten(), 0)))
    assert found.max_scaled == pytest.approx(float((error / (b.abs() + b.square().mean().sqrt())).max()))
    assert found.within_1e3 == float((relative <= 1e-3).double().mean())
    assert found.within_5e3 == float((relative <= 5e-3).double().mean())
    assert found.exact == 1 / 40 and not found.bitwise


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulps_are_steps_between_floats(dtype: torch.dtype) -> None:
    b = torch.tensor([1.0, 1.0, 0.0, -2.0, 3.0], dtype=dtype)
    t = b.clone()
    t[1] = (
        torch.nextafter(t[1], torch.tensor(2.0, dtype=dtype)) if dtype != torch.float16 else 1 + torch.finfo(dtype).eps
    )
    least = {
        torch.float16: torch.int16,
        torch.bfloat16: torch.int16,
        torch.float32: torch.int32,
        torch.float64: torch.int64,
    }[dtype]
    t[2:3].view(least).fill_(torch.iinfo(least).min + 1)  # the negative number next to zero
    ulp = measure(t, b).ulp
    assert ulp[0] == 3 and ulp[1] == 2 and sum(ulp) == 5
    assert measure(-b, b).ulp[-1] == 4 and ULP_EDGES[0] == 0


def test_nonfinite_elements_are_compared_exactly() -> None:
    b = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0])
    assert measure(b.clone(), b).bitwise
    t = torch.tensor([1.0, math.nan, -math.inf, -math.inf, math.nan])
    found = measure(t, b)
    assert (found.nonfinite, found.nonfinite_at, found.nonfinite_values) == (2, (2,), (-math.inf, math.inf))
    complex_one = measure(torch.tensor([1j, 1 + 2j]), torch.tensor([1j, complex(1.0, math.inf)]))
    assert (complex_one.nonfinite_at, complex_one.nonfinite_values) == ((1,), (2.0, math.inf))
    assert (found.target_nonfinite, found.baseline_nonfinite) == (4, 3)
    assert found.rel_l2 == 0.0


def test_other_dtypes_are_cast_to_the_coarser() -> None:
    b = torch.randn(100)
    found = measure(b.bfloat16(), b)
    assert found.bitwise and found.dtype == "bfloat16"
    assert measure(torch.arange(3), torch.arange(3).float()).bitwise
    assert measure(torch.tensor([1 + 1j]), torch.tensor([1 + 2j])).max_abs_at == (0,)
    assert measure(torch.tensor([True, False]), torch.tensor([True, True])).exact == 0.5
    assert measure(torch.empty(0), torch.empty(0)).bitwise


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x.expand(3, 40, 30)])
def test_large_tensors_are_read_in_ranges(tmp_path: Path, view: object, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 30)
    for n in range(2):
        with DumpMode(DumpConfig(path=str(tmp_path / str(n)), data="tensor")) as dump:
            (view(x) if n == 0 else view(x) + 1).clone()  # type: ignore[operator]
            dump.step()
    values = [open_dump(tmp_path / str(n)).rank(0, 0)["Aten.clone.0.forward"].inputs[0][0] for n in range(2)]
    whole = measure(values[0], values[1])
    monkeypatch.setattr(elements, "_WHOLE_BYTES", 0)
    for part in (elements, module):
        monkeypatch.setattr(part, "CHUNK", 77)
    ranged = measure(values[0], values[1])
    assert ranged.rel_l2 == pytest.approx(whole.rel_l2, rel=1e-12)
    assert (ranged.max_abs, ranged.ulp) == (whole.max_abs, whole.ulp)
    t, b = values[0].tensor(), values[1].tensor()
    assert float((t - b).abs()[ranged.max_abs_at]) == pytest.approx(ranged.max_abs)


@pytest.mark.parametrize("chunk", [1 << 20, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_elements_that_are_not_finite_leave_the_other_numbers_as_they_are(
    chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (elements, module):
        monkeypatch.setattr(part, "CHUNK", chunk)
    b = torch.randn(9, dtype=dtype)
    t = b + 1e-3
    bad, odd = (torch.full((4,), number).view(dtype) for number in (math.nan, math.inf))
    clean, found = measure(t, b), measure(torch.cat([t, bad]), torch.cat([b, odd]))
    assert clean.max_scaled > 0
    assert found.max_scaled == pytest.approx(clean.max_scaled)
    assert found.rel_l2 == pytest.approx(clean.rel_l2) and found.within_5e3 == clean.within_5e3
    assert found.ulp == clean.ulp and found.nonfinite == 4


def test_views_of_one_memory_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    for n in range(2):
        with DumpMode(DumpConfig(path=str(tmp_path / str(n)), data="tensor")) as dump:
            y = x + n * (x > 0)
            for view in (y, y.t(), y.view(3, 8), y[1:], y.t()[::2]):
                view.clone()
            dump.step()
    sides = [open_dump(tmp_path / str(n)).rank(0, 0) for n in range(2)]
    pairs = [[rank[f"Aten.clone.{n}.forward"].inputs[0][0] for rank in sides] for n in range(5)]
    expected = [measure(*pair) for pair in pairs]
    read: list[object] = []
    original = module.pairs
    monkeypatch.setattr(module, "pairs", lambda *given: read.append(given) or original(*given))
    known = module.Measured()
    assert [known.measure(*pair) for pair in pairs] == expected
    assert len(read) == 3  # the first three show the same elements in the order of memory
