"""The two modes on torch's stacks: one sees Python-level calls, the other aten ops.

Each asks its `Watch` what to do. An error of the program passes through untouched; an error of the recorder's own
goes to `Watch.failed`, which raises it or lets the program run on unrecorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._C import _get_dispatch_stack_at as get_dispatch_stack_at
from torch._C import _get_tracing_state as get_tracing_state
from torch._C import _len_torch_dispatch_stack as len_dispatch_stack
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..calls.ops import OpEntry, PendingOp, begin_op, end_op, entry_of, record, start_op
from ..calls.step_recorder import StepRecorder
from ..naming.api_names import name_of_api
from ..naming.call_name import API, CallName
from ..step.open_calls import OpenCall, ThreadState
from ..torch_internals.formulas_without_mode import OWN_FORMULA_APIS, without_mode
from ..torch_internals.tracing import (
    OWN_DISPATCH,
    PLAIN,
    TRACED,
    is_compiling,
    is_traced,
    kind_of_types,
    takes_stand_ins,
)
from .inner_ops import open_nested, run_higher_order, run_subclass_op

_frames = getattr(torch._C._dynamo, "eval_frame", None)
_set_strategy = getattr(_frames, "set_code_exec_strategy", None)
_Action: Any = getattr(_frames, "_FrameAction", None)
_skip_all: Any = _Action and _frames._FrameExecStrategy(_Action.SKIP, _Action.SKIP)  # type: ignore[union-attr]


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
        if kwargs is None:
            kwargs = {}
        if is_dynamo_compiling():  # True to dynamo, where it traces this: what it compiles is not recorded
            return func(*args, **kwargs)
        recorder = self._watch.recorder
        name = name_of_api(func) if recorder is not None else None
        if recorder is None or name is None:
            return func(*args, **kwargs)
        thread = recorder.thread()
        if thread.busy:
            return func(*args, **kwargs)
        depth = len_dispatch_stack()
        if (
            get_tracing_state() is not None
            or ((depth > 1 or (depth and get_dispatch_stack_at(0) is not recorder.dispatch_mode)) and is_traced())
            or takes_stand_ins(args)
        ):
            recorder.coverage.add("traced")
            return func(*args, **kwargs)
        try:
            call = recorder.begin(API, name, args, kwargs, sys._getframe(1))
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(error)
            return func(*args, **kwargs)
        try:
            if name.op in OWN_FORMULA_APIS:
                result = self._run_without(recorder, name, func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except BaseException as error:
            finish(self._watch, recorder, call, None, error)
            raise
        finish(self._watch, recorder, call, result, None)
        return result

    @staticmethod
    def _run_without(
        recorder: StepRecorder, name: CallName, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping `__torch_dispatch__` where we can tell dynamo to leave it alone for less."""
        return _set_strategy is None

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Tell dynamo whether to compile under this mode: where it asks us first, the answer was given there."""
        return self._watch.lets_compile

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        recorder = self._watch.recorder
        if recorder is None:
            return func(*args, **kwargs)
        thread = recorder.thread()
        if thread.busy:
            return func(*args, **kwargs)
        op = start_op(recorder, thread, func, types)
        if op is None:
            return self._watch_closely(recorder, thread, func, types, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._end(record, recorder, thread, op, args, kwargs, None, error)
            raise
        self._end(record, recorder, thread, op, args, kwargs, result, None)
        return result

    def _watch_closely(
        self,
        recorder: StepRecorder,
        thread: ThreadState,
        func: Any,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run and record an op that may be more than a computation on plain tensors."""
        entry = entry_of(recorder, func)
        plan = entry.plan
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
        op = self._begin(recorder, thread, entry, args, kwargs)
        if op is None:
            return func(*args, **kwargs)
        try:
            if kind or plan.is_higher_order:
                result = self._run_nested(recorder, thread, op, func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except BaseException as error:
            self._end(end_op, recorder, thread, op, args, kwargs, None, error)
            raise
        self._end(end_op, recorder, thread, op, args, kwargs, result, None)
        return result

    def _run_nested(
        self,
        recorder: StepRecorder,
        thread: ThreadState,
        op: PendingOp,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        call = open_nested(thread, op)
        try:
            if op.entry.plan.is_higher_order:
                return run_higher_order(self, recorder, func, args, kwargs)
            return run_subclass_op(self, thread, func, args, kwargs)
        finally:
            recorder.unwind(thread, call)

    def _begin(
        self,
        recorder: StepRecorder,
        thread: ThreadState,
        entry: OpEntry,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> PendingOp | None:
        try:
            return begin_op(recorder, thread, entry, args, kwargs)
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(error)
            return None

    def _end(
        self,
        end: Callable[..., None],
        recorder: StepRecorder,
        thread: ThreadState,
        op: PendingOp,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        """Record with `end`, which is `record` or `end_op`, what an op returned or raised."""
        if self._watch.recorder is not recorder:
            return  # recording stopped while the op ran
        try:
            end(recorder, thread, op, args, kwargs, result, error)
        except Exception as own:  # noqa: BLE001 - `failed` raises it or tells the user
            self._watch.failed(own) if error is None else self._watch.failed_quietly(own)


if _set_strategy is not None:  # dynamo compiles neither this nor what it calls; else torch wraps it to that end
    _set_strategy(OpMode.__torch_dispatch__.__code__, _skip_all)
