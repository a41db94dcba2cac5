"""Python-level calls and modules: opened with what they are given, recorded with what they made."""

from __future__ import annotations

import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.calls.python_calls import PythonCalls
from aten_dump.capture.naming.call_name import API, BACKWARD, FORWARD, MODULE, OPTIMIZER, CallName
from aten_dump.capture.step.collectives import Flight
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.store import records as r
from tests.capture.calls.recorded_ops import Recorded

aten = torch.ops.aten
ADD, LINEAR = CallName("torch.add", "Torch", "add"), CallName("Linear", "Module", "fc")


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def begin(recorded: Recorded, *args: Any, name: CallName = ADD, **kwargs: Any) -> OpenCall:
    call = recorded.calls.begin(recorded.step.here.state, name, args, kwargs, sys._getframe())
    assert call is not None
    return call


def begin_module(recorded: Recorded, *args: Any, fqn: str = "fc") -> OpenCall:
    call = recorded.calls.begin_module(LINEAR, args, {}, sys._getframe(), fqn)
    assert call is not None
    return call


# -- who is seen


def test_a_call_is_seen_only_where_the_modes_are_and_by_nobody_s_tracer() -> None:
    recorded = Recorded()
    calls: PythonCalls = recorded.calls
    assert not calls.sees("torch.add")
    with Passing():
        assert calls.sees("torch.add")
        recorded.thread.own.depth = 1
        assert not calls.sees("torch.add"), "it is the recorder's own"
        recorded.thread.own.depth = 0
        seen: list[bool] = []
        torch.jit.trace(lambda x: (seen.append(calls.sees("torch.add")), x + 1)[1], torch.ones(1), check_trace=False)
    assert seen == [False]
    assert recorded.notes() == {"other_threads": 1, "traced": 1}


# -- begin and end


def test_a_call_is_recorded_when_it_ends_around_what_ran_in_it() -> None:
    recorded, x = Recorded(), torch.ones(2)
    call = begin(recorded, x, other=3)
    assert recorded.thread.stack == [call] and recorded.ended() == []
    y = recorded.run(aten.add.Tensor, x, 3)
    recorded.calls.end(recorded.thread, call, y, None)
    op, api = recorded.ended()
    assert (api.id, api.args, api.kwargs, api.outputs) == (call.id, ((r.TREE_VALUE, 1),), {"other": 3}, op.outputs)
    assert (op.parent, api.parent, api.phase) == (api.id, 0, FORWARD) and recorded.thread.stack == []
    assert api.duration_ns >= op.duration_ns and api.start_ns <= op.start_ns


def test_a_call_that_ran_no_op_and_made_no_tensor_is_a_question() -> None:
    recorded, x = Recorded(), torch.ones(2)
    recorded.calls.end(recorded.thread, begin(recorded, x), 2, None)
    assert recorded.ended() == []
    recorded.calls.end(recorded.thread, begin(recorded, x), x, None)
    assert recorded.last().n == 0, "the question has used up no number"


def test_a_call_that_hands_all_elements_to_python_is_recorded_without_them() -> None:
    recorded, x = Recorded(), torch.ones(2)
    name = CallName("torch.Tensor.tolist", "Tensor", "tolist")
    recorded.calls.end(recorded.thread, begin(recorded, x, name=name), x.tolist(), None)
    assert (recorded.last().args, recorded.last().outputs) == (((r.TREE_VALUE, 1),), None)


def test_a_question_that_is_left_out_is_not_counted() -> None:
    recorded = Recorded(level="aten")
    recorded.calls.end(recorded.thread, begin(recorded), 2, None)
    assert recorded.notes() == {}
    recorded.calls.end(recorded.thread, begin(recorded), torch.ones(1), None)
    assert recorded.notes() == {"selection": 1} and recorded.ended() == []


@pytest.mark.parametrize("how", ["op", "error", "module"])
def test_what_ran_raised_or_is_a_module_is_no_question(how: str) -> None:
    recorded = Recorded()
    call = begin_module(recorded) if how == "module" else begin(recorded)
    if how == "op":
        recorded.run(aten.exp.default, torch.ones(1))
    recorded.calls.end(recorded.thread, call, None, ValueError("bad") if how == "error" else None)
    assert recorded.last().error == ("ValueError: bad" if how == "error" else None)


