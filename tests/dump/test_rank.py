from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.dump import RankDump
from aten_dump.errors import MissingDataError
from tests.dump.scenario import Scenario


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("Aten.addmm.0.forward.output.0", "y0"),
        ("Aten.addmm.0.forward.input.1", "x"),
        ("Aten.addmm.0.forward.input.mat1", "x"),
        ("Aten.addmm.0.forward.input.2", "wt"),
        ("Aten.relu_.0.forward.input.0", "y0"),
        ("Aten.relu_.0.forward.mutated.self", "y1"),
        ("Aten.relu_.0.forward.output.0", "y1"),
        ("Functional.linear.0.backward.output.1", "grad_w"),
        ("Aten._foreach_add_.0.optimizer.input.0.1", "bias"),
        ("Aten._foreach_add_.0.optimizer.input.other.0", "grad_w"),
    ],
)
def test_tensor_by_name(rank: RankDump, scenario: Scenario, name: str, which: str) -> None:
    expected = scenario.tensors[which]
    found = rank.tensor(name)
    assert torch.equal(found, expected)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert rank.value(name).id == scenario.ids[which]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Aten.addmm.0.forward.input.7",
            r"no 'input.7' in call Aten.addmm.0.*its tensors are input.0, input.1",
        ),
        ("Aten.addmm.0.forward.result.0", "its tensors are input.0"),
        ("Aten.addmm.0.forward.input.alpha", "is 2, not a tensor"),
        ("Aten.addmm.0.forward", "is a call, not a tensor"),
        ("Aten._foreach_add_.0.optimizer.input.0", "a tree of several values"),
        ("Functional.linear.0.backward.output.2", "is None, not a tensor"),
        ("Aten.addmm.0.forward.output.self", "no 'output.self' in call"),  # names are those of arguments
        ("Aten.addm.0.forward.output.0", "no call .*nearest: "),
        ("nonsense", "no call 'nonsense'"),
        ("Aten.addmm.0.forward.output", "its tensors are|a tree of several"),
    ],
)
def test_a_wrong_tensor_name(rank: RankDump, name: str, message: str) -> None:
    with pytest.raises(MissingDataError, match=message):
        rank.tensor(name)


def test_gradients_are_of_the_last_backward(rank: RankDump, scenario: Scenario) -> None:
    assert list(rank.gradients) == ["net.fc.weight"]
    assert torch.equal(rank.gradients["net.fc.weight"].tensor(), scenario.tensors["grad_w"])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_opened_anew_and_closes_no_file_of_the_other(
    rank: RankDump, scenario: Scenario, copied: Callable[[Any], Any]
) -> None:
    name, expected = "Aten.addmm.0.forward.output.0", scenario.tensors["y0"]
    assert torch.equal(rank.tensor(name), expected)
    other = copied(rank)
    assert other == rank and torch.equal(other.tensor(name), expected)
    shards = rank.source._shards
    assert shards is not None
    with pytest.raises(TypeError, match="an open file is not copied"):
        copied(next(iter(shards._files.values())))
    del other
    gc.collect()
    assert torch.equal(rank.anew().tensor(name), expected) and torch.equal(rank.tensor(name), expected)


@pytest.mark.parametrize("name", [0, None, 1.5, ("Aten.addmm.0.forward",)])
def test_what_is_no_text_names_no_call(rank: RankDump, name: Any) -> None:
    assert name not in rank
    for asked in (rank.__getitem__, rank.tensor, rank.value):
        with pytest.raises(MissingDataError, match=r"names are texts; `rank\.calls\[0\]`"):
            asked(name)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_every_handle_is_copied_as_its_place_in_the_recording(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")) as mode:
        mode.save("x", torch.arange(4.0) * 2)
        mode.mark("here")
    dump = open_dump(tmp_path / "dump")
    rank = dump.rank(0, 0)
    rank.values[0].tensor()
    call = next(call for call in rank.calls if call.kind == "aten")
    assert copied(dump).rank(0, 0)[call.name] == call
    assert copied(dump.step(0)).ranks == [0] and copied(rank) == rank
    assert copied(call) == call and copied(call).name == call.name
    assert copied(rank.values[0]) == rank.values[0]
    assert list(copied(rank.calls)) == list(rank.calls) and list(copied(rank.values)) == list(rank.values)
    assert copied(rank.saved)["x"].tensor().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert [mark.text for mark in copied(rank.marks)] == ["here"]
    assert copied(call.all_values())[0][1].tensor().tolist() == call.all_values()[0][1].tensor().tolist()
