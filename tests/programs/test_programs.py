"""Real programs are unchanged by the dump, all of it can be read, backward is linked, and two equal runs compare as equal.

`make test-programs` runs all, with the libraries in an environment of their own; without ATEN_DUMP_PROGRAMS=all those of `SAMPLE`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, RankDump, compare, open_dump
from aten_dump.store.checking.verification import verify
from tests.capture.bits import assert_same
from tests.models import seed_all
from tests.sampling import slow_but_for

from . import Program, model_libraries, torch_alone, trainers, transformers_models

PROGRAMS: dict[str, Program] = {
    name: program
    for module in (torch_alone, transformers_models, trainers, model_libraries)
    for name, program in module.PROGRAMS.items()
}
# The first is slow, as an LBFGS is among tests/promises/test_programs.py; so is the third, which takes longest.
SAMPLE = ("quasi newton", "accelerate", "transformers deberta_v2")
# Their losses are tensors inside of a transform, which have no bytes to compare.
WITHOUT_LOSSES = ("gradients per sample",)
CHOSEN = PROGRAMS if os.environ.get("ATEN_DUMP_PROGRAMS") == "all" else slow_but_for(SAMPLE[1:2], SAMPLE)

pytestmark = pytest.mark.filterwarnings("ignore")


def run(program: Program) -> list[Tensor]:
    seed_all(3)
    left = [tensor.detach().to_dense().clone() for tensor in program()]
    assert left, "it leaves nothing to compare"
    return [*left, torch.get_rng_state()]


def assert_equal(bare: list[Tensor], left: list[Tensor]) -> None:
    for number, (expected, found) in enumerate(zip(bare, left, strict=True)):
        assert_same(expected, found, f"result {number}")


def assert_readable(rank: RankDump) -> None:
    assert verify(rank.directory) == [] and rank.missing == []
    read = [value.tensor() for value in rank.values if value.has_data]
    assert read and len(rank.calls) > len(read) // 50


def assert_linked(rank: RankDump) -> None:
    """Every op of a backward pass belongs to a forward call, but the seed of the pass, which no call made."""
    backward = [call for call in rank.calls.filter(kind="aten") if call.phase == "backward"]
    loose = [
        call.name
        for call in backward
        if call.forward is None or call.forward.phase not in ("forward", "recompute", "backward")
    ]
    passes = {call.name for call in rank.calls.filter(op="aten::ones_like")}
    assert set(loose) <= passes, loose[:5]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_program(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    run(program)  # the first calls of some kernels differ from later ones
    bare = run(program)
    paths = tmp_path / "first", tmp_path / "second"
    for path in paths:
        with DumpMode(DumpConfig(path=str(path), data="full")):
            left = run(program)
        assert_equal(bare, left)
    assert_equal(bare, run(program))
    rank = open_dump(paths[0]).step(0).rank(0)
    assert_readable(rank)
    assert_linked(rank)
    comparison = compare(*paths)
    assert comparison.verdict == ("incomparable" if name in WITHOUT_LOSSES else "same"), comparison.answer()
