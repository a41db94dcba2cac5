"""The recorder of one step: parameters' gradients, memory that nothing is known of, and an end that leaves nothing."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import _HookMixin

from aten_dump import DumpConfig, DumpMode, StoreError
from aten_dump.capture.autograd.node_runs import NodeRuns
from aten_dump.capture.naming.call_name import API, CallName
from aten_dump.capture.naming.interned_tables import Interner
from aten_dump.capture.recorder import StepRecorder, Surroundings, Watch
from aten_dump.capture.step.collectives import Flight
from aten_dump.capture.step.live_optimizers import LiveOptimizers
from aten_dump.capture.step.module_paths import ModulePaths
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.step.step import CUT_OFF
from aten_dump.capture.torch_internals import node_hooks
from aten_dump.capture.torch_internals.mode_stack import Modes
from aten_dump.store import records as r
from tests.capture.intercept.modes import Asked, Passing
from tests.capture.step.steps import Told
from tests.models import build, train_step
from tests.store.memory_sink import MemorySink


class Recording:
    """A recorder on a sink in memory, without modes on the stacks."""

    def __init__(self, model: nn.Module | None = None, **config: Any) -> None:
        self.sink, self.told = MemorySink(), Told()
        paths = ModulePaths(model)
        paths.refresh()
        around = Surroundings(paths, LiveOptimizers(), Modes(Asked(), Passing()), self.told)
        chosen = DumpConfig(path="unused", **{"stacks": False, "data": "structure", **config})
        self.recorder = StepRecorder(chosen, self.sink, around)

    def value(self, tensor: torch.Tensor) -> int:
        return self.recorder.values.value_of(tensor, False)

    def is_defined(self, tensor: torch.Tensor) -> bool:
        state = self.recorder.values.storages.state_of(tensor)
        assert state is not None
        return state.written is None


def test_gradients_of_parameters_are_named_with_the_call_that_accumulated_them() -> None:
    model = nn.Linear(2, 1)
    recording = Recording(model)
    weight, bias = model.weight, model.bias
    weight.grad = torch.ones(1, 2)
    stranger = nn.Parameter(torch.ones(1))
    recording.recorder._record_gradients({id(weight): 7, id(bias): 8, id(stranger): 9})
    (gradient,) = recording.sink.of(r.GRADIENT)
    assert (gradient.name, gradient.call, gradient.value) == ("weight", 7, recording.value(weight.grad))
    recording.recorder.close()


@pytest.mark.parametrize(("io", "kept"), [("all", 1), ("output", 1), ("input", 0)])
def test_the_data_of_gradients_is_that_of_results(io: str, kept: int) -> None:
    model = nn.Linear(2, 1, bias=False)
    recording = Recording(model, io=io, data="tensor")
    model.weight.grad = torch.ones(1, 2)
    recording.recorder._record_gradients({id(model.weight): 7})
    recording.recorder.close()
    assert len(recording.sink.of(r.DATA)) == kept


def test_what_ddp_has_waited_for_lands_before_gradients_are_recorded() -> None:
    model = nn.Linear(2, 1, bias=False)
    recording = Recording(model)
    gradient = model.weight.grad = torch.ones(1, 2)
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([gradient])
    flight = Flight(torch._C._distributed_c10d._create_work_from_future(future), {}, [gradient], None)
    recording.recorder.flights.adopt([flight])
    assert not recording.is_defined(gradient)
    recording.recorder._record_gradients({id(model.weight): 7})
    assert recording.is_defined(gradient) and recording.recorder.flights.pending == []
    recording.recorder.close()


def test_memory_is_not_trusted_after_the_program_ran_unseen_but_what_is_in_flight_stays_so() -> None:
    recording, x, y = Recording(), torch.ones(2), torch.ones(2)
    before = recording.value(x)
    recording.recorder.begin_with([])
    recording.recorder.begin_with([Flight(None, {}, [y], None)])
    recording.recorder.trust_no_memory()
    assert recording.value(x) != before and not recording.is_defined(y)
    recording.recorder.close()


def test_callbacks_are_told_of_where_their_ops_are_not_seen() -> None:
    recording, x = Recording(), torch.ones(2)
    before = recording.value(x)
    with Passing():
        recording.recorder.callback_ran({})
    assert recording.value(x) == before
    for _ in range(2):
        recording.recorder.callback_ran({})
    assert recording.value(x) != before
    recording.recorder.close()
    assert [(note.code, note.count) for note in recording.sink.of(r.NOTE)] == [("unseen", 2)]


def test_a_step_that_ends_ends_the_calls_that_are_open_and_lets_go_of_storages() -> None:
    recording = Recording()
    recorder, name = recording.recorder, CallName("torch.add", "Torch", "add")
    for number in (1, 2):
        recorder.step.threads.main.stack.append(OpenCall(number, API, name, None))
    recording.value(torch.ones(2))
    recorder.close()
    assert recorder.step.threads.main.stack == [] and recorder.values.storages.states == {}
    assert [(call.id, call.error) for call in recording.sink.of(r.CALL)] == [(2, CUT_OFF), (1, CUT_OFF)]


@pytest.mark.filterwarnings("ignore:aten_dump")  # the step's end fails as well
def test_where_the_disk_is_full_in_backward_torch_is_itself_again_and_no_table_is_kept() -> None:
    class Full(MemorySink):
        is_full = False

        def emit(self, record: tuple[Any, ...]) -> None:
            if self.is_full:
                raise StoreError("no room")
            super().emit(record)

    sink, found = Full(), _HookMixin._register_hook

    def program() -> None:
        with DumpMode(DumpConfig(path="unused"), sink=sink) as dump:
            recorder = dump._watch.recorder
            assert recorder is not None and _HookMixin._register_hook is not found
            y = nn.functional.softmax(torch.ones(4, requires_grad=True), 0)
            dump.save("y", y)
            loss = y.exp().sum()
            y.register_hook(lambda gradient: setattr(sink, "is_full", True))
            try:
                loss.backward()
            finally:
                dump.close()
                assert recorder.values.storages.states == {} and not recorder.remarks._hooks

    with pytest.raises(StoreError, match="no room"):
        program()
    assert _HookMixin._register_hook is found and node_hooks._opener is None


def test_time_in_our_own_code_is_that_of_all_threads() -> None:
    recording = Recording()

    def work() -> None:
        state = recording.recorder.step.here.state
        with state.own:
            pass
        state.own.ns += 10**15

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    recording.recorder.close()
    assert recording.recorder.seconds["capture"] == pytest.approx(2e6, rel=1e-3)


def test_without_a_trigger_s_question_or_contents_to_look_at_none_is_asked() -> None:
    assert not Recording().recorder.values.finds_unseen_writes
    assert Recording(dedup="content").recorder.values.finds_unseen_writes


def test_a_paused_step_is_still_in_step() -> None:
    watch, recorder = Watch(), Recording().recorder
    assert watch.recorder is watch.in_step is None
    watch.turn_off()
    watch.turn_on(recorder)
    assert watch.recorder is watch.in_step is recorder and recorder.step.is_on
    watch.turn_off()
    assert watch.recorder is None and watch.in_step is recorder and not recorder.step.is_on
    watch.turn_on(recorder)
    assert recorder.step.is_on


@pytest.mark.parametrize("config", [{"data": "full"}, {"data": "structure", "level": "aten"}], ids=str)
def test_a_step_that_has_ended_is_gone_without_pythons_collector(tmp_path: Path, config: dict[str, Any]) -> None:
    # Training loops of several ranks turn the collector off, so that none waits for another's.
    program = build("gpt2")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), **config), model=program.model) as dump:
        train_step(program)
        dump.step()
        gc.collect()
        before = _of_steps()  # held, so that what takes their places in memory is told from them
        gc.disable()
        try:
            for _ in range(3):
                train_step(program)
                dump.step()
            left = [one for one in _of_steps() if not any(one is old for old in before)]
        finally:
            gc.enable()
    names = sorted(type(one).__name__ for one in left)
    assert names == ["Interner", "NodeRuns", "StepRecorder"], "those of the step in progress alone"


def _of_steps() -> list[object]:
    """Return what is there of steps, those of other tests too."""
    return [one for one in gc.get_objects() if type(one) in (StepRecorder, Interner, NodeRuns)]
