"""Promise 1: a dumped training run is bitwise the bare one."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same
from tests.models import Outcome, build, outcome_of, run_steps, train
from tests.sampling import diagonal, slow_but_for

LEVELS = ("aten", "api", "module", "mix")
DATA = ("structure", "hash", "statistic", "tensor", "full")
SELECTIONS = ("all", "1")


@functools.cache
def bare(model: str, optimizer: str, micro_batches: int = 1) -> Outcome:
    return train(build(model, optimizer), 2, micro_batches=micro_batches)


def dumped(path: Path, model: str, optimizer: str, micro_batches: int = 1, **config: str) -> Outcome:
    program = build(model, optimizer)
    with DumpMode(DumpConfig(path=str(path), **config), model=program.model) as dump:
        losses = run_steps(program, 2, dump.step, micro_batches)
    return outcome_of(program, losses)


def assert_same_outcome(expected: Outcome, found: Outcome) -> None:
    tensors = found.tensors()
    assert tensors.keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        assert_same(tensor, tensors[name], name, stride=True)
    assert found.python_rng == expected.python_rng
    assert str(found.numpy_rng) == str(expected.numpy_rng)


def pairwise(*factors: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Rows in which every pair of values of every two factors occurs."""
    rows: list[tuple[str, ...]] = []
    missing = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(factors)), 2)
        for a in factors[i]
        for b in factors[j]
    }

    def pairs(row: tuple[str, ...]) -> set[tuple[tuple[int, str], tuple[int, str]]]:
        return set(itertools.combinations(enumerate(row), 2))  # type: ignore[arg-type]

    while missing:
        best = max(itertools.product(*factors), key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append(best)
    return rows


@pytest.mark.parametrize(("level", "data", "steps"), diagonal(LEVELS, DATA, SELECTIONS))
def test_gpt2_with_every_level_and_data(tmp_path: Path, level: str, data: str, steps: str) -> None:
    found = dumped(tmp_path / "dump", "gpt2", "adamw_foreach", level=level, data=data, steps=steps)
    assert_same_outcome(bare("gpt2", "adamw_foreach"), found)
    dump = open_dump(str(tmp_path / "dump"))
    assert list(dump.steps) == ([0, 1] if steps == "all" else [1])
    assert len(dump.step(1).rank(0).calls) > 0


@pytest.mark.parametrize(
    ("model", "optimizer", "level", "data", "steps"),
    pairwise(
        ("llama", "bert", "resnet", "resnet_channels_last"),
        ("sgd_momentum", "adamw_foreach", "adamw_fused"),
        LEVELS,
        DATA,
        SELECTIONS,
    ),
)
def test_models_and_optimizers_pairwise(
    tmp_path: Path, model: str, optimizer: str, level: str, data: str, steps: str
) -> None:
    found = dumped(tmp_path / "dump", model, optimizer, level=level, data=data, steps=steps)
    assert_same_outcome(bare(model, optimizer), found)


@pytest.mark.parametrize("model", slow_but_for(["bert"], ["gpt2", "bert", "resnet"]))
def test_gradient_accumulation(tmp_path: Path, model: str) -> None:
    found = dumped(tmp_path / "dump", model, "sgd_momentum", micro_batches=3, data="full")
    assert_same_outcome(bare(model, "sgd_momentum", 3), found)


@pytest.mark.parametrize("io", ["input", "output"])
def test_half_of_the_data(tmp_path: Path, io: str) -> None:
    found = dumped(tmp_path / "dump", "gpt2", "adamw_foreach", data="full", io=io)
    assert_same_outcome(bare("gpt2", "adamw_foreach"), found)


def test_without_a_model(tmp_path: Path) -> None:
    program = build("gpt2", "adamw_foreach")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")) as dump:
        losses = run_steps(program, 2, dump.step)
    assert_same_outcome(bare("gpt2", "adamw_foreach"), outcome_of(program, losses))


def test_two_dumps_of_one_program_record_the_same(tmp_path: Path) -> None:
    """Equal runs give equal recordings: same calls, same hashes."""
    ranks = []
    for name in ("a", "b"):
        dumped(tmp_path / name, "bert", "sgd_momentum", data="hash")
        ranks.append(open_dump(str(tmp_path / name)).step(1).rank(0))
    first, second = ([(c.name, c.op, c.phase, c.module) for c in rank.calls] for rank in ranks)
    assert first == second
    hashes = [[value.hash for call in rank.calls for value in _values(call)] for rank in ranks]
    assert hashes[0] == hashes[1]
    assert sum(h is not None for h in hashes[0]) > 1000


def _values(call: object) -> list[object]:
    from tests.capture.bits import values

    return values((call.inputs, call.outputs))  # type: ignore[attr-defined]
