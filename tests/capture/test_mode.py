"""DumpMode's life: start and close beside `with`, a handle for whoever lost theirs, and an end in spite of failures."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aten_dump
from aten_dump import AtenDumpError, CaptureError, ConfigError, DumpConfig, DumpMode, open_dump
from aten_dump.errors import StoreError
from tests.checkout import ROOT
from tests.devices import modes_on_the_stacks, script_here
from tests.store.memory_sink import MemorySink


def test_start_and_close_without_a_block(tmp_path: Path) -> None:
    dump = DumpMode(DumpConfig(path=tmp_path / "dump"))
    assert DumpMode.current() is None
    assert dump.start() is dump
    assert DumpMode.current() is dump
    torch.ones(2) + 1
    dump.step()
    dump.close()
    dump.close()
    assert DumpMode.current() is None
    assert modes_on_the_stacks() == (0, 0)
    assert any(call.op == "aten::add.Tensor" for call in open_dump(tmp_path / "dump").step(0).rank(0).calls)


def test_a_step_may_have_any_later_number(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", steps="0|100-101")) as dump:
        for number in (100, None, 500):
            torch.ones(2) + 1
            dump.step(number)
        torch.ones(2) + 1
        for wrong in (500, 0, -1):
            with pytest.raises(ConfigError, match=r"step 500 is in progress.*a number above 500"):
                dump.step(wrong)
    assert open_dump(tmp_path / "dump").steps == [0, 100, 101]


def test_a_mode_whose_handle_is_lost_can_be_stopped(tmp_path: Path) -> None:
    def framework() -> None:
        DumpMode(DumpConfig(path=tmp_path / "dump")).start()
        torch.ones(2) * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        framework()
    with pytest.raises(CaptureError, match="is still entered"), DumpMode(DumpConfig(path=tmp_path / "other")):
        pass
    assert DumpMode.current() is not None
    aten_dump.stop_all()
    assert DumpMode.current() is None and modes_on_the_stacks() == (0, 0)
    assert any(call.op == "aten::mul.Tensor" for call in open_dump(tmp_path / "dump").step(0).rank(0).calls)
    aten_dump.stop_all()


def test_a_failed_store_leaves_nothing_entered(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    dump = DumpMode(DumpConfig(path=path, data="full", steps="all"))

    def program() -> None:
        with dump:
            torch.ones(4) + 1
            (path / "step1").write_text("not a folder")
            dump.step()
            torch.ones(4) + 1
            dump.step()

    with pytest.raises(AtenDumpError):
        program()
    assert DumpMode.current() is None and modes_on_the_stacks() == (0, 0)
    with DumpMode(DumpConfig(path=tmp_path / "next")):
        torch.ones(2) + 1
    assert len(open_dump(tmp_path / "next").step(0).rank(0).calls) > 0


def test_a_generator_that_is_closed_has_not_failed(tmp_path: Path) -> None:
    def training() -> Iterator[torch.Tensor]:
        with DumpMode(DumpConfig(path=tmp_path / "dump")):
            while True:
                yield torch.ones(2) + 1

    steps = training()
    next(steps)
    steps.close()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert [note.code for note in rank.notes if note.code == "exception"] == []


class Unprintable(Exception):
    def __str__(self) -> str:
        raise AttributeError("message")


@pytest.mark.parametrize("how", ["block", "decorated"])
def test_an_error_that_has_no_text_ends_the_block_as_it_would_end_the_program(tmp_path: Path, how: str) -> None:
    mode = DumpMode(DumpConfig(tmp_path / "dump"))

    def program() -> None:
        torch.ones(2) + 1
        raise Unprintable

    def block() -> None:
        with mode:
            program()

    with pytest.raises(Unprintable):
        (mode(program) if how == "decorated" else block)()
    mode.close()
    assert DumpMode.current() is None and modes_on_the_stacks() == (0, 0)
    notes = open_dump(tmp_path / "dump").step(0).rank(0).notes
    ended = "step" if how == "decorated" else "block"
    assert [note.message for note in notes if note.code == "exception"] == [f"Unprintable ended the {ended}"]


def test_primitives_are_ops_of_torchs_own(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "dump")):
        torch.ops.prims.add(torch.ones(2), torch.ones(2))
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert rank["Aten.add.0.forward"].op == "prims::add"
    assert [note.code for note in rank.notes if note.code == "custom_ops"] == []


def test_of_two_errors_at_the_end_the_first_is_raised(tmp_path: Path) -> None:
    class Failing(MemorySink):
        def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
            raise StoreError("the step's end failed")

        def close(self) -> None:
            raise StoreError("so did the close")

    dump = DumpMode(DumpConfig(path=tmp_path / "dump"), sink=Failing()).start()
    torch.ones(2) + 1
    with (
        pytest.warns(UserWarning, match="then StoreError: so did the close"),
        pytest.raises(StoreError, match="step's"),
    ):
        dump.close()
    assert DumpMode.current() is None and modes_on_the_stacks() == (0, 0)


def test_a_decorated_function_is_a_step_each_time(tmp_path: Path) -> None:
    mode = DumpMode(DumpConfig(tmp_path / "dump", steps="0|2"))

    @mode
    def train_step(number: int, *, scale: float = 1.0) -> float:
        """Multiply."""
        if number == 2:
            torch.ones(2).exp()
            raise ZeroDivisionError("mine")
        return (torch.ones(1) * number * scale).item()

    assert train_step.__doc__ == "Multiply."
    assert DumpMode.current() is None
    for number in (5, 6):
        assert train_step(number, scale=2.0) == number * 2
        torch.ones(3).exp()  # between the steps
    with pytest.raises(ZeroDivisionError):
        train_step(2)
    assert modes_on_the_stacks() == (0, 0)
    mode.close()
    assert train_step(7) == 7.0
    dump = open_dump(tmp_path / "dump")
    assert dump.steps == [0, 2]
    assert [note.message for note in dump.step(2).rank(0).notes if note.code == "exception"] == [
        "ZeroDivisionError: mine ended the step"
    ]
    first = dump.step(0).rank(0)
    assert "Tensor.item.0.forward" in first and "Torch.ones.1.forward" not in first
    assert "Tensor.exp.0.forward" not in first


def test_a_dump_of_a_decorated_function_ends_with_the_process(tmp_path: Path) -> None:
    script = """
