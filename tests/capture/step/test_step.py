"""One step: whose failure goes first, the stack of open calls, and the records of calls that end."""

from __future__ import annotations

import sys

import pytest
import torch

from aten_dump.capture.naming.call_name import API, MODULE, NODE, CallName
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.step.step import CUT_OFF, EARLY_STOP, ENDED_UNTOLD, Step, text_of
from aten_dump.store import records as r
from tests.capture.step.steps import new_step

ADD, LINEAR = CallName("torch.add", "Torch", "add"), CallName("Linear", "Module", "fc")


def opened(step: Step, kind: int = API, name: CallName = ADD) -> OpenCall:
    """Open a call on the main thread's stack, under its top."""
    stack = step.threads.main.stack
    call = OpenCall(step.next_id(), kind, name, stack[-1] if stack else None)
    stack.append(call)
    return call


def n_of(step: Step, call: OpenCall) -> int:
    step.numbered(call)
    return call.n


def test_a_failure_of_ours_is_raised_unless_an_error_of_the_program_is_on_its_way() -> None:
    step, _, told = new_step()
    own = ValueError("ours")
    step.failed_beside(None, own)
    assert (told.aloud, told.quietly) == ([own], [])
    step.failed_beside(RuntimeError("the program's"), own)
    assert (told.aloud, told.quietly) == ([own], [own])


def test_the_n_of_a_name_is_given_once_at_the_first_question() -> None:
    step, _, _ = new_step()
    first, second = opened(step), opened(step)
    assert n_of(step, second) == 0
    assert n_of(step, first) == 1
    assert (n_of(step, second), n_of(step, first)) == (0, 1)


def test_a_call_that_ends_is_recorded_with_its_place_and_time() -> None:
    step, sink, _ = new_step()
    outer, inner = opened(step, MODULE, LINEAR), opened(step)
    inner.start_ns, inner.end_ns, inner.args = 100, 350, [1.5]
    step.emit_open(step.threads.main, inner, 2.5, None, None)
    (call,) = sink.of(r.CALL)
    assert (call.id, call.parent, call.n, call.start_ns, call.duration_ns) == (inner.id, outer.id, 0, 100, 250)
    assert (call.args, call.outputs, call.error) == ([1.5], 2.5, None)
    (op,) = sink.of(r.OP)
    assert (op.id, op.prefix, op.api, op.call_kind) == (call.op, "Torch", "add", API)


def test_names_count_on_whether_asked_before_or_at_the_end() -> None:
    step, sink, _ = new_step()
    for _ in range(2):
        call = opened(step)
        step.take_off(step.threads.main, call)
        step.emit_open(step.threads.main, call, None, None, None)
    third = opened(step)
    assert n_of(step, third) == 2
    step.emit_open(step.threads.main, third, None, None, None)
    assert [call.n for call in sink.of(r.CALL)] == [0, 1, 2]
    assert len(sink.of(r.OP)) == 1 and step.calls == 3


def test_calls_above_one_that_ends_have_ended_by_an_error() -> None:
    step, sink, _ = new_step()
    outer, middle, inner = opened(step, MODULE, LINEAR), opened(step), opened(step)
    middle.given, inner.frame = [], sys._getframe()
    for call in (middle, inner):
        call.raw = (torch.ones(1),)
    step.take_off(step.threads.main, outer)
    assert step.threads.main.stack == []
    assert [(call.id, call.error) for call in sink.of(r.CALL)] == [
        (inner.id, "ended by an error in or around it"),
        (middle.id, "ended by an error in or around it"),
    ]
    assert middle.given is None and inner.frame is None and middle.raw == inner.raw == (), "what they held is let go"


def test_of_what_the_step_cuts_off_none_has_failed() -> None:
    step, sink, _ = new_step()
    scope = opened(step, name=CallName("aten_dump.scope", "Scope", "epoch"))
    module, api = opened(step, MODULE, LINEAR), opened(step)
    node = opened(step, NODE, CallName("ExpBackward0", "Node", "ExpBackward0"))
    for call in (scope, module):
        call.raw = (torch.ones(1),)
    step.cut_off(step.threads.main)
    assert step.threads.main.stack == [] and scope.raw == module.raw == ()
    assert [(call.id, call.error) for call in sink.of(r.CALL)] == [
        (node.id, ENDED_UNTOLD),
        (api.id, CUT_OFF),
        (scope.id, None),
    ], "no node runs: its pass has failed; of a module the record of its begin tells"


def test_a_scope_in_a_call_that_ends_has_not_failed() -> None:
    step, sink, _ = new_step()
    outer, scope = opened(step, MODULE, LINEAR), opened(step, name=CallName("aten_dump.scope", "Scope", "in it"))
    step.take_off(step.threads.main, outer)
    assert [(call.id, call.error) for call in sink.of(r.CALL)] == [(scope.id, None)]


def test_a_call_that_is_not_recorded_leaves_no_record_when_it_ends_by_an_error() -> None:
    step, sink, _ = new_step()
    outer, inner = opened(step), opened(step)
    inner.recorded = False
    step.take_off(step.threads.main, outer)
    assert sink.of(r.CALL) == [] and step.threads.main.stack == []


@pytest.mark.parametrize("how", ["take_off", "drop"])
def test_a_call_that_is_not_on_the_stack_takes_nothing_with_it(how: str) -> None:
    step, sink, _ = new_step()
    outer = opened(step)
    getattr(step, how)(step.threads.main, OpenCall(99, API, ADD, None))
    assert step.threads.main.stack == [outer] and sink.records == []


