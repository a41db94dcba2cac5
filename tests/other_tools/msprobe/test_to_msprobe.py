"""dump.json, construct.json and stack.json as msprobe has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.other_tools.msprobe.to_msprobe import name_in_msprobe, write
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.export.made import Y, chosen, small_step

KINDS = ("api", "module")


def written(root: Path, out: Path, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    write(chosen(root, kinds), out)
    return {path.stem: json.loads(path.read_text()) for path in (out / "step0" / "rank0").glob("*.json")}


def test_names_are_those_of_msprobe(tmp_path: Path) -> None:
    names = {call.id: name_in_msprobe(call) for call in open_dump(small_step(tmp_path / "dump")).step(0).rank(0).calls}
    assert (names[1], names[2]) == ("Module.fc.Linear.forward.0", "Functional.linear.0.forward")
    assert (names[7], names[5]) == ("Module.fc.Linear.backward.0", "Functional.linear.0.backward")


def test_recompute_and_optimizer_are_forward_there(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    for number, phase in enumerate(("recompute", "optimizer"), 1):
        b.call(b.op("api", "torch.add", "Torch", "add"), id=number, n=number, phase=phase)
    root = b.finish()
    names = [name_in_msprobe(call) for call in open_dump(root).step(0).rank(0).calls]
    assert names == ["Torch.add.1.forward", "Torch.add.2.forward"]
    construct = written(root, tmp_path / "out")["construct"]
    assert construct == {"Torch.add.1.forward": None, "optimizer": None, "Torch.add.2.forward": "optimizer"}


def test_an_entry_holds_arguments_keywords_and_results(tmp_path: Path) -> None:
    found = written(small_step(tmp_path / "dump"), tmp_path / "out")
    data = found["dump"]["data"]
    entry = data["Module.fc.Linear.forward.0"]
    assert list(entry) == ["input_args", "input_kwargs", "output"]
    assert entry["input_kwargs"]["mask"]["data_name"] == "Module.fc.Linear.forward.0.input.mask.pt"
    y, nothing = entry["output"]
    assert nothing is None
    assert y == {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [1, 2], "Max": 3.0, "Min": -4.0, "Mean": -0.5,
        "Norm": 5.0, "requires_grad": False, "data_name": "Module.fc.Linear.forward.0.output.0.pt",
    }  # fmt: skip
    file = tmp_path / "out" / "step0" / "rank0" / "dump_tensor_data" / y["data_name"]
    assert torch.equal(torch.load(file, weights_only=True), Y)
    assert list(data["Functional.linear.0.backward"]) == ["input", "output"]
    assert found["dump"]["level"] == "mix"


@pytest.mark.parametrize(("kinds", "level"), [(("module",), "L0"), (("api",), "L1"), (KINDS, "mix")])
def test_the_level_is_that_of_the_kinds(tmp_path: Path, kinds: tuple[str, ...], level: str) -> None:
    assert written(small_step(tmp_path / "dump"), tmp_path / "out", kinds)["dump"]["level"] == level


def test_where_a_call_ran_is_told_as_far_as_it_is_there(tmp_path: Path) -> None:
    root = small_step(tmp_path / "dump")
    construct = written(root, tmp_path / "both")["construct"]
    assert construct == {
        "Module.fc.Linear.forward.0": None,
        "Functional.linear.0.forward": "Module.fc.Linear.forward.0",
        "Functional.linear.0.backward": "Module.fc.Linear.backward.0",
        "Module.fc.Linear.backward.0": None,
    }
    assert set(written(root, tmp_path / "api", ("api",))["construct"].values()) == {None}, "its module is not there"


def test_a_second_backward_of_a_call_has_no_name_there(tmp_path: Path) -> None:
    calls = chosen(small_step(tmp_path / "dump"), KINDS)
    write(calls, tmp_path / "out")
    assert calls.left_out["further backwards of one call, for which msprobe has no name"] == 1


def test_gradients_of_parameters_are_their_module_s(tmp_path: Path) -> None:
    root = small_step(tmp_path / "dump")
    data = written(root, tmp_path / "out")["dump"]["data"]
    (gradient,) = data["Module.fc.Linear.parameters_grad.0"]["weight"]
    assert gradient["shape"] == [1, 3] and gradient["data_name"] == "Module.fc.Linear.parameters_grad.0.weight.pt"
    assert not any("parameters_grad" in name for name in written(root, tmp_path / "api", ("api",))["dump"]["data"])


def test_calls_of_one_place_share_a_stack(tmp_path: Path) -> None:
    stacks = written(small_step(tmp_path / "dump"), tmp_path / "out")["stack"]
    by_name = {name: frames for names, frames in stacks.values() for name in names}
    assert by_name["Functional.linear.0.forward"] == [
        "File /home/me/train.py, line 7, in forward, \n ", "File /lib/torch/nn.py, line 9, in __call__, \n ",
    ]  # fmt: skip
    assert by_name["Module.fc.Linear.forward.0"] == []


@pytest.mark.parametrize(
    ("data", "task", "md5"),
    [("structure", "structure", False), ("statistic", "statistics", True), ("full", "tensor", False)],
)
def test_the_task_is_that_of_what_was_recorded(tmp_path: Path, data: str, task: str, md5: bool) -> None:
    found = written(small_step(tmp_path / "dump", config={"data": data}), tmp_path / "out")["dump"]
    assert found["task"] == task and found["dump_data_dir"] == ("dump_tensor_data" if task == "tensor" else None)
    if task == "structure":
        assert found["data"] == {}
    else:
        assert ("md5" in found["data"]["Functional.linear.0.forward"]["output"][0]) is md5


def test_literals_say_their_type(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    args = [True, 3, 0.5, "sum", [r.TREE_LIST, 1, 2], [r.TREE_DTYPE, "bfloat16"], [r.TREE_COMPLEX, 1.0, 2.0]]
    b.call(b.op("api", "torch.add", "Torch", "add"), args=args, outputs=value(b.value(torch.ones(1))))
    entry = written(b.finish(), tmp_path / "out")["dump"]["data"]["Torch.add.0.forward"]["input_args"]
    assert entry == [
        {"type": "bool", "value": True}, {"type": "int", "value": 3}, {"type": "float", "value": 0.5},
        {"type": "str", "value": "sum"}, [{"type": "int", "value": 1}, {"type": "int", "value": 2}],
        {"type": "torch.dtype", "value": "torch.bfloat16"}, {"type": "complex", "value": "(1+2j)"},
    ]  # fmt: skip