import sys, torch
from aten_dump import DumpConfig, DumpMode
@DumpMode(DumpConfig(sys.argv[1]))
def step():
    torch.ones(2).exp()
step(); step()
"""
    subprocess.run(
        [sys.executable, "-c", script_here(script), str(tmp_path / "dump")], check=True, cwd=ROOT, timeout=100
    )
    dump = open_dump(tmp_path / "dump")
    assert dump.steps == [0, 1]
    assert all(rank.complete for rank in dump.all_ranks())
    assert "coverage" in (tmp_path / "dump" / "run.json").read_text()


def test_models_in_a_list_have_numbers(tmp_path: Path) -> None:
    models = [torch.nn.Linear(1, 2), torch.nn.Sequential(torch.nn.Linear(2, 1))]
    with DumpMode(DumpConfig(tmp_path / "dump"), model=models):
        models[1](models[0](torch.ones(1, 1)))
    calls = open_dump(tmp_path / "dump").step(0).rank(0).calls.filter(kind="module")
    assert [call.module for call in calls] == ["0", "1", "1.0"]


@pytest.mark.parametrize("how", ["pause", "close"])
def test_modes_that_the_engine_has_put_back_after_a_hook_are_there_once_and_go_in_the_end(
    tmp_path: Path, how: str
) -> None:
    """Autograd's engine restores the stacks of modes as they were before a pass, whatever a hook in it took off."""
    around = modes_on_the_stacks()
    x = torch.randn(4, requires_grad=True)
    with DumpMode(DumpConfig(path=tmp_path, data="structure")) as dump:
        y = x.exp()
        y.register_hook(lambda gradient: getattr(dump, how)())
        y.sin().sum().backward()
        if how == "pause":
            dump.resume()
            assert modes_on_the_stacks() == (around[0] + 1, around[1] + 1)
            x.tan()
    assert modes_on_the_stacks() == around
    ops = [call.op for call in open_dump(tmp_path).step(0).rank(0).calls if call.kind == "aten"]
    assert ops.count("aten::tan") == (1 if how == "pause" else 0) and "aten::exp" in ops


@pytest.mark.parametrize("number", [1.5, "2", 10**30, -1, np.float32(3)])
def test_what_is_no_number_of_a_step_is_refused(tmp_path: Path, number: object) -> None:
    with pytest.raises(ConfigError, match=r"DumpMode\.start\("):
        DumpMode(DumpConfig(tmp_path / "d")).start(number)  # type: ignore[arg-type]
    with DumpMode(DumpConfig(tmp_path / "d")) as dump:
        with pytest.raises(ConfigError, match=r"DumpMode\.step\("):
            dump.step(number)  # type: ignore[arg-type]
        torch.ones(1)
    assert open_dump(tmp_path / "d").steps == [0] and DumpMode.current() is None


