"""What is read of a program's own words, and of one module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpMode, MissingDataError
from aten_dump.dump.named_by_program import Mark, RecordedModule, SavedTensor
from tests.dump.building import Builder, value
from tests.recorded_step import record

__all__ = ["record"]


def test_a_module_by_its_path(record: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    x = torch.ones(1, 2)
    seen: dict[str, torch.Tensor] = {}
    model[1].register_forward_hook(lambda module, given, result: seen.update(result=result.detach()))

    def body() -> None:
        model(x).sum().backward()
        model(x * 2)

    rank = record(body, model, data="tensor")
    found = rank.module("1")
    assert isinstance(found, RecordedModule)
    assert [call.name for call in found.calls] == ["Module.1.0.forward", "Module.1.1.forward"]
    assert torch.equal(found.calls[1].outputs.tensor(), seen["result"])
    assert found.outputs == found.calls[0].outputs
    assert found.inputs[0][0].shape == (1, 3)
    assert found.gradients[0].tensor().tolist() == [[1.0]]
    assert rank.module("").inputs[0][0].tensor().equal(x)
    assert rank.module("1.1").path == "1.1"
    with pytest.raises(
        MissingDataError, match=r"no call of a module 'layer4' in .*; it has '', '0', '1', '1.0', '1.1'"
    ):
        rank.module("layer4")


def test_ten_paths_of_many_are_named(record: Callable[..., Any]) -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(11)))
    rank = record(lambda: model(torch.ones(1)), model)
    with pytest.raises(MissingDataError, match=r"it has '', '0', .*, '8' and 2 more$"):
        rank.module("other")


def test_without_modules_the_level_is_named(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.ones(2).exp(), level="aten")
    with pytest.raises(MissingDataError, match='calls of modules with level "mix" or "module" only'):
        rank.module("layer4")
    assert rank.saved == {} and rank.marks == []


def test_names_with_dots_are_read_as_they_were_given(tmp_path: Any) -> None:
    builder = Builder(tmp_path / "dump")
    save, mark = (builder.op("api", f"aten_dump.{what}", *name) for what, *name in
                  (("save", "Saved", "Saved.a.1"), ("mark", "Mark", "Mark. x")))  # fmt: skip
    builder.call(save, args=[value(builder.value(torch.ones(2)))])
    builder.call(mark)
    from aten_dump import open_dump

    rank = open_dump(builder.finish()).step(0).rank(0)
    assert list(rank.saved) == ["Saved.a.1"]
    assert isinstance(rank.saved["Saved.a.1"], SavedTensor)
    assert rank.saved["Saved.a.1"].tensor().tolist() == [1.0, 1.0]
    assert rank.marks == [Mark("Mark. x", rank.calls[1])]


def test_a_name_that_is_not_there_is_told_with_those_that_are(record: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    def body() -> None:
        DumpMode.current().save("hidden", model[0](torch.ones(1, 2)))
        model(torch.ones(1, 2)).sum().backward()

    rank = record(body, model, data="tensor")
    with pytest.raises(
        MissingDataError, match=r"^no gradient in .* \(step 0, rank 0\) is named '1.wieght'; nearest: 1.weight"
    ):
        rank.gradients["1.wieght"]
    with pytest.raises(KeyError, match=r"^no saved tensor in .* is named 3; there are: hidden$"):
        rank.saved[3]
    assert rank.gradients.get("1.wieght") is None and "1.wieght" not in rank.gradients
    rank = record(lambda: torch.ones(2).add(1))
    with pytest.raises(
        KeyError, match=r"there is none: they are taken from the modules in DumpMode\(\.\.\., model=model\)"
    ):
        rank.gradients["weight"]