def test_a_call_is_dropped_without_a_record_and_what_lies_above_it_ends() -> None:
    step, sink, _ = new_step()
    outer, inner = opened(step), opened(step)
    step.drop(step.threads.main, inner)
    assert sink.records == [] and step.threads.main.stack == [outer]
    above = opened(step)
    step.drop(step.threads.main, outer)
    assert [call.id for call in sink.of(r.CALL)] == [above.id] and step.threads.main.stack == []


def test_nodes_that_raised_are_no_parents_of_what_comes_after_the_backward() -> None:
    step, sink, _ = new_step()
    module = opened(step, MODULE, LINEAR)
    node = opened(step, NODE, CallName("ExpBackward0", "Node", "ExpBackward0"))
    opened(step, NODE, CallName("SinBackward0", "Node", "SinBackward0"))
    assert torch._C._current_autograd_node() is None
    assert step.top(step.threads.main) is module
    assert [call.error for call in sink.of(r.CALL)] == ["ended by an error in or around it"] * 2
    assert node not in step.threads.main.stack


def test_nodes_of_passes_that_have_failed_within_one_are_no_parents_in_it() -> None:
    """Of those that are open, which run in the pass that is under way, or in one around it, tell their numbers."""
    step, sink, _ = new_step()
    thread, found = step.threads.main, []
    y = torch.ones(2, requires_grad=True).exp()

    def hook(gradient: torch.Tensor) -> None:
        for offset in (-1, 0, 1, 2):
            node = opened(step, NODE, CallName("ExpBackward0", "Node", "ExpBackward0"))
            node.graph_task = torch._C._current_graph_task_id() + offset
        found.append(step.top(thread) is thread.stack[1])

    y.register_hook(hook)
    y.sin().sum().backward()
    assert found == [True] and len(sink.of(r.CALL)) == 2


def test_a_node_that_runs_is_the_parent() -> None:
    step, _, _ = new_step()
    found = []
    y = torch.ones(2, requires_grad=True).exp()

    def hook(gradient: torch.Tensor) -> None:
        node = opened(step, NODE, CallName("ExpBackward0", "Node", "ExpBackward0"))
        found.append(step.top(step.threads.main) is node)

    y.register_hook(hook)
    y.sin().sum().backward()
    assert found == [True]


def test_no_call_is_open_at_first() -> None:
    step, _, _ = new_step()
    assert step.top(step.threads.main) is None and step.main_parent() == 0
    opened(step)
    call = opened(step)
    assert step.main_parent() == call.id
    call.visible = 0
    assert step.main_parent() == 0


@pytest.mark.parametrize(("config", "recorded"), [({}, True), ({"level": "aten"}, False), ({"ops": ("mul",)}, False)])
def test_what_the_configuration_leaves_out_is_counted_and_its_parent_stands_for_it(
    config: dict[str, object], recorded: bool
) -> None:
    step, sink, _ = new_step(**config)
    outer = opened(step, MODULE, LINEAR)
    call = opened(step)
    step.leave_out(call)
    assert call.recorded is recorded and call.visible == (call.id if recorded else outer.id)
    step.report_coverage()
    assert [(note.code, note.count) for note in sink.of(r.NOTE)] == ([] if recorded else [("selection", 1)])


def test_custom_ops_are_told_of_at_the_end() -> None:
    step, sink, _ = new_step()
    for _ in range(2):
        step.counters.of(CallName("mine::gelu", "Custom", "gelu")).next()
    step.report_coverage()
    (note,) = sink.of(r.NOTE)
    assert (note.code, note.count) == ("custom_ops", 2) and "gelu" in note.message


def test_the_stack_of_a_call_goes_on_from_that_of_the_call_around_it() -> None:
    step, sink, _ = new_step()
    main, here = step.threads.main, sys._getframe()
    outer = opened(step)
    outer.frame, outer.stack = here, step.stack_of(here, main)
    frames = len(sink.of(r.STACK))
    assert step.stack_of(None, main) == outer.stack, "without a frame of the program's it is the outer call's"

    def inner() -> int:
        return step.stack_of(sys._getframe(), main)

    number = inner()
    added = sink.of(r.STACK)[frames:]
    assert [(stack.id, stack.parent) for stack in added] == [(number, outer.stack)]
    opened(step)  # one without a frame: an outer one is asked
    assert step.stack_of(None, main) == outer.stack


def test_the_program_waits_for_room_every_thousand_calls() -> None:
    step, sink, _ = new_step()
    waited: list[int] = []
    sink.wait_for_room = lambda: waited.append(step.calls)  # type: ignore[method-assign]
    for _ in range(2100):
        step.emit_call((r.CALL, *[0] * (len(r.Call._fields) - 1)))
    assert waited == [1024, 2048]


class Unprintable(Exception):
    def __str__(self) -> str:
        return self.message  # type: ignore[attr-defined, no-any-return]  # never set: a common slip


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("bad"), "ValueError: bad"), (KeyError("k"), "KeyError: 'k'"), (Unprintable(), "Unprintable")],
)
def test_the_text_of_an_error(error: BaseException, text: str) -> None:
    assert text_of(error) == text


def test_the_early_stop_of_checkpoint_is_no_failure() -> None:
    from torch.utils.checkpoint import _StopRecomputationError

    assert text_of(_StopRecomputationError()) == EARLY_STOP
