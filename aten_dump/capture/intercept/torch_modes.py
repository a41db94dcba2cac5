"""The two modes on torch's stacks: one sees Python-level calls, the other aten ops.

Each asks first why a call might not be recorded, and passes it through if there is a reason. An error of the program
passes through untouched; an error of the recorder's own is raised, or lets the program run on unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ..calling_frame import calling_frame
from ..calls.ops import PendingOp
from ..calls.watched_ops import watch
from ..interrupts import deliver, held, runs_program
from ..naming.api_names import name_of_api
from ..naming.call_name import CallName
from ..naming.op_schemas import OpPlan
from ..recorder import StepRecorder, Watch
from ..step.threads import ThreadState
from ..torch_internals.compiler import can_leave_alone, leave_alone, set_compiler
from ..torch_internals.engine import dispatch_mode_at, is_jit_tracing, len_dispatch_stack
from ..torch_internals.formulas_without_mode import OWN_FORMULA_APIS, WRITES_AS_PYTHON_APIS, WRITES_BETWEEN_APIS
from ..torch_internals.mode_stack import (
    DETACH,
    TorchDispatchMode,
    below_autograd,
    detaches_once,
    without_only_dispatch_mode,
)
from ..torch_internals.tracing import (
    OWN_DISPATCH,
    PLAIN,
    TRACED,
    is_compiling,
    is_traced,
    kind_of_types,
    takes_stand_ins,
)
from ..torch_internals.write_counts import inner_writes_counted
from .inner_ops import open_nested, run_higher_order, run_subclass_op

# Why a call is not recorded.
_IS_QUESTION: Final = "it asks a tensor subclass for its shape, and computes nothing"
_OWN_CODE: Final = "the recorder itself makes it"
_STANDS_IN: Final = "its tensors stand for others"
_IS_TRACED: Final = "it is traced, not run"
_HANDED_ON: Final = "it was handed on to a tensor subclass, and its inner ops come back"
_RUN_OTHERWISE: Final = OWN_FORMULA_APIS | WRITES_BETWEEN_APIS | WRITES_AS_PYTHON_APIS


class ApiMode(TorchFunctionMode):
    """Records the outermost Python-level torch calls."""

    def __init__(self, watch: Watch, op_mode: TorchDispatchMode) -> None:
        super().__init__()
        self._watch = watch
        self._op_mode = op_mode

    @runs_program
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if is_dynamo_compiling():  # True to dynamo, where it traces this: what it compiles is not recorded
            return func(*args, **kwargs)
        recorder = self._watch.recorder
        name = None if recorder is None else name_of_api(func)
        if recorder is None:
            return func(*args, **kwargs)
        if recorder.packs is not None:
            func = recorder.packs.seen_in(func)
        if name is None:
            return func(*args, **kwargs)
        thread = recorder.step.threads.running()
        why_not = self._why_not_recorded(thread, args)
        if why_not is _IS_TRACED:
            recorder.step.coverage.add("traced")
        call = recorder.calls.begin(thread, name, args, kwargs, calling_frame()) if why_not is None else None
        if call is None:
            return func(*args, **kwargs)
        try:
            if name.op in _RUN_OTHERWISE:
                result = self._run_otherwise(recorder, name, func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except BaseException as error:
            recorder.calls.end(thread, call, None, error)
            raise
        recorder.calls.end(thread, call, result, None)
        if held:
            deliver()
        return result

    def _why_not_recorded(self, thread: ThreadState, args: tuple[Any, ...]) -> str | None:
        if thread.own.depth:
            return _OWN_CODE
        depth = len_dispatch_stack()
        if (
            is_jit_tracing()
            or ((depth > 1 or (depth and dispatch_mode_at(0) is not self._op_mode)) and is_traced())
            or takes_stand_ins(args)
        ):
            return _IS_TRACED
        return None

    @runs_program
    def _run_otherwise(
        self, recorder: StepRecorder, name: CallName, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name.op in WRITES_AS_PYTHON_APIS:
            try:
                return func(*args, **kwargs)
            finally:
                recorder.was_written(args[0])
        if name.op in WRITES_BETWEEN_APIS:
            if len_dispatch_stack() > 1:  # other modes see what they see without ours
                return func(*args, **kwargs)
            with below_autograd():
                return func(*args, **kwargs)
        with without_only_dispatch_mode(self._op_mode) as off:
            recorder.step.coverage.add("own_formula", name.op, int(off))
            return func(*args, **kwargs)


class OpMode(TorchDispatchMode):
    """Records every aten op."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch, lets_compile: Callable[[], bool]) -> None:
        """Begin; `lets_compile` returns True if dynamo may compile what it is asked to while the modes are on."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._lets_compile = lets_compile

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping `__torch_dispatch__`: that dynamo leaves it alone is had for less."""
        return False

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Answer dynamo whether to compile under this mode: where it asks us first, the answer was given there."""
        return self._lets_compile()

    @runs_program
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        recorder = self._watch.recorder
        if recorder is None:
            return func(*args, **kwargs)
        thread = recorder.step.threads.running()
        if thread.own.depth:
            return func(*args, **kwargs)
        op = recorder.ops.start(thread, func, types)
        if op is None:
            result = self._watch_closely(recorder, func, types, args, kwargs)
        else:
            try:
                result = op.entry.run(*args, **kwargs)
            except BaseException as error:
                op.end(args, kwargs, None, error)
                raise
            op.end(args, kwargs, result, None)
        if held:
            deliver()
        return result

    @runs_program
    def _watch_closely(
        self, recorder: StepRecorder, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run and record an op that may be more than a computation on plain tensors."""
        thread = recorder.step.here.state
        entry = recorder.ops.entry_of(func)
        kind = kind_of_types(types) if types else PLAIN
        why_not = self._why_not_recorded(thread, entry.plan, func, types, kind)
        if thread.unpacked:  # autograd detaches the saved tensor that the recorder's hook has just returned
            why_not = _OWN_CODE if args and id(args[0]) == thread.unpacked else why_not
            thread.unpacked = 0
        if why_not is _HANDED_ON:
            thread.delegated = None
            return NotImplemented
        if why_not is _IS_TRACED:
            recorder.step.coverage.add("traced")
        op = watch(recorder.ops, thread, entry, args, kwargs) if why_not is None else None
        if op is None:
            return func(*args, **kwargs)
        try:
            if kind or entry.plan.is_higher_order:
                result = self._run_nested(recorder, op, func, args, kwargs)
            elif entry.plan.writes_inside:
                with inner_writes_counted():
                    result = func(*args, **kwargs)
            else:
                result = func(*args, **kwargs)
        except BaseException as error:
            op.end(args, kwargs, None, error)
            raise
        op.end(args, kwargs, result, None)
        return result

    @staticmethod
    def _why_not_recorded(thread: ThreadState, plan: OpPlan, func: Any, types: Any, kind: int) -> str | None:
        if kind == TRACED:
            return _STANDS_IN
        if types and plan.is_question:  # tensor subclasses alone ask them
            return _IS_QUESTION
        if kind == OWN_DISPATCH and thread.delegated is func:
            return _HANDED_ON
        if is_jit_tracing() or (len_dispatch_stack() and is_traced()):
            return _IS_TRACED
        if thread.aside and is_compiling():
            return _IS_TRACED
        return None

    @runs_program
    def _run_nested(
        self, recorder: StepRecorder, op: PendingOp, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = open_nested(op)
        try:
            if op.entry.plan.is_higher_order:
                return run_higher_order(self, recorder.step.coverage, func, args, kwargs)
            return run_subclass_op(self, op.thread, func, args, kwargs)
        finally:
            recorder.step.drop(op.thread, call)


class OneDetachOpMode(OpMode):
    """The same, for a torch that would detach what `OpMode` detaches again."""

    @runs_program
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not DETACH:
            return OpMode.__torch_dispatch__(self, func, types, args, kwargs)
        with below_autograd():
            return OpMode.__torch_dispatch__(self, func, types, args, kwargs)


class ShieldedOpMode(OneDetachOpMode):
    """The same, for a torch that cannot leave what `OpMode` calls alone: the compiler is off meanwhile."""

    @runs_program
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = set_compiler(None)
        try:
            return OneDetachOpMode.__torch_dispatch__(self, func, types, args, kwargs)
        finally:
            set_compiler(before)


def new_op_mode(watch: Watch, lets_compile: Callable[[], bool]) -> OpMode:
    """Return an op mode that dynamo does not compile."""
    if not can_leave_alone:
        return ShieldedOpMode(watch, lets_compile)
    return (OpMode if detaches_once() else OneDetachOpMode)(watch, lets_compile)


for _mode in (OpMode, OneDetachOpMode) if can_leave_alone else (ShieldedOpMode,):
    leave_alone(_mode.__torch_dispatch__)
