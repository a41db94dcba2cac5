"""Tables of msprobe, entry by entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import RankDump, open_dump
from aten_dump.errors import FormatError
from aten_dump.other_tools.msprobe.msprobe_dump import find, read

TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2],
    "Max": 3.0,
    "Min": -1.0,
    "Mean": 1,
    "Norm": 3.2,
}


@pytest.fixture
def dump(tmp_path: Path) -> Any:
    """dump(data, construct=..., stack=..., **head): what is read of these tables."""

    def make(data: dict[str, Any], *, construct: Any = None, stack: Any = None, **head: Any) -> RankDump:
        folder = tmp_path / "step0" / "rank0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dump.json").write_text(json.dumps({"task": "statistics", "level": "mix", **head, "data": data}))
        for name, content in (("construct", construct), ("stack", stack)):
            (folder / f"{name}.json").unlink(missing_ok=True)
            if content is not None:
                (folder / f"{name}.json").write_text(json.dumps(content))
        return open_dump(tmp_path).step(0).rank(0)

    return make


def entry(*given: Any, output: Any = None, **more: Any) -> dict[str, Any]:
    return {"input_args": list(given), "input_kwargs": {}, "output": [] if output is None else output, **more}


# -- where they are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "root", "found"),
    [
        (["step0/rank0", "step0/rank1", "step2/rank0", "step9/none"], "", {0: [0, 1], 2: [0]}),
        (["step3/rank0"], "step3", {3: [0]}),
        (["step3/rank2"], "step3/rank2", {3: [2]}),
        (["rank1"], "", {0: [1]}),
        (["step0/rank"], "", {0: [0]}),
        (["step0/proc77", "step0/proc99"], "", {0: [0, 1]}),
        (["step0/device3", "step0/rank_5"], "", {0: [3, 5]}),
        (["steps/rank0", "step0/ranks"], "", {}),
        (["out"], "out", {0: [0]}),
    ],
)
def test_folders_of_steps_and_ranks(tmp_path: Path, folders: list[str], root: str, found: dict[int, list[int]]) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "dump.json").write_text("{}")
    places = find(tmp_path / root)
    assert {step: sorted(ranks) for step, ranks in places.items()} == found
    assert all((path / "dump.json").is_file() for ranks in places.values() for path in ranks.values())


def test_debug_tables_count_and_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "stack.json").write_text("{}")
    assert find(tmp_path) == {}
    (tmp_path / "rank0" / "debug.json").write_text("{}")
    assert find(tmp_path) == {0: {0: tmp_path / "rank0"}}


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours", "op", "kind"),
    [
        ("Functional.linear.0.forward", "Functional.linear.0.forward", "torch.nn.functional.linear", "api"),
        ("Torch.relu.3.backward", "Torch.relu.3.backward", "torch.relu", "api"),
        ("Tensor.__add__.0.forward", "Tensor.__add__.0.forward", "torch.Tensor.add", "api"),
        ("Tensor.__iadd__.0.forward", "Tensor.__iadd__.0.forward", "torch.Tensor.add_", "api"),
        ("Tensor.__truediv__.0.forward", "Tensor.__truediv__.0.forward", "torch.Tensor.div", "api"),
        ("Tensor.__itruediv__.0.forward", "Tensor.__itruediv__.0.forward", "torch.Tensor.div_", "api"),
        ("Tensor.__floordiv__.0.forward", "Tensor.__floordiv__.0.forward", "torch.Tensor.floor_divide", "api"),
        ("Tensor.__getitem__.0.forward", "Tensor.__getitem__.0.forward", "torch.Tensor.__getitem__", "api"),
        ("Tensor.__invert__.0.forward", "Tensor.__invert__.0.forward", "torch.Tensor.__invert__", "api"),
        ("Tensor.item.0.forward", "Tensor.item.0.forward", "torch.Tensor.item", "api"),
        ("NPU.npu_rms_norm.0.forward", "NPU.npu_rms_norm.0.forward", "torch_npu.npu_rms_norm", "api"),
        ("Mine.thing.0.forward", "Mine.thing.0.forward", "Mine.thing", "api"),
        ("Module.a.fc.Linear.forward.0", "Module.a.fc.0.forward", "Linear", "module"),
        ("Cell.a.fc.Dense.backward.2", "Module.a.fc.2.backward", "Dense", "module"),
    ],
)
def test_names_of_calls(dump: Any, name: str, ours: str, op: str, kind: str) -> None:
    call = dump({name: entry()})[ours]
    assert (call.op, call.kind) == (op, kind)
    assert call.module == ("a.fc" if kind == "module" else "")


def test_names_that_are_none_are_told(dump: Any) -> None:
    rank = dump({"what": entry(), "Torch.relu.0.forward": entry(), "Torch.relu.x.forward": entry()})
    assert [call.name for call in rank.calls] == ["Torch.relu.0.forward"]
    (note,) = rank.notes
    assert note.count == 2 and note.message.endswith(": what, Torch.relu.x.forward")


def test_what_a_call_ran_in(dump: Any) -> None:
    names = ["Torch.relu.0.forward", "Module.fc.Linear.forward.0", "Module.net.Net.forward.0"]
    construct = dict(zip(names, [*names[1:], None], strict=True))
    rank = dump({name: entry() for name in names}, construct=construct)
    assert [call.name for call in rank.calls] == ["Module.net.0.forward", "Module.fc.0.forward", "Torch.relu.0.forward"]
    relu = rank["Torch.relu.0.forward"]
    assert relu.parent.name == "Module.fc.0.forward" and relu.parent.parent.name == "Module.net.0.forward"
    assert (relu.module, relu.parent.module) == ("fc", "fc")


def test_what_only_construct_knows_is_a_call_too(dump: Any) -> None:
    rank = dump({"Torch.relu.0.forward": entry()}, construct={"Torch.relu.0.forward": "Module.a.A.forward.0"})
    assert rank["Torch.relu.0.forward"].parent.name == "Module.a.0.forward"


def test_parents_in_a_circle_end(dump: Any) -> None:
    names = ["Torch.a.0.forward", "Torch.b.0.forward"]
    rank = dump({name: entry() for name in names}, construct={names[0]: names[1], names[1]: names[0]})
    assert sorted(call.name for call in rank.calls) == names


@pytest.mark.parametrize("how", ["construct", "stack"])
def test_the_optimizer_has_a_phase(dump: Any, how: str) -> None:
    name = "Tensor.add_.0.forward"
    if how == "construct":
        rank = dump({name: entry()}, construct={name: "optimizer"})
    else:
        line = "File /venv/lib/python3.11/site-packages/torch/optim/sgd.py, line 7, in step, \n x.add_(y)"
        rank = dump({name: entry()}, stack={"0": [[name], [line]]})
    assert [call.name for call in rank.calls] == ["Tensor.add_.0.optimizer"]


def test_a_backward_belongs_to_its_forward(dump: Any) -> None:
    names = ("Torch.relu.0.forward", "Torch.relu.0.backward", "Module.a.A.forward.0", "Module.a.A.backward.0")
    rank = dump({name: entry() for name in names})
    assert [c.name for c in rank["Torch.relu.0.forward"].backward] == ["Torch.relu.0.backward"]
    assert [c.name for c in rank["Module.a.0.forward"].backward] == ["Module.a.0.backward"]


def test_frames_of_the_users_own(dump: Any) -> None:
    lines = [
        "File /venv/lib/python3.11/site-packages/torch/nn/functional.py, line 3, in relu, \n return r",
        "File /home/me/train.py, line 42, in main, \n y = relu(x)",
        "no frame",
    ]
    call = dump({"Torch.relu.0.forward": entry()}, stack={"0": [["Torch.relu.0.forward"], lines]})[
        "Torch.relu.0.forward"
    ]
    assert [(f.line, f.function, f.user) for f in call.stack] == [(3, "relu", False), (42, "main", True)]
    assert (call.source.file, call.source.line) == ("/home/me/train.py", 42)


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "held"),
    [
        (None, None),
        ({"type": "int", "value": 3}, 3),
        ({"type": "float", "value": 0.5}, 0.5),
        ({"type": "bool", "value": True}, True),
        ({"type": "str", "value": "mean"}, "mean"),
        ({"type": "torch.dtype", "value": "torch.float16"}, torch.float16),
        ({"type": "torch.device", "value": "cpu"}, torch.device("cpu")),
        ({"type": "torch.Size", "value": [2, 3]}, [2, 3]),
        ([{"type": "int", "value": 3}, None], [3, None]),
        ({"a": {"type": "int", "value": 3}}, {"a": 3}),
    ],
)
def test_arguments(dump: Any, item: Any, held: Any) -> None:
    call = dump({"Torch.relu.0.forward": entry(item)})["Torch.relu.0.forward"]
    assert call.inputs[0][0] == held


def test_numbers_of_any_size_and_objects(dump: Any) -> None:
    given = [{"type": "int", "value": 1 << 80}, {"type": "mine.Thing"}, {"type": "slice", "value": [None, 3]}]
    call = dump({"Torch.relu.0.forward": entry(*given)})["Torch.relu.0.forward"]
    large, thing, piece = call.inputs[0]
    assert str(large.text) == str(1 << 80) and thing.type_name == "mine.Thing" and piece.text == "slice([None, 3])"


def test_tensors_have_what_the_table_says(dump: Any) -> None:
    known = {**TENSOR, "requires_grad": True, "md5": "0xabcdef01"}
    call = dump({"Torch.relu.0.forward": entry(known, output=[TENSOR])})["Torch.relu.0.forward"]
    (value,) = call.inputs[0]
    assert (value.dtype, tuple(value.shape), value.requires_grad, value.hash) == (torch.float32, (2,), True, "abcdef01")
    assert dict(value.stats) == {"max": 3.0, "min": -1.0, "mean": 1, "l2norm": 3.2}
    assert call.outputs.hash is None and not call.outputs.requires_grad and not call.outputs.has_data


def test_several_results_and_none(dump: Any) -> None:
    rank = dump({"Torch.max.0.forward": entry(output=[TENSOR, TENSOR]), "Torch.a.0.forward": {"input": TENSOR}})
    assert len(rank["Torch.max.0.forward"].outputs) == 2
    single = rank["Torch.a.0.forward"]
    assert len(single.inputs[0]) == 1 and not single.outputs


def test_gradients_of_an_apis_node_never_pair_with_those_of_arguments(dump: Any) -> None:
    tables = {"Torch.add.0.backward": {"input": [TENSOR], "output": [TENSOR, TENSOR]}}
    assert list(dump(tables)["Torch.add.0.backward"].outputs) == ["edge0", "edge1"]
    ours = dump(tables, recorder="aten_dump")["Torch.add.0.backward"].outputs
    assert len(ours) == 2 and not isinstance(ours, dict)


def test_parameters_gradients_and_saved_tensors(dump: Any) -> None:
    rank = dump(
        {
            "Module.fc.Linear.forward.0": entry(TENSOR, parameters={"weight": TENSOR}),
            "Module.fc.Linear.parameters_grad": {"weight": [TENSOR], "bias": [None]},
            "hidden.0.debug": TENSOR,
            "hidden_grad.0.debug": TENSOR,
        }
    )
    assert list(rank["Parameters.fc.0.forward"].outputs) == ["weight"]
    assert list(rank.gradients) == ["fc.weight"]
    assert rank["Saved.hidden.0.forward"].outputs.shape == (2,)
    assert rank["Saved.hidden.0.backward"].phase == "backward"


@pytest.mark.parametrize(
    ("task", "level", "config"),
    [
        ("tensor", "mix", ("tensor", "mix")),
        ("statistics", "L0", ("statistic", "module")),
        ("structure", "L1", ("structure", "api")),
        ("overflow_check", "L2", ("statistic", "mix")),
    ],
)
def test_what_it_says_of_its_config(dump: Any, task: str, level: str, config: tuple[str, str]) -> None:
    found = dump({}, task=task, level=level).config
    assert (found["data"], found["level"]) == config and found["source"] == "msprobe"


@pytest.mark.parametrize("given", [[3], ["x"], [True], [[3]]])
def test_arguments_of_another_kind(dump: Any, given: list[Any]) -> None:
    with pytest.raises(FormatError, match="null, a list or an object is expected"):
        dump({"Torch.relu.0.forward": entry(*given)}).calls


def test_it_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(json.dumps({"data": {"Torch.relu.0.forward": entry(TENSOR)}}))
    made = read(tmp_path, 1, 2, 4)
    assert (made.header.step, made.header.rank, made.header.world_size, made.calls) == (1, 2, 4, 1)