def test_nothing_is_recorded_of_a_call_that_ends_when_recording_has_stopped() -> None:
    recorded = Recorded()
    call = begin(recorded)
    recorded.step.is_on = False
    recorded.calls.end(recorded.thread, call, torch.ones(1), None)
    assert recorded.ended() == [] and recorded.thread.stack == [call]


def test_a_failure_of_the_recorder_is_told_and_the_call_is_not_open() -> None:
    recorded = Recorded()
    call = begin(recorded)
    recorded.fail()
    recorded.calls.end(recorded.thread, call, torch.ones(1), ValueError("the program's"))
    assert (len(recorded.told.aloud), len(recorded.told.quietly)) == (0, 1)
    assert recorded.calls.begin(recorded.thread, ADD, (torch.ones(1),), {}, sys._getframe()) is None
    assert recorded.calls.begin_module(LINEAR, (torch.ones(1),), {}, sys._getframe(), "new") is None
    assert len(recorded.told.aloud) == 2 and recorded.thread.stack == []


# -- modules


def test_a_module_is_told_of_when_it_begins_and_again_when_it_ends() -> None:
    recorded, x = Recorded(), torch.ones(2)
    outer = begin_module(recorded, x, fqn="net")
    inner = begin_module(recorded, x, fqn="net.fc")
    opened = recorded.sink.of(r.OPEN)
    assert [(o.id, o.parent, o.n) for o in opened] == [(outer.id, 0, 0), (inner.id, outer.id, 1)]
    texts = {text.id: text.text for text in recorded.sink.of(r.TEXT)}
    assert [texts[o.module] for o in opened] == ["net", "net.fc"]
    recorded.run(aten.exp.default, x)
    recorded.calls.end(recorded.thread, inner, x, None)
    assert [texts[call.module] for call in recorded.ended()] == ["net.fc", "net.fc"]
    assert recorded.last().n == 1


def test_of_a_module_that_is_left_out_nobody_is_told() -> None:
    recorded = Recorded(level="api")
    begin_module(recorded, torch.ones(1))
    assert recorded.sink.of(r.OPEN) == []


# -- where it belongs


@pytest.mark.parametrize(("depth", "grad", "phase"), [(1, False, OPTIMIZER), (1, True, FORWARD), (0, False, FORWARD)])
def test_the_optimizer_s_calls_are_those_without_gradient_in_its_step(depth: int, grad: bool, phase: int) -> None:
    recorded = Recorded()
    recorded.thread.optimizer_depth = depth
    with torch.set_grad_enabled(grad):
        assert begin(recorded).phase == phase


def test_a_call_in_a_hook_of_the_backward_is_backward_unless_the_optimizer_steps_there() -> None:
    recorded, phases = Recorded(), []
    y = torch.ones(1, requires_grad=True).exp()

    def hook(gradient: torch.Tensor) -> None:
        thread = recorded.step.here.state  # an accelerator's backward has one of its own
        thread.optimizer_depth = 0
        phases.append(begin(recorded).phase)
        thread.optimizer_depth = 1
        thread.optimizer_pass = torch._C._current_graph_task_id()
        phases.append(begin(recorded).phase)

    y.register_hook(hook)
    y.backward()
    assert phases == [BACKWARD, OPTIMIZER]


def test_a_call_names_the_line_that_made_it_if_stacks_are_wanted() -> None:
    for stacks in (True, False):
        recorded = Recorded(stacks=stacks)
        assert (begin(recorded).stack > 0) is stacks
        assert bool(recorded.sink.of(r.STACK)) is stacks


# -- arguments, results, writes


def test_what_was_written_in_the_call_is_named_by_its_place() -> None:
    recorded = Recorded()
    x, y, z = torch.ones(2), torch.ones(2), torch.ones(2)
    call = begin(recorded, [x, {"y": y}], out=z)
    recorded.values.storages.written(y)
    recorded.values.storages.written(z)
    recorded.calls.end(recorded.thread, call, x, None)
    written = recorded.last().written
    assert written is not None and written[0::2] == ["0.1.y", "out"]
    assert {tree[1] for tree in written[1::2]}.isdisjoint({1, 2, 3}), "they are new values"


