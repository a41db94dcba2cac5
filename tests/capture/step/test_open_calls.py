"""What a call in progress takes over from the one around it."""

from __future__ import annotations

from aten_dump.capture.naming.call_name import API, FORWARD, MODULE, CallName
from aten_dump.capture.step.open_calls import OpenCall

NAME = CallName("torch.add", "Torch", "add")


def test_a_call_without_another_around_it_is_in_no_module() -> None:
    call = OpenCall(3, API, NAME, None)
    assert (call.id, call.visible, call.parent_id, call.fqn, call.module) == (3, 3, 0, "", 0)
    assert (call.phase, call.n, call.recorded) == (FORWARD, -1, True)


def test_a_call_is_in_the_module_of_the_call_around_it() -> None:
    outer = OpenCall(1, MODULE, CallName("Linear", "Module", "fc"), None)
    outer.fqn, outer.module = "fc", 12
    inner = OpenCall(2, API, NAME, outer)
    assert (inner.parent, inner.parent_id, inner.fqn, inner.module) == (outer, 1, "fc", 12)


def test_under_a_call_that_is_left_out_the_parent_is_the_one_that_is_recorded() -> None:
    outermost = OpenCall(1, MODULE, NAME, None)
    left_out = OpenCall(2, API, NAME, outermost)
    left_out.recorded, left_out.visible = False, left_out.parent_id
    inner = OpenCall(3, API, NAME, left_out)
    assert (inner.parent, inner.parent_id) == (left_out, 1)
    left_out.visible = 0
    assert OpenCall(4, API, NAME, left_out).parent_id == 0
