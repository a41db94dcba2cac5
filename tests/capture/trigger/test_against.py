"""A run that is held against a golden names the first call that differs, and keeps bytes around it alone."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import ConfigError, DumpConfig, DumpMode, MissingDataError, RankDump, compare, open_dump, replay
from aten_dump.dump import Value
from tests.launch.running import PYTHON, environment
from tests.models import build, single_thread, train_step

STEPS, CHANGED = 3, 1
factor = 1.0


@torch.library.custom_op("aten_dump_tests::kernel", mutates_args=())
def kernel(x: Tensor) -> Tensor:
    return x * factor


@kernel.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


kernel.register_autograd(lambda ctx, gradient: gradient)


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return kernel(x)  # the line


def _other_eps(program: Any) -> None:
    program.model.transformer.h[1].ln_2.eps = 1e-3


def _other_kernel(program: Any) -> None:
    global factor
    factor = 1.0000001


def _extra_call(program: Any) -> None:
    program.model.transformer.h[1].mlp.register_forward_hook(lambda module, args, output: output + 0.0)


def _written_unseen(program: Any) -> None:
    ctypes.c_float.from_address(program.model.address).value = 7.0


def _fewer_calls(program: Any) -> None:
    program.optimizer.step = lambda: None


# The change, then of what is found: op, module, slot, and words of its text.
CHANGES: dict[str, tuple[Callable[[Any], None], str, str, str, str]] = {
    "eps": (_other_eps, "aten::native_layer_norm", "transformer.h.1.ln_2", "input.4", "(eps) is 0.001, there 1e-05"),
    "kernel": (_other_kernel, "aten_dump_tests::kernel", "transformer.h.1.mlp.act.1", "output.0", "has other bits"),
    "extra": (_extra_call, "aten::add.Tensor", "transformer.h.1.mlp", "", "golden has Aten.add."),
    "unseen": (_written_unseen, "aten::addmm", "transformer.h.0.mlp.c_proj", "input.0", "no call before it differs"),
    "missing": (_fewer_calls, "", "", "", "golden has 226 more calls, the first Custom._record_function_enter_new"),
}


def record(config: DumpConfig, change: Callable[[Any], None] | None = None, steps: int = STEPS) -> DumpMode:
    """Train GPT-2 for some steps; before one of them something changes."""
    global factor
    factor = 1.0
    program = build("gpt2")
    model: Any = program.model
    mlp = model.transformer.h[1].mlp
    model.address = model.transformer.h[0].mlp.c_proj.bias.data_ptr()
    mlp.act = nn.Sequential(mlp.act, Kernel())
    with single_thread(), DumpMode(config, model=model) as dump:
        for step in range(steps):
            if step == CHANGED and change is not None:
                change(program)
            train_step(program)
            dump.step()
    return dump


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("against") / "golden"
    record(DumpConfig(path=path, data="hash"))
    return path


def stored(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("shard-*"))


def is_stored(value: Value) -> bool:
    try:
        value.tensor()
    except MissingDataError:
        return False
    return True


def with_bytes(rank: RankDump) -> set[int]:
    """Return the positions of the calls all of whose values have bytes."""
    found = ((at, [one for _, one in call.all_values() if one.nbytes]) for at, call in enumerate(rank.calls))
    return {at for at, values in found if values and all(one.undefined or is_stored(one) for one in values)}


def test_an_equal_run_keeps_no_bytes_and_all_hashes(golden: Path, tmp_path: Path) -> None:
    dump = record(DumpConfig(path=tmp_path / "dump", against=golden))
    assert dump.first_difference is None and stored(tmp_path / "dump") == 0
    for step in range(STEPS):
        ours, theirs = (open_dump(path).rank(step, 0) for path in (tmp_path / "dump", golden))
        assert [call.name for call in ours.calls] == [call.name for call in theirs.calls]
        assert {v.id: v.hash for c in ours.calls for _, v in c.all_values()} == {
            v.id: v.hash for c in theirs.calls for _, v in c.all_values()
        }
        assert not {note.code for note in ours.notes} & {"against", "difference", "trigger_bytes"}
    again = record(DumpConfig(path=tmp_path / "again", against=tmp_path / "dump"))
    assert again.first_difference is None, "what was recorded against a golden is one"


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_call_that_differs_is_named(name: str, golden: Path, tmp_path: Path) -> None:
    change, op, module, slot, words = CHANGES[name]
    dump = record(DumpConfig(path=tmp_path / "dump", against=golden, trigger_before=30, trigger_after=20), change)
    found = dump.first_difference
    assert found is not None
    assert (found.step, found.rank, found.slot) == (CHANGED, 0, slot) and words in found.text.replace(
        f"{golden.parent}/", ""
    )
    assert not op or (found.op, found.module) == (op, module)
    if name == "kernel":
        file, line = found.source.split(" in ")[0].rsplit(":", 1)
        assert Path(file).read_text().splitlines()[int(line) - 1].endswith("# the line"), found.source
    ranks = [open_dump(tmp_path / "dump").rank(step, 0) for step in range(STEPS)]
    call = ranks[CHANGED][found.name]
    assert call.id == found.call
    (note,) = (note for note in ranks[CHANGED].notes if note.code == "difference")
    assert str(found) in note.message
    assert all(is_stored(value) or value.undefined for _, value in call.all_values())
    calls = ranks[CHANGED].calls
    around, at = with_bytes(ranks[CHANGED]), list(calls).index(call)
    before = {one for one in range(at - 3, at) if any(value.nbytes for _, value in calls[one].all_values())}
    assert before <= around, "some calls before it"
    assert len(around) < len(calls) / 8, "not those of the whole step"
    assert not stored(tmp_path / "dump" / "step0")
    assert name == "missing" or not stored(tmp_path / "dump" / "step2"), "the window ends in the step, or soon after"
    assert all(value.hash or value.undefined for one in ranks[2].calls for _, value in one.all_values())


def test_the_ops_near_the_difference_can_be_replayed(golden: Path, tmp_path: Path) -> None:
    dump = record(DumpConfig(path=tmp_path / "dump", against=golden), CHANGES["eps"][0])
    assert dump.first_difference is not None
    (op,) = replay(open_dump(tmp_path / "dump").rank(CHANGED, 0)[dump.first_difference.name]).ops
    assert op.results and all(one.ratio < 1 for one in op.results), "it computes what its arguments say"
    compared = compare(tmp_path / "dump", golden)
    assert compared.exit_code == 1 and dump.first_difference.name in compared.answer()


def test_a_mode_takes_the_golden_too(golden: Path, tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "dump"), against=golden) as dump:
        torch.ones(3).exp()
    found = dump.first_difference
    assert found is not None and "golden has" in found.text
    assert dump.config.data == "hash"


def test_a_step_that_the_golden_has_not_is_compared_with_nothing(golden: Path, tmp_path: Path) -> None:
    dump = record(DumpConfig(path=tmp_path / "dump", against=golden), steps=STEPS + 1)
    assert dump.first_difference is None and stored(tmp_path / "dump") == 0
    (note,) = (note for note in open_dump(tmp_path / "dump").rank(STEPS, 0).notes if note.code == "against")
    assert f"golden has no step {STEPS} of rank 0" in note.message


def test_what_can_be_no_golden_is_an_error(golden: Path, tmp_path: Path) -> None:
    record(DumpConfig(path=tmp_path / "statistic"), steps=1)
    with pytest.raises(ConfigError, match=r'recorded with data=.statistic.; it must have hashes.*data="hash"'):
        DumpMode(DumpConfig(path=tmp_path / "dump", against=tmp_path / "statistic"))
    with pytest.raises(ConfigError, match=r"cannot be read: .*run.json does not exist"):
        DumpMode(DumpConfig(path=tmp_path / "dump", against=tmp_path / "none"))
    with pytest.raises(ConfigError, match="record to another folder"):
        DumpMode(DumpConfig(path=golden, against=golden))
    with pytest.raises(ConfigError, match=r"against is .*; allowed: None beside a trigger; trigger is 'nonfinite'"):
        DumpConfig(path=tmp_path / "dump", against=golden, trigger="nonfinite")
    with pytest.raises(ConfigError, match=r"against is 3; allowed: the path of a dump"):
        DumpConfig(path=tmp_path / "dump", against=3)  # type: ignore[arg-type]


SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8, eps=float(sys.argv[1])), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_script_is_held_against_a_golden_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*options: str, eps: str) -> str:
        command = [*PYTHON, "-m", "aten_dump", "run", *options, "--", *PYTHON, "train.py", eps]
        done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    run("--path", "golden", "--data", "hash", eps="1e-5")
    told = run("--path", "other", "--against", "golden", eps="1e-3")
    assert "Aten.native_layer_norm.0.forward" in told and "input.4 (eps) is 0.001, there 1e-05" in told


RANKS = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for step in range(2):
    if "changed" in sys.argv and step == 1 and dist.get_rank() == 1:
        layers[1].eps = 1e-3
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_each_rank_is_held_against_its_own_and_all_keep_the_same_calls(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)

    def run(*options: str) -> str:
        launch = [*PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", *options[2:]]
        command = [*PYTHON, "-m", "aten_dump", "run", *options[0].split(), "--data", "hash", "--", *launch]
        done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    run("--path golden")
    told = run("--path same --against golden")
    assert "no difference" in told and not stored(tmp_path / "same"), "buckets of gradients begin as anything"
    told = run("--path other --against golden", "", "changed")
    assert "input.4 (eps) is 0.001, there 1e-05" in told and "allreduce_" in told, "rank 1 first, rank 0 by what it got"
    assert all(stored(tmp_path / "other" / "step1" / f"rank{rank}") for rank in (0, 1))
    assert not stored(tmp_path / "other" / "step0")
