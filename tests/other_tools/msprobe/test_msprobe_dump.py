"""Tables of msprobe made by hand: folders, tasks, names of methods, literals that JSON can hold and msgpack cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aten_dump.dump import RankDump, open_dump


def tables(folder: Path, data: dict[str, Any] | None = None, **head: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L1", "data": data or {}, **head}))
    return folder


def read(path: Path, data: dict[str, Any], **head: Any) -> RankDump:
    tables(path / "step0" / "rank0", data, **head)
    return open_dump(path).rank(0, 0)


def test_processes_without_ranks_are_counted(tmp_path: Path) -> None:
    for name in ("proc12", "proc345", "proc6"):
        tables(tmp_path / "step3" / name)
    assert (open_dump(tmp_path).steps, open_dump(tmp_path).ranks) == ([3], [0, 1, 2])


@pytest.mark.parametrize(("folder", "step"), [("dump", 0), ("step4", 4)])
def test_a_step_can_be_opened_alone(tmp_path: Path, folder: str, step: int) -> None:
    tables(tmp_path / folder / "rank2")
    dump = open_dump(tmp_path / folder)
    assert (dump.steps, dump.ranks) == ([step], [2])


@pytest.mark.parametrize(
    ("task", "data"), [("tensor", "tensor"), ("statistics", "statistic"), ("structure", "structure"), ("md5", "statistic")]
)  # fmt: skip
@pytest.mark.parametrize(("given", "level"), [("L0", "module"), ("L1", "api"), ("mix", "mix")])
def test_a_task_and_a_level_are_ours(tmp_path: Path, task: str, data: str, given: str, level: str) -> None:
    config = read(tmp_path, {}, task=task, level=given).header.config
    assert (config["data"], config["level"]) == (data, level)


@pytest.mark.parametrize(
    ("api", "method"),
    [
        ("__add__", "add"), ("__iadd__", "add_"), ("__radd__", "radd"), ("__imul__", "mul_"), ("__index__", "index"), ("__invert__", "__invert__"),
        ("__getitem__", "__getitem__"), ("add_", "add_"), ("__matmul__", "matmul"),
    ],
)  # fmt: skip
def test_operators_are_the_methods_they_stand_for(tmp_path: Path, api: str, method: str) -> None:
    call = read(tmp_path, {f"Tensor.{api}.0.forward": {"input_args": [], "output": []}})[f"Tensor.{api}.0.forward"]
    assert call.op.rpartition(".")[2] == method


@pytest.mark.parametrize("number", [0, -(1 << 63), (1 << 64) - 1, 1 << 64, -(1 << 63) - 1])
def test_integers_that_no_index_can_hold_are_text(tmp_path: Path, number: int) -> None:
    data = {"Torch.full.0.forward": {"input_args": [{"type": "int", "value": number}], "output": []}}
    [found] = read(tmp_path, data)["Torch.full.0.forward"].inputs[0]
    fits = -(1 << 63) <= number < 1 << 64
    assert found == number if fits else str(number) in str(found)


def test_tensors_without_bytes_are_row_major(tmp_path: Path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3, 4], "requires_grad": False}
    data = {"Torch.exp.0.forward": {"input_args": [tensor], "output": [{**tensor, "shape": [5, 0, 2]}]}}
    call = read(tmp_path, data)["Torch.exp.0.forward"]
    assert (call.inputs[0][0].stride, call.outputs.stride) == ((12, 4, 1), (2, 2, 1))
