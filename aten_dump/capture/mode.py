"""`DumpMode`: the context manager that a program is recorded in."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as _push_dispatch_mode

from ..config import DumpConfig
from ..errors import AtenDumpError, CaptureError
from ..store.records import FORMAT_VERSION, HEADER, NOTE, Header, Note
from ..store.sink import Sink
from .calls.step_recorder import StepRecorder
from .data.keeper import Observe
from .intercept.compiled_functions import CompiledCalls
from .intercept.custom_functions import FunctionCalls
from .intercept.module_calls import ModuleCalls, ModulePaths, PreHooks, has_pre_hooks
from .intercept.torch_modes import ApiMode, OpMode, finish
from .intercept.wait_wrappers import Waits
from .launcher_rank import rank_and_world_size
from .naming.call_name import API, MODULE, CallName
from .run_file import finish_run, open_writer
from .step.collectives import Flight
from .step.open_calls import OpenCall
from .torch_internals.tracing import is_traced
from .trigger.ring_sink import RingSink

_FAST_PATH_MODULES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_live: weakref.WeakSet[DumpMode] = weakref.WeakSet()


class DumpMode:
    """Record what runs inside the block.

    Args:
        config: what to record; None reads the file that ATEN_DUMP_CONFIG names.
        model: the model, or a mapping of names to models, to give module paths. Without it the first module called is
            taken as the model. It is not changed and not kept alive.
        sink: where records go instead of files; for tests.

    Raises:
        StoreError: on entering, when the dump cannot be written there.
        CaptureError: when the recorder fails and ``on_error="raise"``.

    Example:
        >>> with DumpMode(DumpConfig(path="dump", steps="0|5-8"), model=model) as dump:
        ...     for batch in loader:
        ...         loss = model(batch)
        ...         loss.backward()
        ...         optimizer.step()
        ...         dump.step()
    """

    def __init__(
        self,
        config: DumpConfig | None = None,
        *,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.config = DumpConfig.from_environment() if config is None else config
        self.recorder: StepRecorder | None = None
        self.current_step = 0
        self._paths = ModulePaths(model)
        self._sink = sink
        self._in_flight: list[Flight] = []  # collectives that the step before has left under way
        self._step_recorder: StepRecorder | None = None  # of the step in progress, also while paused
        self._api_mode = ApiMode(self)
        self._op_mode = OpMode(self)
        self._modules = ModuleCalls(self._module_call)
        self._functions = FunctionCalls(self._function_call)
        self._compiled = CompiledCalls(self)
        self._unseen: Counter[str] = Counter()  # notes of all steps, by code
        self._steps = 0
        self._observe: Observe | None = None
        self._waits = Waits(lambda: self._step_recorder if self._failed is None else None, self.failed)
        self._hooks: list[Any] = []
        self._entered = False
        self._writes_files = False
        self._failed: Exception | None = None
        self._rank, self._world_size = 0, 1
        self._root = Path(os.fspath(self.config.path))
        self._thread = 0  # ident of the thread that entered

    # -- the block

    def __enter__(self) -> DumpMode:
        if self._entered:
            raise CaptureError("this DumpMode is already entered; make a new DumpMode for another block")
        for other in _live:
            raise CaptureError(
                f"a DumpMode that writes to {other.config.path!r} is still entered in this process; leave its block or "
                "call its close() first: only one can record at a time (dump.thread() records further threads)"
            )
        self._rank, self._world_size = rank_and_world_size()
        self._entered = True
        self._root = Path(os.fspath(self.config.path)).absolute()  # the program may change its folder later
        self._thread = threading.get_ident()
        if self._rank not in self.config.rank_selection:
            self._failed = CaptureError("rank not selected")
            return self
        try:
            self._writes_files = self._sink is None
            if self._sink is None:
                self._sink = open_writer(self.config, self._root, self._rank, self._world_size)
            if self.config.trigger is not None:
                shared = self._root if self._writes_files and self._world_size > 1 else None
                ring = self._sink = RingSink(self._sink, self.config, shared, self._rank)
                self._observe = ring.observe
            self._begin_step()
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._entered = self.config.on_error == "warn"
            self._give_up(error)
        _live.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._note("exception", f"{type(error).__name__}: {error} ended the block")
            self.close()
        except AtenDumpError as own:
            if error is None:
                raise
            warnings.warn(f"aten_dump: {own}", stacklevel=2)  # the program's own error goes first

    def step(self) -> None:
        """End the step in progress and begin the next one."""
        self._check_thread("step")
        stays = self.recorder is not None and self.current_step + 1 in self.config.step_selection
        try:
            self._end_step(stays)
            self.current_step += 1
            if self._entered and self._failed is None:
                self._guarded(self._begin_step)
        finally:
            if stays and self.recorder is None:  # the next step did not begin
                self._uninstall()
                self._waits.remove()

    def pause(self) -> None:
        """Stop recording until `resume`; the step goes on."""
        self._check_thread("pause")
        if self.recorder is not None:
            self._uninstall()

    def resume(self) -> None:
        """Record again after `pause`, within the same step."""
        self._check_thread("resume")
        if self.recorder is None and self._step_recorder is not None and self._failed is None:
            self._step_recorder.resume()
            self._install(self._step_recorder)

    @contextlib.contextmanager
    def thread(self) -> Iterator[None]:
        """Record the calling thread too, inside this block: torch keeps its modes per thread.

        Steps are ended by the thread that entered the mode; end one while no other thread is inside a call.

        Example:
            >>> def worker():
            ...     with dump.thread():
            ...         model(batch)
        """
        modes = range(torch._C._len_torch_function_stack())
        here = any(torch._C._get_function_stack_at(i) is self._api_mode for i in modes)
        if here or not self._entered or self._failed is not None:
            yield
            return
        _push_mode(self._api_mode)
        _push_dispatch_mode(self._op_mode)
        try:
            yield
        finally:
            _take_out(self._op_mode, _pop_dispatch_mode, _push_dispatch_mode)
            _take_out(self._api_mode, _pop_mode, _push_mode)

    def close(self) -> None:
        """Commit the step in progress and wait until all of it is on file. Idempotent."""
        if not self._entered:
            return
        self._check_thread("close")
        self._end_step()
        self._entered = False
        _live.discard(self)
        sink, self._sink = self._sink, None
        if sink is not None:
            self._guarded(sink.close)
        if self._writes_files and self._failed is None:
            self._guarded(self._finish_run)

    def _finish_run(self) -> None:
        finish_run(self.config, self._root, self._rank, self._world_size, self._steps, self._unseen)

    def _check_thread(self, what: str) -> None:
        if self._entered and threading.get_ident() != self._thread:
            raise CaptureError(
                f"DumpMode.{what}() was called in thread {threading.current_thread().name!r}; "
                "call it in the thread that entered the mode: torch keeps its modes per thread"
            )

    # -- steps

    def _begin_step(self) -> None:
        in_flight, self._in_flight = self._in_flight, []
        if self.current_step not in self.config.step_selection or self._sink is None:
            return
        header = Header(
            HEADER,
            FORMAT_VERSION,
            self.current_step,
            self._rank,
            self._world_size,
            time.time_ns(),
            os.getpid(),
            self.config.as_dict(),
        )
        self._paths.refresh()
        self._sink.begin_step(header)
        self._step_recorder = StepRecorder(
            self.config, self._sink, self._paths, self._api_mode, self._op_mode, self.failed, self._observe
        )
        self._step_recorder.begin_with(in_flight)
        self._install(self._step_recorder)

    def _end_step(self, stays: bool = False) -> None:
        """End the step in progress; with `stays`, all that watches the program is left in place for the next one."""
        recorder = self._step_recorder
        if recorder is None:
            return
        if stays:
            self.recorder = None
        else:
            self._uninstall()
            self._waits.remove()  # not while paused: what was started before may land then
        self._step_recorder = None
        self._guarded(lambda: self._finish_step(recorder))

    def _finish_step(self, recorder: StepRecorder) -> None:
        recorder.close()
        self._in_flight = recorder.flights.left
        self._steps += recorder.calls > 0  # a step without calls has no files
        for note in recorder.coverage.notes():
            self._unseen[note.code] += note.count
        if self._sink is not None:
            self._sink.end_step(recorder.calls, recorder.values.count, recorder.seconds)

    # -- on and off

    def _install(self, recorder: StepRecorder) -> None:
        if self._hooks:  # still in place from the step before
            self.recorder = recorder
            return
        self._hooks = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        self._modules.install()
        self._functions.install()
        self._compiled.install()
        self._waits.install()
        _push_mode(self._api_mode)
        _push_dispatch_mode(self._op_mode)
        self.recorder = recorder

    def _uninstall(self) -> None:
        if self.recorder is None and not self._hooks:
            return
        self.recorder = None
        _take_out(self._op_mode, _pop_dispatch_mode, _push_dispatch_mode)
        _take_out(self._api_mode, _pop_mode, _push_mode)
        self._modules.remove()
        self._functions.remove()
        self._compiled.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _module_call(
        self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any
    ) -> Any:
        recorder = self.recorder
        if recorder is None or not self._is_seen(recorder, type(module).__qualname__):
            return original(module, *args, **kwargs)
        try:
            kind = type(module)
            path = self._paths.path(module)
            name = CallName(f"{kind.__module__}.{kind.__qualname__}", "Module", path or kind.__name__)
            call = recorder.begin(MODULE, name, args, kwargs, frame, path)
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self.failed(error)
            return original(module, *args, **kwargs)
        try:
            with self._fast_path(module), self._pre_hooks(recorder, module, call):
                result = original(module, *args, **kwargs)
        except BaseException as error:
            finish(self, recorder, call, None, error)
            raise
        finish(self, recorder, call, result, None)
        return result

    @staticmethod
    def _is_seen(recorder: StepRecorder, name: str) -> bool:
        """Tell whether a call that begins here is to be recorded; count it where it cannot be seen."""
        if torch._C._len_torch_dispatch_stack() == 0:
            recorder.coverage.add("other_threads", name)
            return False
        if recorder.thread().busy:
            return False
        if is_traced():
            recorder.coverage.add("traced")
            return False
        return True

    @property
    def lets_compile(self) -> bool:
        """Whether dynamo may compile what it is asked to while the modes are on."""
        return self._compiled.is_watching or self.config.compile == "opaque"

    def step_aside(self) -> Callable[[], None]:
        """Take everything but the op mode away, for code that the compiler traces; return what puts it back."""
        recorder = self.recorder
        position = _position(self._api_mode)
        self._modules.remove()
        self._functions.remove()
        if position is not None:
            _take_out(self._api_mode, _pop_mode, _push_mode)

        def back() -> None:
            if self.recorder is not recorder or recorder is None:
                return  # recording stopped meanwhile, and with it everything was taken away
            self._modules.install()
            self._functions.install()
            if position is not None:
                _put_back(self._api_mode, position)

        return back

    def _fast_path(self, module: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a module of torch's with a fast path takes it as in the bare program.

        They ask `has_torch_function`, which is true under any function mode; so ours is off inside them in eval mode.
        """
        if isinstance(module, _FAST_PATH_MODULES) and not module.training:
            return _without(self._api_mode)
        return contextlib.nullcontext()

    def _pre_hooks(
        self, recorder: StepRecorder, module: nn.Module, call: OpenCall
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the arguments that pre-hooks make are recorded as those of the call."""
        if not has_pre_hooks(module):
            return contextlib.nullcontext()
        return PreHooks(module, lambda args, kwargs: recorder.replace_arguments(call, args, kwargs))

    def _function_call(
        self, original: Any, name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any
    ) -> Any:
        recorder = self.recorder
        if recorder is None or not self._is_seen(recorder, name.api):
            return original(*args, **kwargs)
        try:
            call = recorder.begin(API, name, args, kwargs, frame)
            call.is_function = True
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self.failed(error)
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            finish(self, recorder, call, None, error)
            raise
        finish(self, recorder, call, result, None)
        return result

    def _optimizer_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.recorder is not None:
            thread = self.recorder.thread()
            thread.optimizer_depth += 1
            thread.optimizer_pass = torch._C._current_graph_task_id()

    def _optimizer_ended(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.recorder is not None:
            thread = self.recorder.thread()
            thread.optimizer_depth = max(0, thread.optimizer_depth - 1)

    # -- failures

    def failed(self, error: Exception) -> None:
        """The recorder failed: raise the error, or warn once and record no more."""
        self.recorder = None  # the modes stay until the step ends, and pass everything through
        self._give_up(error)

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
            self._give_up(error)

    def failed_quietly(self, error: Exception) -> None:
        """The recorder failed while an error of the program is on its way: stop recording and warn, never raise."""
        self.recorder = None
        self._give_up(error, may_raise=False)

    def _give_up(self, error: Exception, may_raise: bool = True) -> None:
        first = self._failed is None
        self._failed = error
        if not isinstance(error, AtenDumpError):
            where = f"step {self.current_step}, rank {self._rank}"
            found = f"{type(error).__name__}: {error}"
            wrapped = CaptureError(
                f"the recorder failed at {where}: {found}; please report this, the program is not at fault"
            )
            wrapped.__cause__ = error
            error = wrapped
        if self.config.on_error == "raise" and may_raise:
            raise error
        if first:
            self._note("failed", str(error))
            warnings.warn(f"aten_dump records no more, the program goes on: {error}", stacklevel=3)

    def _note(self, code: str, message: str) -> None:
        if self._sink is not None and self._step_recorder is not None:
            with contextlib.suppress(AtenDumpError):  # it may be the sink that failed; the warning says so
                self._sink.emit(Note(NOTE, code, message, 1))


def _take_out(mode: Any, pop: Any, push: Any) -> None:
    """Take `mode` off a stack of modes, also when others were pushed above it and not yet popped."""
    above = []
    while True:
        top = pop()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        push(other)


def _position(mode: ApiMode) -> int | None:
    """Return where on the stack of function modes `mode` is, counted from the bottom."""
    stack = range(torch._C._len_torch_function_stack())
    return next((i for i in stack if torch._C._get_function_stack_at(i) is mode), None)


def _put_back(mode: ApiMode, position: int) -> None:
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack() - position)]
    for one in (mode, *reversed(above)):
        _push_mode(one)


@contextlib.contextmanager
def _without(mode: ApiMode) -> Iterator[None]:
    """Take the function mode off the stack for a while, where it is the top one."""
    stack = torch._C._len_torch_function_stack()
    if not stack or torch._C._get_function_stack_at(stack - 1) is not mode:
        yield
        return
    _pop_mode()
    try:
        yield
    finally:
        _push_mode(mode)


def _forget_in_child() -> None:
    """A forked child (a DataLoader's worker) inherits the modes but not the writer's thread: it records nothing."""
    for mode in list(_live):
        mode.recorder = None
        mode._step_recorder = None
        mode._sink = None
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