def test_a_write_before_the_call_is_none_of_it() -> None:
    recorded, x = Recorded(), torch.ones(2)
    recorded.values.value_of(x, False)
    recorded.values.storages.written(x)
    recorded.calls.end(recorded.thread, begin(recorded, x), x, None)
    assert recorded.last().written is None


def test_a_write_that_nobody_told_of_is_found_by_contents() -> None:
    recorded, x = Recorded(dedup="content", data="tensor"), torch.ones(2)
    call = begin(recorded, x)
    assert call.raw == (), "an op in it may not take over what it was given"
    with quiet():
        x.fill_(5)
    recorded.calls.end(recorded.thread, call, x, None)
    assert recorded.last().written == ["0", (r.TREE_VALUE, 2)]


@pytest.mark.parametrize("has_memory", [True, False])
def test_the_last_op_s_result_is_the_call_s_and_no_other_tensor_is(has_memory: bool) -> None:
    recorded = Recorded(io="input", data="tensor")
    x = torch.ones(2) if has_memory else torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    call = begin(recorded, x)
    y = recorded.run(aten.relu.default, x)
    made = recorded.last().outputs
    assert recorded.thread.output_id == id(y)
    recorded.calls.end(recorded.thread, call, y, None)
    assert recorded.last().outputs == made, "a nested tensor has no memory to be known by"
    recorded.thread.output_id = id(x)
    recorded.calls.end(recorded.thread, begin(recorded, x), x, None)
    assert recorded.last().outputs != made, "that op ran before this call began"


@pytest.mark.parametrize(("io", "kept"), [("all", {1, 2}), ("input", {1}), ("output", {2})])
def test_the_data_of_inputs_and_results_is_kept_as_asked(io: str, kept: set[int]) -> None:
    recorded = Recorded(io=io, data="tensor")
    recorded.calls.end(recorded.thread, begin(recorded, torch.ones(2)), (torch.zeros(2), "x"), None)
    recorded.values._keeper.flush()
    assert {data.value for data in recorded.sink.of(r.DATA)} == kept


def test_hooks_may_replace_what_a_module_is_given() -> None:
    recorded, x, y = Recorded(), torch.ones(2), torch.ones(3, requires_grad=True)
    call = begin_module(recorded, x)
    assert call.input_edges is None
    recorded.calls.replace_arguments(call, (y,), {"k": 1})
    assert call.input_edges == {-id(y): 0} and call.edge_paths == (-id(y), (0,))
    call.input_edges[-id(y)] = 1  # by a node that the hook has made
    recorded.calls.replace_arguments(call, (x, y), {"k": 1})
    assert call.input_edges == {-id(y): 1} and call.edge_paths == (-id(y), (1,))
    recorded.calls.end(recorded.thread, call, x, None)
    assert (recorded.last().args, recorded.last().kwargs) == (((r.TREE_VALUE, 1), (r.TREE_VALUE, 2)), {"k": 1})


def test_without_gradient_no_edges_are_looked_for() -> None:
    recorded, x = Recorded(), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert begin(recorded, x).input_edges is None
    assert begin(recorded, x).input_edges is not None


def test_a_result_s_nodes_are_the_call_s() -> None:
    for result in (lambda y: y, lambda y: {"y": y}):
        recorded, x = Recorded(), torch.ones(2, requires_grad=True)
        call = begin(recorded, x)
        y = x.exp()
        recorded.calls.end(recorded.thread, call, result(y), None)
        tag = recorded.tags.of(y.grad_fn)
        assert tag is not None and tag.owner is call
        assert tag.receives[:2] == (0, None) and tag.owner is call


