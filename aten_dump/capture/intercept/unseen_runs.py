"""Kernels that run in C++ without dispatch: each such run is recorded as one call.

Theory of operation
    A few ops of such a run may come by the dispatcher, its kernels do not, and these write to the memory that such an
    op was seen to write. So a run is treated as that of a compiled function: ops in it, and all that follows, take
    memory for what it was only if it holds the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..calling_frame import calling_frame
from ..interrupts import deliver, held, runs_program
from ..naming.call_name import CallName
from ..recorder import StepRecorder
from ..step.open_calls import OpenCall
from ..torch_internals.engine import len_dispatch_stack


def is_seen(recorder: StepRecorder) -> bool:
    """Return True if what this thread runs now is recorded."""
    return not recorder.step.here.state.own.depth and len_dispatch_stack() > 0


@runs_program
def run_as_one_call(
    recorder: StepRecorder,
    name: CallName,
    code: str,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    run: Callable[[], Any],
) -> Any:
    """Run kernels that nobody sees, and record the run.

    Args:
        recorder: of the step.
        name: of the call.
        code: of the note that counts such runs.
        given: what the call reads, by position and by name.
        run: runs them; returns what the call has made.
    """
    call = recorder.calls.begin(recorder.step.here.state, name, *given, calling_frame())
    result = _run(recorder, call, code, run)
    if held:
        deliver()
    return result


@runs_program
def _run(recorder: StepRecorder, call: OpenCall | None, code: str, run: Callable[[], Any]) -> Any:
    thread, storages = recorder.step.here.state, recorder.values.storages
    recorder.step.coverage.add(code)
    with thread.own:
        unwritten = storages.unwritten_contents()
    thread.aside += 1
    result, error = None, None
    try:
        result = run()
    except BaseException as raised:
        error = raised
        raise
    finally:
        thread.aside -= 1
        with thread.own:
            storages.invalidate(unwritten)
        if call is not None:
            recorder.calls.end(thread, call, result, error)
    return result
