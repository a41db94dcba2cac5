"""Scripts that were written for msprobe's PrecisionDebugger."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import CaptureError, ConfigError, DumpMode, RankDump, open_dump
from aten_dump.compat import PrecisionDebugger
from tests import forked
from tests.checkout import ROOT

SCRIPT = """
import sys
import torch
from torch import nn
from aten_dump.compat import PrecisionDebugger, seed_all

seed_all(mode=True)
debugger = PrecisionDebugger(config_path=sys.argv[1])
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    debugger.start(model)
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    model(torch.randn(3, 4))  # an evaluation, of which msprobe sees nothing
print(loss.item())
"""


def config(tmp_path: Path, **keys: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), "level": "mix", **keys}))
    return str(path)


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(model: nn.Module, *, stop_before_backward: bool = False) -> None:
    PrecisionDebugger.start(model)
    loss = model(torch.ones(3, 4)).square().mean()
    if stop_before_backward:
        PrecisionDebugger.stop()
    loss.backward()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def recorded(tmp_path: Path, step: int = 0) -> RankDump:
    PrecisionDebugger._instance._close()
    return open_dump(tmp_path / "dump").step(step).rank(0)


@pytest.mark.slow
def test_a_script_of_theirs_with_another_import(tmp_path: Path) -> None:
    path = config(tmp_path, step=[0, "1-2"], rank=[0], tensor={"list": []}, statistics={"data_mode": ["all"]})
    told = SCRIPT.replace(
        "from aten_dump.compat import PrecisionDebugger, seed_all", "from aten_dump.compat import seed_all"
    )
    bare = "\n".join(line for line in told.splitlines() if "debugger" not in line)
    loss = run(SCRIPT.replace("import sys", "import sys, warnings; warnings.simplefilter('ignore')"), path)
    done = forked.run(["-c", bare, path], tmp_path / "said")
    assert (done.code, done.said) == (0, loss)
    dump = open_dump(tmp_path / "dump")
    assert dump.steps == [0, 1, 2]
    for step in dump.steps:
        rank = dump.step(step).rank(0)
        assert rank.complete
        assert sum(call.name.startswith("Functional.linear") and call.phase == "forward" for call in rank.calls) == 2
        assert any(call.phase == "optimizer" for call in rank.calls) and rank.gradients
    run(SCRIPT.replace("import sys", "import sys, warnings; warnings.simplefilter('ignore')"), path)
    assert open_dump(tmp_path / "dump").steps == [0, 1, 2], "as with msprobe, a second run writes over the first"


def test_calls_are_found_by_the_names_that_msprobe_gives_them(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(task="tensor", dump_path=str(tmp_path / "dump"), level="mix")
    train(model)
    rank = recorded(tmp_path)
    assert rank["Module.0.Linear.forward.0"] == rank["Module.0.0.forward"]
    assert rank["Module.2.Linear.backward.0"] == rank["Module.2.0.backward"]
    weight = rank.tensor("Module.0.Linear.forward.0.output.0")
    assert torch.equal(weight, rank.tensor("Module.0.0.forward.output.0"))
    for wrong in (
        "Module.0.ReLU.forward.0",
        "Module.0.Linear.forward.1",
        "Module.0.Linear.optimizer.0",
        "Torch.0.Linear.forward.0",
    ):
        assert wrong not in rank


def test_stop_before_backward_records_no_backward(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="mix")
    train(model, stop_before_backward=True)
    assert model[0].weight.grad is not None
    assert {call.phase for call in recorded(tmp_path).calls} == {"forward"}


def test_start_and_stop_around_blocks_of_a_step(tmp_path: Path, model: nn.Module) -> None:
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L1")
    for op in (torch.sin, torch.cos, torch.tan):
        debugger.start()
        op(torch.ones(2))
        debugger.stop()
        op(torch.ones(3))
    debugger.forward_backward_dump_end()
    names = [call.name for call in recorded(tmp_path).calls]
    apis = [name for name in names if "ones" not in name]
    assert apis == ["Torch.sin.0.forward", "Torch.cos.0.forward", "Torch.tan.0.forward"]


@pytest.mark.parametrize(
    ("level", "kinds"), [("L0", {"module"}), ("L1", {"api"}), ("L2", {"aten", "node"}), ("mix", {"module", "api", "aten", "node"})]
)  # fmt: skip
def test_levels(tmp_path: Path, model: nn.Module, level: str, kinds: set[str]) -> None:
    PrecisionDebugger(config(tmp_path), level=level)
    train(model)
    assert {call.kind for call in recorded(tmp_path).calls} == kinds


@pytest.mark.parametrize(
    ("task", "bytes_kept", "statistics_kept"), [("statistics", False, True), ("tensor", True, True), ("structure", False, False)]
)  # fmt: skip
def test_tasks(tmp_path: Path, model: nn.Module, task: str, bytes_kept: bool, statistics_kept: bool) -> None:
    PrecisionDebugger(config(tmp_path), task=task)
    train(model)
    value = recorded(tmp_path)["Functional.linear.0.forward"].outputs
    assert value.has_data == bytes_kept and (value.stats is not None) == statistics_kept


def test_steps_count_where_nothing_is_started_too(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    PrecisionDebugger.step()
    PrecisionDebugger.step()
    train(model)
    PrecisionDebugger.step()
    train(model)
    recorded(tmp_path, 2)
    assert open_dump(tmp_path / "dump").steps == [2, 4]


def test_only_the_steps_asked_for(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), step=[1, "3-4"])
    for _ in range(6):
        train(model)
    recorded(tmp_path, 1)
    assert open_dump(tmp_path / "dump").steps == [1, 3, 4]


@pytest.mark.parametrize("started", [False, True])
def test_the_first_step_may_have_another_number(tmp_path: Path, model: nn.Module, started: bool) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    if started:
        train(model)
    PrecisionDebugger.set_init_step(100)
    train(model)
    train(model)
    recorded(tmp_path, 100)
    assert open_dump(tmp_path / "dump").steps == [0] * started + [100, 101]


def test_there_is_one_in_a_process(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="make one before"):
        PrecisionDebugger.start()
    first = PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    assert PrecisionDebugger(config_path="no such file") is first


def test_one_whose_config_is_wrong_can_be_made_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="level is 'L7'; msprobe allows: 'L0', 'L1'"):
        PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L7")
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L0")


def test_several_models(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L0")
    train_both = nn.ModuleList([model, nn.Linear(2, 1)])
    PrecisionDebugger.start([model, train_both[1]])
    train_both[1](model(torch.ones(3, 4)))
    PrecisionDebugger.stop()
    rank = recorded(tmp_path)
    assert "Module.0.2.Linear.forward.0" in rank and "Module.1.Linear.forward.0" in rank


def test_the_model_of_older_scripts(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L0", model=model)
    PrecisionDebugger.start()
    model[2](model[0](torch.ones(3, 4)))
    PrecisionDebugger.stop()
    assert [call.module for call in recorded(tmp_path).calls] == ["0", "2"]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (2, 3)])
def test_a_range_of_tokens(tmp_path: Path, model: nn.Module, first: int, last: int) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="mix", task="tensor")
    PrecisionDebugger.start(model, token_range=[first, last])
    tokens = [torch.full((1, 4), float(number)) for number in range(6)]
    for token in tokens:
        model(token)
    PrecisionDebugger.stop()
    calls = [call for call in recorded(tmp_path).calls if call.name.startswith("Module.Sequential.")]
    whole = [call for call in calls if call.children]  # of the call after the last, its beginning is seen
    assert [call.inputs[0][0].tensor()[0, 0].item() for call in whole] == list(range(first, last + 1))


@pytest.mark.parametrize("wrong", [[1], [2, 1], [-1, 2], "01", [0, True]])
def test_a_range_that_is_none(tmp_path: Path, model: nn.Module, wrong: object) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    with pytest.raises(ConfigError, match=r"token_range is .* 0 <= first <= last"):
        PrecisionDebugger.start(model, token_range=wrong)


def test_another_rank_than_the_launcher_tells_is_refused(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    PrecisionDebugger.start(rank_id=0)
    with pytest.raises(ConfigError, match=r"rank_id is 3, but this process is rank 0.*set RANK and WORLD_SIZE"):
        PrecisionDebugger.start(rank_id=3)


def test_a_config_that_is_written_anew_turns_recording_on_and_off(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(config(tmp_path, dump_enable=False))
    train(model)
    config(tmp_path, dump_enable=True, step=[])
    train(model)
    train(model)
    config(tmp_path, dump_enable=False)
    train(model)
    (tmp_path / "config.json").write_text("{")
    with pytest.warns(UserWarning, match="records nothing until this is fixed"):
        train(model)
    config(tmp_path, dump_enable=True, rank=[])
    train(model)
    recorded(tmp_path, 1)
    assert open_dump(tmp_path / "dump").steps == [1, 2, 5]


def test_keys_without_meaning_are_named(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match="keys without meaning here: async_dump: the recorder always writes in the background"
    ):
        PrecisionDebugger(config(tmp_path, async_dump=True))


@pytest.mark.parametrize("level", ["debug", "L1"])
def test_tensors_under_names(tmp_path: Path, model: nn.Module, level: str) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level=level, task="tensor")
    for _ in range(2):
        PrecisionDebugger.start(model)
        hidden = model[0](torch.ones(3, 4))
        PrecisionDebugger.save(hidden, "hidden")
        PrecisionDebugger.save({"a": [hidden * 2], "scale": 0.5}, "more", save_backward=False)
        model[2](hidden.relu()).sum().backward()
        PrecisionDebugger.stop()
        PrecisionDebugger.save(hidden, "late")
        PrecisionDebugger.step()
    rank = recorded(tmp_path, 1)
    assert list(rank.saved) == ["hidden", "more.a.0"] + ["late"] * (level == "debug")
    assert torch.equal(rank.saved["hidden"].tensor(), hidden)
    assert list(rank.saved["hidden"].gradients[0].shape) == [3, 8] and not rank.saved["more.a.0"].gradients
    assert [mark.text for mark in rank.marks] == ["more.scale = 0.5"]
    assert ("Functional.linear.0.forward" in rank) == (level == "L1")


def test_nothing_is_installed_while_it_is_stopped(tmp_path: Path, model: nn.Module) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="mix")
    call = nn.Module.__call__
    train(model)
    assert nn.Module.__call__ is call
    assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == (0, 0)
    assert DumpMode.current() is not None


# The methods of msprobe 26.2.0, and the two of older versions that scripts use; `make test-peers` holds this against it.
METHODS = {
    "start": "model=None, token_range=None, rank_id=None, scheduled_tokens=None",
    "stop": "",
    "step": "",
    "set_init_step": "step",
    "save": "variable, name, save_backward=True",
    "register_custom_api": "module, api, api_prefix=None",
    "restore_custom_api": "module, api",
    "forward_backward_dump_end": "",
}


def signature(function: object) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters)


@pytest.mark.parametrize("method", METHODS)
def test_methods_have_the_parameters_of_theirs(method: str) -> None:
    assert signature(getattr(PrecisionDebugger, method)) == METHODS[method]


def test_it_is_made_with_the_parameters_of_theirs() -> None:
    assert signature(PrecisionDebugger.__init__) == (
        "self, config_path=None, task=None, dump_path=None, level=None, step=None, model=None"
    )
    assert inspect.signature(PrecisionDebugger.__init__).parameters["model"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_end_of_a_block_keeps_its_backward_and_nothing_of_what_comes_then(
    tmp_path: Path, model: nn.Module, level: str
) -> None:
    """As msprobe 1.1 has it: the block's calls, forward and backward, until `stop`."""
    PrecisionDebugger(config(tmp_path, level=level))
    for _ in range(2):
        given = torch.ones(3, 4)
        PrecisionDebugger.start(model)
        out = model(given)
        PrecisionDebugger.forward_backward_dump_end()
        out.sigmoid().square().mean().backward()
        model(given)
        PrecisionDebugger.stop()
        out.sum()
        PrecisionDebugger.step()
    for step in (0, 1):
        rank = open_dump(tmp_path / "dump").step(step).rank(0)
        names = {call.name for call in rank.calls if call.kind == "api" and call.phase == "forward"}
        assert names == {"Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"}
        backward = {call.name for call in rank.calls if call.kind == "api" and call.phase == "backward"}
        assert backward == {name.replace("forward", "backward") for name in names}
        ops = {call.op for call in rank.calls}
        assert "aten::sigmoid" not in ops and "aten::sigmoid_backward" not in ops and "SigmoidBackward0" not in ops
        assert all(call.forward is not None for call in rank.calls if call.phase == "backward")
        assert ("aten::threshold_backward" in ops) == (level == "mix")


EXITS = """
import os, sys, torch
from aten_dump import open_dump
from aten_dump.compat import PrecisionDebugger
PrecisionDebugger(sys.argv[1])
for step in range(2):
    PrecisionDebugger.start()
    torch.ones(3).exp()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    dump = open_dump(sys.argv[2])
    print(dump.steps, all(rank.complete for rank in dump.all_ranks()), flush=True)
os._exit(0)
"""


def test_a_step_that_has_ended_can_be_read_at_once_and_stays(tmp_path: Path) -> None:
    path = config(tmp_path)
    assert run(EXITS, path, str(tmp_path / "dump")) == "[0] True\n[0, 1] True\n"
    dump = open_dump(tmp_path / "dump")
    assert dump.steps == [0, 1] and all(rank.complete for rank in dump.all_ranks())
    assert "aten::exp" in {call.op for call in dump.rank(1, 0).calls}