@pytest.mark.parametrize("name", ["torch.Tensor.backward", "torch.autograd.grad", "torch.add"])
def test_a_backward_ties_the_graph_it_is_called_on(name: str) -> None:
    """Made where nobody saw it: by ops under no Python-level call."""
    recorded, x = Recorded(), torch.ones(2, requires_grad=True)
    y = x.exp()
    recorded.thread.grad = torch.is_grad_enabled()  # as an op that begins has it set
    recorded.ops.claims.claim(recorded.thread, 5, _get_sequence_nr())
    begin(recorded, y, name=CallName(name, "Torch", name.rpartition(".")[2]))
    tag = recorded.tags.of(y.grad_fn)
    assert (tag is None) is (name == "torch.add")
    assert tag is None or tag.forward == 5


# -- collectives


def test_a_call_ends_when_all_collectives_that_it_started_have_landed() -> None:
    recorded, x = Recorded(), torch.ones(2)
    call = begin(recorded, x)
    flights = [Flight(None, {}, [torch.ones(1)], call) for _ in range(2)]
    recorded.flights.pending.extend(flights)
    recorded.calls.end(recorded.thread, call, x, None)
    recorded.calls.end(recorded.thread, begin(recorded, x), x, None)
    assert [(c.id, c.n) for c in recorded.ended()] == [(call.id + 1, 1)], "its number is that of its beginning"
    recorded.flights.land(flights[1])
    assert len(recorded.ended()) == 1
    recorded.flights.land(flights[0])
    assert [(c.id, c.n) for c in recorded.ended()] == [(call.id + 1, 1), (call.id, 0)]


@pytest.mark.parametrize("how", ["error", "module", "another's"])
def test_others_end_at_once(how: str) -> None:
    recorded, x = Recorded(), torch.ones(2)
    call = begin_module(recorded, x) if how == "module" else begin(recorded, x)
    recorded.flights.pending.append(Flight(None, {}, [torch.ones(1)], None if how == "another's" else call))
    recorded.calls.end(recorded.thread, call, x, ValueError("bad") if how == "error" else None)
    assert [one.id for one in recorded.ended()] == [call.id]


def test_threads_have_stacks_of_their_own() -> None:
    recorded = Recorded()
    outer, found = begin(recorded), []
    thread = threading.Thread(target=lambda: found.append(begin(recorded)))
    thread.start()
    thread.join()
    assert recorded.thread.stack == [outer] and found[0].parent is None
    assert (outer.kind, begin_module(recorded).kind) == (API, MODULE)


class LooksAndReturnsAnother(nn.Module):
    """An op's result is let go of, and a tensor that no op made takes its place in memory."""

    reused = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        place = id(total)
        del total
        found = torch.frombuffer(bytearray(16), dtype=torch.float32)
        self.reused += id(found) == place
        return found


def test_a_tensor_in_the_place_of_an_op_s_result_is_not_taken_for_it(tmp_path: Path) -> None:
    model = LooksAndReturnsAnother()
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")):
        count = next((n for n in range(1, 2000) if model(torch.ones(4)) is not None and model.reused and n >= 50), 0)
    assert count, "else this shows nothing"
    calls = [call for call in open_dump(tmp_path / "dump").step(0).rank(0).calls if call.kind == "module"]
    assert len(calls) == count and all(call.outputs.tensor().tolist() == [0.0] * 4 for call in calls)


class TakesOut(nn.Module):
    """Takes a tensor out of the list that it is given, and lets go of it."""

    freed = False

    def forward(self, given: list[torch.Tensor], scaled: list[torch.Tensor]) -> torch.Tensor:
        x = given.pop()
        kept = weakref.ref(x)
        y = x * 2
        del x
        self.freed = kept() is None
        scaled[0].mul_(2)
        return y


def test_what_a_call_takes_out_of_a_list_goes_when_the_program_lets_go_of_it(tmp_path: Path) -> None:
    """It was kept until the call had ended."""
    model = TakesOut()
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")):
        model([torch.ones(4)], scaled=[torch.ones(2)])
    assert model.freed
    call = next(call for call in open_dump(tmp_path / "dump").step(0).rank(0).calls if call.kind == "module")
    assert {path: value.tensor().tolist() for path, value in call.mutated_values.items()} == {"scaled.0": [2.0, 2.0]}
