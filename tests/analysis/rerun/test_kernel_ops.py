"""A kernel that a compiler got wrong is named, by itself and beside the program as written; honest ones agree."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.analysis.rerun.kernel_ops import _OWN
from aten_dump.analysis.rerun.repro_script import repro_script
from aten_dump.analysis.rerun.run_op import find_op, run_call, run_in
from aten_dump.analysis.rerun.shared_memory import Surroundings
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from aten_dump.cli.main import main

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]


GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "my-compiled-model-differs.md"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.other(torch.relu(self.one(x))).softmax(-1)
        return found


def _trained(path: Path, *, compiled: bool, bug: str | None = None) -> str:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    with (
        torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": bug}),
        DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels"), model=model),
    ):
        (forward(x) * torch.arange(8.0)).square().mean().backward()
        optimizer.step()
    return str(path)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("kernels")
    return {
        "eager": _trained(root / "eager", compiled=False),
        "compiled": _trained(root / "compiled", compiled=True),
        "wrong": _trained(root / "wrong", compiled=True, bug="accuracy"),  # a fault that inductor has for its own tests
    }


def test_replay_names_the_kernel(dumps: dict[str, str]) -> None:
    assert not replay(open_dump(dumps["compiled"])).suspects
    (suspect,) = replay(open_dump(dumps["wrong"])).suspects
    assert suspect.name == "Kernel.cpp_fused_relu_0.0.forward"
    assert __file__ in suspect.source


def test_other_roundings_are_as_far_off_as_rounding_is(dumps: dict[str, str]) -> None:
    """They differ from draw to draw, a seed gives the same again, and what is drawn is of no other generator."""
    calls = open_dump(dumps["compiled"]).step(0).rank(0).calls
    call = next(call for call in calls if call.name.startswith("Kernel.cpp_fused__softmax_backward"))
    state = torch.get_rng_state()
    runs = (run_in(find_op(call), call, Surroundings(cast=True, rounding=seed)) for seed in (0, 1, 1, 2, 3))
    exact, *drawn = (run.mutated["out"][0] for run in runs)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn[0], drawn[1])
    errors = [float((one - exact).norm() / exact.norm()) for one in drawn[1:]]
    assert len(set(errors)) == 3
    assert all(1e-9 < error < 1e-6 for error in errors), errors


@pytest.mark.parametrize("order", ["as given", "turned round"])
def test_compiled_code_agrees_with_the_program_as_written(dumps: dict[str, str], order: str) -> None:
    sides = ("compiled", "eager") if order == "as given" else ("eager", "compiled")
    found = compare(*(dumps[side] for side in sides))
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("baseline", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_compare_names_the_kernel(dumps: dict[str, str], baseline: str) -> None:
    found = compare(dumps["wrong"], dumps[baseline])
    assert found.exit_code == 1
    assert "First cause: Kernel.cpp_fused_relu_0.0.forward" in found.answer()
    assert "rad_enabled" not in found.answer(), "compiled graphs run without grad mode, whatever the program does"


def test_a_product_of_sizes_that_a_backward_keeps_is_known(tmp_path: Path) -> None:
    """The forward hands ``s0*s1`` on; the backward's kernels read it, and are given ``s0`` and ``s1`` alone."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", compile="kernels"), model=model):
        torch.compile(model, dynamic=True)(torch.randn(3, 5, 8)).square().mean().backward()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    kernels = [call for call in rank.calls if call.kernel is not None]
    kept = [call for call in kernels if any("*" in node.size for node in call.kernel.nodes if node.op == "placeholder")]  # type: ignore[union-attr]
    assert kept, "no kernel reads a product of sizes: this test shows nothing"
    found = replay(rank)
    assert not found.suspects
    assert {call.name for call in kernels} <= {op.name for op in found.ops}
    (tmp_path / "kernel.py").write_text(repro_script(kept[-1]), encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "kernel.py"], capture_output=True, text=True, check=True)
    assert "mutated.out.0: " in done.stdout


def test_what_a_kernel_makes_of_integers_is_known_in_float64(tmp_path: Path) -> None:
    """Its arguments are no floating numbers, and neither is a count that it keeps: both are run all the same."""
    torch._dynamo.reset()
    numbers = torch.arange(1, 9)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", compile="kernels")):
        torch.compile(lambda n: ((n / 3).exp(), n.mul_(2)))(numbers.clone())
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    kernels = [call for call in rank.calls if call.kernel is not None]
    made = [item for call in kernels for item in run_call(call, cast=True).mutated["out"]]
    assert any(item.equal((numbers.double() / 3).exp()) for item in made)
    assert any(item.equal(numbers * 2) for item in made)
    assert [op.reference for op in replay(rank).ops if op.op.startswith("inductor::")] == ["float64"] * len(kernels)


def test_random_numbers_are_those_of_the_compiler() -> None:
    """What a kernel makes of a seed is checked bit by bit: against torch's own Philox, as its header has it."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        torch.manual_seed(0)
        found = torch.compile(lambda x: torch.rand_like(x))(torch.ones(100))
        torch.manual_seed(0)
        seed = torch.empty(1, dtype=torch.int64).random_(-(1 << 63), None)
    assert torch.equal(_OWN["prims::inductor_random"]([100], seed[0], "rand"), found)


@pytest.mark.slow
def test_the_guide_does_what_it_says(dumps: dict[str, str], tmp_path: Path) -> None:
    """The commands of docs/guide/my-compiled-model-differs.md, on a dump with a faulty kernel."""
    runner, name = CliRunner(), "Kernel.cpp_fused_relu_0.0.forward"
    for path, side in (("compiled", "wrong"), ("eager", "eager")):
        (tmp_path / path).symlink_to(dumps[side])
    guide = GUIDE.read_text(encoding="utf-8")
    commands = re.findall(r"^aten-dump ((?:replay|compare) .*)$", guide, re.M)
    assert len(commands) == 3
    with contextlib.chdir(tmp_path) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        found = [runner.invoke(main, command.split()) for command in commands]
        assert re.match(
            rf"{name} \(inductor::cpp_fused_relu_0.\d+_forward\) is the first suspect in compiled", found[0].output
        )
        assert f"First cause: {name}" in found[2].output
        said = {}
        for option in ("", "--kernel"):
            done = subprocess.run([sys.executable, "kernel.py", option], capture_output=True, text=True, check=True)
            said[option] = done.stdout
        assert "mutated.out.0: different" in said[""]
        assert "mutated.out.0: bit-equal" in said["--kernel"]
        assert "--kernel" in found[1].output
        assert "None" not in said[""]
        shown = runner.invoke(main, ["show", "compiled", name]).output
        assert "relu = aten::relu(addmm) float32[4, 32]" in shown
