"""Real transformers: unchanged by the dump, every op recorded, every backward op linked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same, calls
from tests.capture.compared_with_oracle import compare_call
from tests.capture.oracle import Oracle
from tests.models import Outcome, outcome_of, run_steps, train, train_step
from tests.sampling import diagonal, slow_but_for
from tests.zoo import ZOO, build, generate

pytestmark = pytest.mark.filterwarnings("ignore")
GENERATIVE = [name for name, animal in ZOO.items() if animal.prompt is not None]
# Two that look at all they are given, an image, routing, an encoder beside a decoder; the others differ less from one of these.
UNLIKE = ["bert", "vit", "mixtral", "t5", "whisper"]


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """The first use of some kernels sets them up, in ways that may change bits."""
    train_step(build("gpt2"))


def assert_equal_outcomes(expected: Outcome, found: Outcome) -> None:
    theirs, ours = expected.tensors(), found.tensors()
    assert set(theirs) == set(ours)
    for name, tensor in theirs.items():
        assert_same(tensor, ours[name], name, stride=True)
    assert found.python_rng == expected.python_rng


def rank_of(path: Path, step: int = 0) -> Any:
    return open_dump(str(path)).step(step).rank(0)


@pytest.mark.parametrize(
    ("name", "level", "data"), diagonal([*ZOO], [("mix", "full"), ("mix", "structure"), ("api", "statistic")])
)
def test_training_is_bitwise_that_of_the_bare_program(tmp_path: Path, name: str, level: str, data: str) -> None:
    expected = train(build(name), 2)
    program = build(name)
    config = DumpConfig(path=str(tmp_path / "dump"), level=level, data=data)
    with DumpMode(config, model=program.model) as dump:
        losses = run_steps(program, 2, dump.step)
    assert_equal_outcomes(expected, outcome_of(program, losses))


@pytest.mark.parametrize("name", slow_but_for(UNLIKE, ZOO))
def test_every_op_of_a_training_step_is_recorded_and_linked(tmp_path: Path, name: str) -> None:
    program = build(name)
    train_step(program)
    oracle = Oracle()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor"), model=program.model) as dump:
        with oracle:
            train_step(program)
        dump.step()
    rank = rank_of(tmp_path / "dump")
    recorded = calls(rank, kind="aten")
    assert [call.op for call in recorded] == oracle.ops
    problems = [
        problem for step, call in zip(oracle.steps, recorded, strict=True) for problem in compare_call(step, call)
    ]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:10])
    backward = [call for call in recorded if call.phase == "backward"]
    assert len(backward) > 50
    unlinked = [c.name for c in backward if c.forward is None or c.forward.phase not in ("forward", "recompute")]
    # The root of the pass is made by the engine itself: no forward call made it.
    assert len(unlinked) <= 1 and all("ones_like" in one for one in unlinked), unlinked


@pytest.mark.parametrize("name", slow_but_for(UNLIKE, ZOO))
def test_recorded_ops_are_those_of_the_bare_program(tmp_path: Path, name: str) -> None:
    program = build(name)
    with Oracle() as bare:
        train_step(program)
    program = build(name)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="structure"), model=program.model) as dump:
        train_step(program)
        dump.step()
    assert [call.op for call in calls(rank_of(tmp_path / "dump"), kind="aten")] == bare.ops


@pytest.mark.parametrize("how", slow_but_for(["sampled"], ["greedy", "sampled", "beams"]))
@pytest.mark.parametrize("name", slow_but_for(["mixtral", "t5", "whisper"], GENERATIVE))
def test_generate(tmp_path: Path, name: str, how: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "greedy": {"do_sample": False},
        "sampled": {"do_sample": True, "top_k": 8, "temperature": 0.8},
        "beams": {"do_sample": False, "num_beams": 2},
    }
    expected = generate(name, build(name).model, **options[how])
    rng = torch.get_rng_state()
    model = build(name).model
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor"), model=model):
        found = generate(name, model, **options[how])
    assert_same(expected, found)
    assert torch.equal(rng, torch.get_rng_state())
    rank = rank_of(tmp_path / "dump")
    model = build(name).model
    with Oracle() as oracle:
        generate(name, model, **options[how])
    assert {call.phase for call in calls(rank, kind="aten")} == {"forward"}
    recorded = calls(rank, kind="aten")
    assert [call.op for call in recorded] == oracle.ops
    problems = [
        problem for step, call in zip(oracle.steps, recorded, strict=True) for problem in compare_call(step, call)
    ]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:10])
