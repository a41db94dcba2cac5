"""The two modes on torch's stacks: one sees Python-level calls, the other aten ops.

Each asks its `Watch` what to do. An error of the program passes through untouched; an error of the recorder's own
goes to `Watch.failed`, which raises it or lets the program run on unrecorded.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from torch._C import _get_tracing_state as get_tracing_state
from torch._C import _len_torch_dispatch_stack as len_dispatch_stack
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import API, CallName, OpenCall, ThreadState
from .names import name_of_api
from .nested import open_nested, run_higher_order, run_subclass_op
from .ops import PendingOp, begin_op, end_op
from .own_code import OwnCode
from .own_formulas import OWN_FORMULA_APIS, without_mode
from .recorder import StepRecorder
from .schemas import OpPlan, plan_of
from .tracing import OWN_DISPATCH, PLAIN, TRACED, is_compiling, is_traced, kind_of_types, takes_stand_ins


class Watch(Protocol):
    """Who the modes work for."""

    recorder: StepRecorder | None  # None while nothing is recorded

    @property
    def lets_compile(self) -> bool:
        """Whether dynamo may compile what it is asked to while the modes are on."""

    def failed(self, error: Exception) -> None:
        """The recorder failed: raise, or stop recording."""

    def failed_quietly(self, error: Exception) -> None:
        """The recorder failed while an error of the program is on its way: stop recording and warn, never raise."""


class ApiMode(TorchFunctionMode):
    """Records the outermost Python-level torch calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_dynamo_compiling():  # True to dynamo, where it traces this: what it compiles is not recorded
            return func(*args, **kwargs)
        recorder = self._watch.recorder
        name = name_of_api(func) if recorder is not None else None
        if recorder is None or name is None or recorder.thread().busy:
            return func(*args, **kwargs)
        if is_traced() or takes_stand_ins(args):
            recorder.coverage.add("traced")
            return func(*args, **kwargs)
        try:
            call = recorder.begin(API, name, args, kwargs, sys._getframe(1))
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(error)
            return func(*args, **kwargs)
        try:
            result = self._run(recorder, name, func, args, kwargs)
        except BaseException as error:
            finish(self._watch, recorder, call, None, error)
            raise
        finish(self._watch, recorder, call, result, None)
        return result

    @staticmethod
    def _run(recorder: StepRecorder, name: CallName, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name.op not in OWN_FORMULA_APIS:
            return func(*args, **kwargs)
        with without_mode(recorder.dispatch_mode) as off:
            recorder.coverage.add("own_formula", name.op, int(off))
            return func(*args, **kwargs)


def finish(watch: Watch, recorder: StepRecorder, call: OpenCall, result: Any, error: BaseException | None) -> None:
    """Close an API or module call, unless recording stopped meanwhile. Never hides `error`."""
    if watch.recorder is not recorder:
        return
    try:
        recorder.end(call, result, error)
    except Exception as own:  # noqa: BLE001 - `failed` raises it or tells the user
        watch.failed(own) if error is None else watch.failed_quietly(own)


class OpMode(TorchDispatchMode):
    """Records every aten op."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Tell dynamo whether to compile under this mode: where it asks us first, the answer was given there."""
        return self._watch.lets_compile

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._watch.recorder
        if recorder is None:
            return func(*args, **kwargs)
        thread = recorder.thread()
        if thread.busy:
            return func(*args, **kwargs)
        plan = plan_of(func)
        kind = PLAIN
        if types:  # tensor subclasses, which alone ask the questions
            kind = kind_of_types(types)
            if kind == TRACED or plan.is_question:
                return func(*args, **kwargs)
            if kind == OWN_DISPATCH and thread.delegated is func:
                thread.delegated = None
                return NotImplemented  # its own __torch_dispatch__ runs next, and its inner ops come back to us
        if get_tracing_state() is not None or (len_dispatch_stack() and is_traced()):
            recorder.coverage.add("traced")
            return func(*args, **kwargs)
        if thread.aside and is_compiling():
            recorder.coverage.add("traced")
            return func(*args, **kwargs)
        op = self._begin(recorder, thread, plan, args, kwargs)
        if op is None:
            return func(*args, **kwargs)
        try:
            if kind or plan.is_higher_order:
                result = self._run_nested(recorder, thread, plan, op, func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except BaseException as error:
            self._end(recorder, thread, plan, op, args, kwargs, None, error)
            raise
        self._end(recorder, thread, plan, op, args, kwargs, result, None)
        return result

    def _run_nested(
        self,
        recorder: StepRecorder,
        thread: ThreadState,
        plan: OpPlan,
        op: PendingOp,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        call = open_nested(recorder, thread, plan, op)
        try:
            if plan.is_higher_order:
                return run_higher_order(self, recorder, func, args, kwargs)
            return run_subclass_op(self, thread, func, args, kwargs)
        finally:
            recorder.unwind(thread, call)

    def _begin(
        self, recorder: StepRecorder, thread: ThreadState, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PendingOp | None:
        try:
            with OwnCode(thread, recorder.seconds):
                return begin_op(recorder, thread, plan, args, kwargs)
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(error)
            return None

    def _end(
        self,
        recorder: StepRecorder,
        thread: ThreadState,
        plan: OpPlan,
        op: PendingOp,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        if self._watch.recorder is not recorder:
            return  # recording stopped while the op ran
        try:
            with OwnCode(thread, recorder.seconds):
                end_op(recorder, thread, plan, op, args, kwargs, result, error)
        except Exception as own:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(own) if error is None else self._watch.failed_quietly(own)
