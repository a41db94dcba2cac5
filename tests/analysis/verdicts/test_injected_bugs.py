"""Bugs put into a 4-layer bf16 transformer on another device: the first cause is named, honest variants raise no alarm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aten_dump import compare
from aten_dump.analysis.comparison import Comparison
from tests.analysis.transformer import Options, OtherDevice, record
from tests.models import single_thread
from tests.sampling import slow_but_for


def _zeroed(t: Tensor) -> Tensor:
    t = t.clone()
    t.view(-1)[t.numel() // 3] = 0
    return t


def _swapped(t: Tensor) -> Tensor:
    return t[[1, 0, *range(2, t.shape[0])]]


def _scaled(t: Tensor) -> Tensor:
    return t * 1.02


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with single_thread():
        return record(tmp_path_factory.mktemp("baseline") / "dump")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


HONEST = {
    "products in chunks": (Options(), OtherDevice()),
    "chunks in the program": (Options(chunked=True), OtherDevice(chunks=2)),
    "fused attention": (Options(manual_attention=False), OtherDevice()),
    "fused norms": (Options(fused_norm=True), OtherDevice()),
    # Attention sees how far positions are apart, and both were moved.
    "positions counted from one": (Options(rope=1, rope_of_keys=1), OtherDevice()),
}


@pytest.mark.slow  # in `make test`: test_honest_models, and fused attention in test_leaf_gradients
@pytest.mark.parametrize("case", HONEST)
def test_honest_variants_raise_no_alarm(case: str, baseline: Path, tmp_path: Path) -> None:
    options, device = HONEST[case]
    found = compare(record(tmp_path / "dump", options, device), baseline)
    assert found.verdict == "within" and found.exit_code == 0, found.answer()
    assert found.cause is None


# name: (options, kind of the cause, its call begins with, its module)
PROGRAM_BUGS = {
    "scale": (Options(scale=1.02), "argument", "Aten.mul.", "h.2.attention"),
    "eps": (Options(eps=1e-2), "argument", "Aten.add.", "h.2.norm1"),
    "rope off by one": (Options(rope=1), "argument", "Aten.arange.", "h.2.attention"),
    "mask off by one": (Options(mask=2), "argument", "Aten.triu.", "h.2.attention"),
    "dropped bias": (Options(drop_bias=True), "region", "Aten.mm.", "h.2.mlp"),
    "zeroed element": (Options(zero_element=True), "region", "Aten.copy_.", "h.2"),
    "swapped rows": (Options(swap_rows=True), "region", "Aten.index.", "h.2"),
    "shuffled batch": (Options(shuffle=True), "source", "Aten.embedding.", "embedding"),
    "sum for mean": (Options(reduction="sum"), "argument", "Aten.nll_loss_forward.", ""),
    "wrong backward": (Options(backward=1.05), "region", "Aten.mul.", "h.2.mlp"),
    "scaled weight": (Options(weight=1.01), "source", "Aten.t.", "h.2.mlp.up"),
}


@pytest.mark.parametrize("case", slow_but_for(["eps"], PROGRAM_BUGS))
def test_a_bug_in_the_program_is_named(case: str, baseline: Path, tmp_path: Path) -> None:
    options, kind, call, fqn = PROGRAM_BUGS[case]
    found = compare(record(tmp_path / "dump", options, OtherDevice()), baseline)
    cause = found.cause
    assert found.exit_code == 1 and cause is not None, found.answer()
    assert (cause.kind, cause.row.place.module) == (kind, fqn), found.answer()
    assert cause.row.place.call.startswith(call), found.answer()
    assert cause.row.place.phase == ("backward" if case == "wrong backward" else "forward")
    assert "transformer.py:" in cause.row.place.source and cause.row.place.call in found.answer()


KERNEL_BUGS = {
    "scaled": ("aten::addmm", 8, _scaled, "op"),
    "zeroed": ("aten::addmm", 8, _zeroed, "op"),
    "swapped": ("aten::addmm", 8, _swapped, "op"),
    "backward only": ("aten::mm", 12, _scaled, "op"),
    "NaN": ("aten::addmm", 8, lambda t: t.index_fill(0, torch.tensor(3), float("nan")), "nonfinite"),
}


@pytest.mark.parametrize("case", slow_but_for(["scaled"], KERNEL_BUGS))
def test_a_bug_in_a_kernel_is_named(case: str, baseline: Path, tmp_path: Path) -> None:
    op, number, change, kind = KERNEL_BUGS[case]
    found = compare(record(tmp_path / "dump", device=OtherDevice({(op, number): change})), baseline)
    cause = found.cause
    assert cause is not None
    phase = "backward" if op == "aten::mm" else "forward"
    assert (cause.kind, cause.row.place.call) == (kind, f"Aten.{op[6:]}.{number}.{phase}"), found.answer()
    assert len(found.ranks[0].findings) == 1, "what follows from it is no cause of its own"


@pytest.mark.slow
def test_a_wrong_baseline_is_told(baseline: Path, tmp_path: Path) -> None:
    wrong = record(tmp_path / "dump", device=OtherDevice({("aten::addmm", 8): _scaled}))
    cause = compare(baseline, wrong).cause
    assert cause is not None and cause.row.place.call == "Aten.addmm.8.forward"
    assert "the baseline's result is wrong" in cause.text


def _statistics(tmp_path: Path, device: OtherDevice | None, data: str, name: str) -> Path:
    return record(tmp_path / name, device=device, data=data, dtype=torch.float32)


@pytest.mark.slow  # in `make test`: by_distance/test_statistics_alone, honest and wrong
def test_statistics_find_a_large_error_and_let_noise_through(tmp_path: Path) -> None:
    base = _statistics(tmp_path, None, "statistic", "base")
    honest = compare(_statistics(tmp_path, OtherDevice(), "statistic", "honest"), base)
    assert honest.verdict == "within" and honest.ranks[0].level == "statistic", honest.answer()
    wrong: Comparison = compare(
        _statistics(tmp_path, OtherDevice({("aten::addmm", 8): _scaled}), "statistic", "wrong"), base
    )
    assert wrong.cause is not None and wrong.cause.row.place.call == "Aten.addmm.8.forward", wrong.answer()


def test_hashes_find_the_first_other_bits(tmp_path: Path) -> None:
    base = _statistics(tmp_path, OtherDevice(), "hash", "base")
    assert compare(_statistics(tmp_path, OtherDevice(), "hash", "same"), base).verdict == "same"
    wrong = compare(_statistics(tmp_path, OtherDevice({("aten::relu", 1): _scaled}), "hash", "wrong"), base)
    assert wrong.cause is not None and wrong.cause.row.place.call == "Aten.relu.1.forward"
    assert wrong.ranks[0].level == "hash"


@pytest.mark.slow
def test_a_coarser_precision_agrees_within_its_own_noise(baseline: Path, tmp_path: Path) -> None:
    found = compare(record(tmp_path / "dump", dtype=torch.float32), baseline)
    assert found.verdict == "within", found.answer()
    sources = [row for row in found.rows if row.closeness and row.closeness.dtype]
    assert sources and sources[0].closeness and sources[0].closeness.dtype == ("float32", "bfloat16")