@pytest.mark.parametrize("number", [np.int64(5), torch.tensor(5)])
def test_a_number_of_another_library_is_a_step_s_number(tmp_path: Path, number: object) -> None:
    with DumpMode(DumpConfig(tmp_path / "d", steps="5")) as dump:
        dump.step(number)  # type: ignore[arg-type]
        torch.ones(1)
    assert open_dump(tmp_path / "d").step(5).rank(0).complete


@pytest.mark.parametrize(
    "say",
    [
        lambda dump: dump.mark(3),
        lambda dump: dump.save(3, torch.ones(1)),
        lambda dump: dump.scope(None).__enter__(),
    ],
)
def test_what_is_no_text_is_refused_and_the_dump_stays_readable(
    tmp_path: Path, say: Callable[[DumpMode], object]
) -> None:
    with DumpMode(DumpConfig(tmp_path / "d")) as dump:
        torch.ones(1)
        with pytest.raises(ConfigError, match="allowed: a text"):
            say(dump)
    assert "Aten.ones.0.forward" in {call.name for call in open_dump(tmp_path / "d").step(0).rank(0).calls}


def test_a_mode_says_what_it_does_and_is_copied_as_itself(tmp_path: Path) -> None:
    """Programs copy what holds it: a model, a trainer's state."""
    mode = DumpMode(DumpConfig(tmp_path / "dump", steps="0|2"))
    said = [repr(mode)]
    with mode:
        holder = copy.deepcopy({"mode": mode, "weight": torch.ones(2)})
        assert holder["mode"] is mode
        said.append(repr(mode))
        mode.pause()
        said.append(repr(mode))
        mode.step()
        said.append(repr(mode))
    said.append(repr(mode))
    head = f"<DumpMode of '{tmp_path / 'dump'}': "
    assert [text.removeprefix(head) for text in said] == [
        "not entered>", "records step 0>", "paused in step 0>", "step 1, which is not selected>", "closed after step 1>",
    ]  # fmt: skip


def test_a_step_that_begins_with_resume_leaves_nothing_before(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")) as dump:
        torch.ones(2).exp()
        dump.step(paused=True)
        torch.ones(2).sin()
        dump.step(5, paused=True)
        dump.resume()
        torch.ones(2).cos()
        dump.step(paused=True)
    found = open_dump(tmp_path / "dump")
    ops = {step: {call.op for call in found.rank(step, 0).calls} for step in found.steps}
    assert sorted(ops) == [0, 5]
    assert "aten::exp" in ops[0] and "aten::cos" in ops[5] and not {"aten::sin", "aten::exp"} & ops[5]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["run.json", "step0", "step5"]


def test_a_pause_may_keep_the_backward_of_what_was_recorded(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")) as dump:
        y = x.exp()
        dump.pause(keep_backward=True)
        y.sin().sum().backward()
        dump.resume()
        x.cos()
        dump.pause(keep_backward=True)
        dump.pause()
        x.tan()
        dump.resume()
        x.tanh()
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    ops = {call.op for call in rank.calls}
    assert {"aten::exp", "ExpBackward0", "aten::cos", "aten::tanh"} <= ops
    assert not {"aten::sin", "SinBackward0", "aten::tan", "aten::sum"} & ops
    exp = next(call for call in rank.calls if call.op == "ExpBackward0")
    assert exp.forward is not None and exp.forward.name == "Aten.exp.0.forward"
    assert "pause(keep_backward=True)" in next(note.message for note in rank.notes if note.code == "selection")
    assert torch.equal(x.grad, torch.ones(3).exp() * torch.ones(3).exp().cos())  # type: ignore[arg-type]


_CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("cpu"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(False),
    "hooks": torch.autograd.graph.save_on_cpu,
}


@pytest.mark.parametrize("name", _CONTEXTS)
@pytest.mark.parametrize("level", ["mix", "aten"])
def test_a_context_that_ends_after_the_last_step_leaves_no_step(tmp_path: Path, name: str, level: str) -> None:
    model = torch.nn.Linear(2, 2)
    config = DumpConfig(path=str(tmp_path / "dump"), level=level)
    with DumpMode(config, model=model) as dump, _CONTEXTS[name]():
        for _ in range(2):
            model(torch.ones(1, 2))
            dump.step()
    assert open_dump(tmp_path / "dump").steps == [0, 1]
