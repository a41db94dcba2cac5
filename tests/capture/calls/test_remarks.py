"""What a program says while it is recorded: tensors under a name, marks, scopes; and that it changes nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import ConfigError, DumpConfig, DumpMode, open_dump
from aten_dump.capture.calls.remarks import Remarks
from tests.capture.bits import assert_same
from tests.capture.same_outcome import outcome
from tests.other_thread import in_thread

Said = Callable[[Callable[[DumpMode], Any]], Any]
Model = tuple[nn.Linear, nn.Linear]


def layers() -> Model:
    return nn.Linear(4, 8), nn.Linear(8, 1)


def train(first: nn.Linear, second: nn.Linear, dump: DumpMode | None) -> list[Tensor]:
    """Saves a leaf, an intermediate that is then written in place, and what needs no gradient; backward runs twice."""
    said = dump or DumpMode(DumpConfig("never entered"))
    x = torch.arange(8.0).reshape(2, 4).requires_grad_()
    with said.scope("front"):
        said.save("x", x)
        hidden = first(x)
        said.save("hidden", hidden)
        said.mark("before the relu")
        active = hidden.relu_()
        said.save("mask", active > 0)
    loss = second(active).square().sum() + x.sum()
    loss.backward(retain_graph=True)
    loss.backward()
    grads = [x.grad, *(p.grad for layer in (first, second) for p in layer.parameters())]
    return [loss, *(grad for grad in grads if grad is not None)]


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """said(body): run `body` with the mode and return the recording of its step."""

    def run(body: Callable[[DumpMode], Any], **config: Any) -> Any:
        with DumpMode(DumpConfig(tmp_path / "dump", **{"data": "tensor", **config})) as dump:
            body(dump)
        return open_dump(tmp_path / "dump").step(0).rank(0)

    return run  # type: ignore[return-value]


def test_the_program_computes_the_same_bits_with_and_without_a_dump(tmp_path: Path) -> None:
    def recorded() -> Any:
        with DumpMode(DumpConfig(tmp_path / "dump", data="full")) as dump:
            return train(*layers(), dump)

    assert outcome(recorded) == outcome(lambda: train(*layers(), None))
    assert not Path("never entered").exists()


def test_values_and_gradients_are_those_that_autograd_computes(said: Said) -> None:
    first, second = layers()
    rank = said(lambda dump: train(first, second, dump))
    x = torch.arange(8.0).reshape(2, 4).requires_grad_()
    hidden = first(x)
    loss = second(hidden.relu()).square().sum() + x.sum()
    expected = dict(zip(("x", "hidden"), torch.autograd.grad(loss, (x, hidden)), strict=True))
    assert list(rank.saved) == ["x", "hidden", "mask"]
    assert_same(hidden, rank.saved["hidden"].tensor())  # as it was before the write
    for name, gradient in expected.items():
        found = rank.saved[name].gradients
        assert len(found) == 2
        for one in found:
            assert_same(gradient, one.tensor())
    assert rank.saved["mask"].gradients == ()
    assert_same(expected["hidden"], rank.tensor("Saved.hidden.0.backward.1.input.0"))
    assert rank["Saved.hidden.0.backward"].forward.name == "Saved.hidden.0.forward"


def test_a_scope_is_a_level_of_the_tree_forward_and_backward(said: Said) -> None:
    rank = said(lambda dump: train(*layers(), dump))
    scope = rank["Scope.front.0.forward"]
    assert [child.name for child in scope.children] == [
        "Saved.x.0.forward",
        "Module.Linear.0.forward",
        "Saved.hidden.0.forward",
        "Mark.before the relu.0.forward",
        "Tensor.relu_.0.forward",
        "Tensor.gt.0.forward",
        "Saved.mask.0.forward",
    ]
    assert scope.parent is None
    assert {child.api.partition(".")[0] for child in rank["Scope.front.0.backward"].children} == {"Tensor", "Module"}
    assert rank["Functional.linear.1.forward"].parent.parent is None
    assert [(mark.text, mark.call.parent) for mark in rank.marks] == [("before the relu", scope)]
    line = next(frame for frame in rank.marks[0].call.stack if frame.user)
    assert (Path(line.file).name, line.function) == ("test_remarks.py", "train")


@pytest.mark.parametrize(
    "config", [{"level": "aten"}, {"level": "module"}, {"ops": ("aten::addmm",)}, {"io": "output"}]
)
def test_no_selection_leaves_them_out(said: Any, config: dict[str, Any]) -> None:
    rank = said(lambda dump: train(*layers(), dump), **config)
    assert rank.saved["x"].gradient.tensor().shape == (2, 4)
    assert rank.saved["hidden"].call.parent.name == "Scope.front.0.forward"
    assert len(rank.marks) == 1


def test_a_name_may_be_used_again(said: Said) -> None:
    def body(dump: DumpMode) -> None:
        for number in range(3):
            dump.save("x", torch.full((1,), float(number)))

    rank = said(body)
    assert {name: saved.tensor().item() for name, saved in rank.saved.items()} == {"x": 0, "x.1": 1, "x.2": 2}


def test_nothing_is_kept_alive_and_no_hook_stays(tmp_path: Path) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with DumpMode(DumpConfig(tmp_path / "dump")) as dump:
        dump.save("leaf", leaf)
        tensor = leaf * 2
        dump.save("tensor", tensor)
        gone = weakref.ref(tensor)
        del tensor
        gc.collect()
        assert gone() is None
        recorder = dump._watch.recorder
        assert recorder is not None and isinstance(recorder.remarks, Remarks)
        kept = leaf * 3
        dump.save("kept", kept)
        dump.step()
        calls: list[Any] = []
        kept.sum().backward()  # in a step in which it was not saved
        calls.extend(leaf._backward_hooks or ())
        assert calls == []
    assert open_dump(tmp_path / "dump").step(0).rank(0).saved["kept"].gradients == ()
    assert open_dump(tmp_path / "dump").step(1).rank(0).saved == {}


def test_where_nothing_is_recorded_nothing_happens(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", steps="1")) as dump:
        first = train(*layers(), dump)
        dump.pause()
        assert len(first) == 6
        with dump.scope("unseen"):
            dump.mark("unseen")
    assert not (tmp_path / "dump" / "step0").exists()
    with pytest.raises(ConfigError, match=r"DumpMode.save\('x'\) got a float; allowed: a torch.Tensor"):
        dump.save("x", 3.0)  # type: ignore[arg-type]


def _fail() -> None:
    torch.ones(1).exp()
    raise ZeroDivisionError("mine")


def test_a_scope_that_an_error_leaves_says_so_and_one_that_outlives_its_step_is_closed(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")) as dump:
        with pytest.raises(ZeroDivisionError), dump.scope("failing"):
            _fail()
        with dump.scope("long"):
            torch.ones(1).exp()
            dump.step()
            torch.ones(1).sin()
    first, second = (open_dump(tmp_path / "dump").step(step).rank(0) for step in (0, 1))
    assert first["Scope.failing.0.forward"].error == "ZeroDivisionError: mine"
    assert "Scope.long.0.forward" in first
    assert second["Torch.ones.0.forward"].parent is None


def test_scopes_of_tasks_that_take_turns_end_each_for_itself(said: Said) -> None:
    async def task(dump: DumpMode, name: str, turns: int) -> None:
        with dump.scope(name):
            for _ in range(turns):
                torch.ones(2).exp()
                await asyncio.sleep(0)

    async def both(dump: DumpMode) -> None:
        await asyncio.gather(task(dump, "short", 1), task(dump, "long", 3))

    found: list[Any] = []
    # A browser that another test of this process has opened keeps a loop running on the main thread.
    in_thread(lambda: found.append(said(lambda dump: asyncio.run(both(dump)))))
    [rank] = found
    scopes = [rank[f"Scope.{name}.0.forward"] for name in ("short", "long")]
    assert [scope.error for scope in scopes] == [None, None]
    assert len([call for call in scopes[1].children if call.name.startswith("Tensor.exp")]) == 3


def test_a_scope_whose_backward_fails_says_so_and_leaves_no_node_open(said: Said) -> None:
    def hook(gradient: Tensor) -> None:
        raise ZeroDivisionError("mine")

    def body(dump: DumpMode) -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.register_hook(hook)
        with pytest.raises(ZeroDivisionError), dump.scope("failing"):
            y.sin().sum().backward()
        torch.ones(1).cos()

    rank = said(body)
    assert rank["Scope.failing.0.forward"].error == "ZeroDivisionError: mine"
    assert rank["Tensor.cos.0.forward"].parent is None


def test_scopes_around_a_step_end_with_it_and_have_not_failed(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")) as dump, dump.scope("epoch"), dump.scope("batches"):
        for _ in range(2):
            torch.ones(1).exp()
            dump.step()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    found = [rank[f"Scope.{name}.0.forward"] for name in ("epoch", "batches")]
    assert [(scope.error, scope.finished) for scope in found] == [(None, True)] * 2 and rank.missing == []


def test_under_torch_func_only_the_value_is_asked_for(said: Said) -> None:
    def body(dump: DumpMode) -> None:
        def function(x: Tensor) -> Tensor:
            dump.save("inside", x)
            return (x * x).sum()

        assert torch.func.grad(function)(torch.ones(2)).tolist() == [2.0, 2.0]

    assert len(said(body).saved) <= 1
