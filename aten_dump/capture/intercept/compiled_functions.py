"""Functions that torch.compile has wrapped: run as written, or compiled with the recorder out of their way.

Theory of operation
    The compiler takes a dispatch mode on the stack for a reason to skip a function, for good: it would run eagerly
    after the block too, and with ``fullgraph=True`` raise. A function mode, or our wrapper around
    ``nn.Module.__call__``, it would trace into. So a compiled call must be known before the compiler looks at it.

    The wrapper that torch.compile puts around a function asks ``torch._dynamo.eval_frame._maybe_set_eval_frame`` to
    switch the compiler on, calls the function, and asks again to put back what was. While a step is recorded that name
    is ours. ``compile="eager"``: the compiler stays off for the call, and what it compiled before and after stays
    valid. Otherwise, until the second question the function mode and the module wrapper are taken away; the op mode
    stays, and sees the extern kernels. With ``compile="kernels"`` those that inductor generated are seen as well
    (`compiled_kernels`). Higher-order operators and torch.export use the compiler to trace their arguments: these are
    stepped aside for in all cases, and are no compiled calls.

    Dynamo may be imported after the step began: then a finder on ``sys.meta_path`` waits for it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ...config import DumpConfig
from ..interrupts import runs_program
from ..naming.call_name import CallName
from ..recorder import StepRecorder, Watch
from ..step.open_calls import OpenCall
from ..torch_internals.compiler import (
    MODULE,
    SWITCH,
    UNSEEN,
    compiles_alike_under_modes,
    is_for_higher_order,
    is_inductor,
    leave_alone,
    name_of_compiled,
    result_of,
    set_compiler,
    wrapper_of,
)
from ..torch_internals.engine import get_sequence_nr, len_dispatch_stack
from ..torch_internals.patches import Patch
from .when_imported import WhenImported


class Region:
    """A compiled call that runs compiled."""

    __slots__ = ("back", "call", "frame", "handled", "recorder", "unwritten")

    def __init__(self, frame: FrameType, recorder: StepRecorder, call: OpenCall | None) -> None:
        self.frame = frame
        self.recorder = recorder
        self.call = call
        self.handled = sys.exc_info()[1]  # the program's, which is no error of the call
        self.back: Callable[[], None] | None = None
        self.unwritten: dict[int, int] = {}  # digests of memory that nothing had written


class CompiledCalls:
    """Knows when a compiled function is called."""

    def __init__(self, watch: Watch, config: DumpConfig, step_aside: Callable[[bool], Callable[[], None]]) -> None:
        """Begin; `step_aside` takes everything away, the op mode if asked to, and returns what puts it back."""
        self._watch = watch
        self._how = config.compile
        self._step_aside = step_aside
        self._threads = threading.local()
        self._import = WhenImported(MODULE, self._replace)
        self._patch: Patch | None = None
        self._wrapper: CodeType | None = None
        self._warned = False

    def install(self) -> None:
        """Begin to watch."""
        if MODULE in sys.modules:
            self._replace()
        else:
            self._import.install()

    def remove(self) -> None:
        """Watch no more; a region that is open ends as it would have."""
        self._import.remove()
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.undo()

    def lets_compile(self) -> bool:
        """Return True if dynamo may compile what it is asked to while the modes are on."""
        return self._patch is not None or self._how != "eager"  # patched, compiled calls are known before it looks

    def _replace(self) -> None:
        module = sys.modules[MODULE]
        original, self._wrapper = getattr(module, SWITCH, None), wrapper_of(module)
        if original is None or self._wrapper is None or self._patch is not None:
            return

        @runs_program
        def _maybe_set_eval_frame(callback: Any) -> Any:
            before = set_compiler(None)  # an older torch asks with the compiler on, which would compile what follows
            try:
                chosen = self._asked(callback, sys._getframe(1))
            finally:
                set_compiler(before)
            return original(chosen)

        leave_alone(_maybe_set_eval_frame)
        self._patch = Patch(module, SWITCH, _maybe_set_eval_frame)

    def _asked(self, callback: Any, frame: FrameType) -> Any:
        """The compiler is to be switched to `callback` in `frame`; return what it is to be switched to instead."""
        if frame.f_code is not self._wrapper:
            return callback
        region: Region | None = getattr(self._threads, "region", None)
        if region is not None:
            if region.frame is frame:
                self._threads.region = None
                self._end(region, frame)
            return callback
        recorder = self._watch.recorder
        if recorder is None or callback is None or recorder.step.here.state.own.depth or not _is_recorded_thread():
            return callback  # with None it runs as written already
        aside = bool(getattr(frame.f_locals.get("self"), "export", False)) or is_for_higher_order(frame)
        if self._how == "eager" and not aside:
            self._report(recorder, "compile_eager", frame)
            if frame.f_locals.get("fullgraph_count_enabled"):
                # Nobody shall count compiled frames: there are none, and that would be an error.
                sys.modules[MODULE].set_fullgraph_compiled_frame_count(-1)
            return None
        self._threads.region = self._begin(recorder, frame, is_call=not aside)
        return callback

    def _begin(self, recorder: StepRecorder, frame: FrameType, is_call: bool) -> Region:
        call = None
        region = Region(frame, recorder, None)
        thread = recorder.step.here.state
        if is_call:
            if self._how == "kernels" and not (is_inductor(frame) and compiles_alike_under_modes):
                recorder.kernels_unseen()
            if recorder.step.threads.doubts:
                self._report(recorder, "compile_opaque", frame)
            function = name_of_compiled(frame)
            name = CallName(f"torch.compile:{function}", "Torch", f"compile.{function.rpartition('.')[2]}")
            values = frame.f_locals
            call = recorder.calls.begin(thread, name, values["args"], values["kwargs"], frame.f_back or frame)
        region.call = call
        region.back = self._step_aside(is_call and not compiles_alike_under_modes)
        thread.aside += 1
        region.unwritten = recorder.values.storages.unwritten_contents()
        return region

    def _end(self, region: Region, frame: FrameType) -> None:
        thread = region.recorder.step.here.state
        thread.aside -= 1
        if region.back is not None and region.recorder is self._watch.recorder:
            region.back()  # else recording stopped meanwhile, and with it everything was taken away
        call = region.call
        if region.recorder.step.threads.doubts:
            region.recorder.values.storages.invalidate(region.unwritten)  # the kernels of the compiler write unseen
        if call is None:
            return
        for number in range(call.sequence_start, get_sequence_nr()):
            thread.made[number] = call.id  # what its backward runs belongs to this call
        thread.claimed = max(thread.claimed, get_sequence_nr())
        thread.last_call = call.id
        result, error = result_of(frame, region.handled)
        if result is UNSEEN:
            region.recorder.step.next_id()  # else it looks like a question, that runs no op and makes no tensor
        region.recorder.calls.end(thread, call, result, error)

    def _report(self, recorder: StepRecorder, code: str, frame: FrameType) -> None:
        function = name_of_compiled(frame)
        recorder.step.coverage.add(code, function)
        if self._warned:
            return
        self._warned = True
        does = {
            "eager": "runs as written while it is recorded, so that its ops are seen; what the compiler fuses or "
            'reorders is not in the dump (compile="opaque" runs it compiled, as one call)',
            "opaque": "runs compiled and is recorded as one call; kernels that the compiler made are not seen "
            '(compile="eager" runs it as written)',
        }["eager" if self._how == "eager" else "opaque"]
        warnings.warn(f"aten_dump: the compiled function {function} {does}", stacklevel=5)


def _is_recorded_thread() -> bool:
    return len_dispatch_stack() > 0
