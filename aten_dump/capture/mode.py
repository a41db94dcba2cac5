"""`DumpMode`: the context manager that a program is recorded in."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

import torch
from torch import nn

from ..config import DumpConfig
from ..errors import AtenDumpError, ConfigError
from ..store.sink import Sink
from .calling_frame import calling_frame
from .intercept.compiled_functions import CompiledCalls
from .intercept.compiled_kernels import CompiledKernels
from .intercept.custom_functions import FunctionCalls, run_as_call
from .intercept.device_graphs import DeviceGraphs
from .intercept.interception import Interception, Interceptor
from .intercept.module_calls import ModuleCalls
from .intercept.optimizer_steps import OptimizerSteps
from .intercept.packaged_models import PackagedModels
from .intercept.swapped_tensors import SwappedTensors
from .intercept.torch_modes import ApiMode, new_op_mode
from .intercept.wait_wrappers import Waits
from .interrupts import HeldSignals, deliver, runs_program
from .naming.call_name import CallName
from .recorder import Watch
from .session import Session, state_of, step_number
from .step.module_paths import ModulePaths
from .step.step import text_of
from .step_state import StepState
from .torch_internals.compiled_autograd import PassCompiler
from .torch_internals.higher_order import HigherOrderRules
from .torch_internals.mode_stack import Modes
from .torch_internals.packed_tensors import refuse_hooks
from .trigger.against import Difference
from .trigger.golden import recorded_alike

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_entered: Final[list[DumpMode]] = []  # kept: an error may take the program's own reference


class DumpMode:
    """Record what runs inside the block.

    It has more than twenty methods: all functions for a recorded program are methods of this class.

    Args:
        config: what to record; None reads the file that ATEN_DUMP_CONFIG names.
        model: the model, or a mapping of names to models, or a list of models (their names are 0, 1, ...), to give
            module paths. Without it the first module called is taken as the model. It is not changed and not kept
            alive.
        sink: where records go instead of files; for tests.
        outermost: record as if the mode were entered before all modes of torch that are active now (a default device,
            a FlopCounterMode): for a mode that is entered later and outlives them.
        against: an earlier dump with hashes, as in `DumpConfig.against`. `first_difference` has the result.

    Raises:
        ConfigError: `config` or `model` is something else, or the installed torch cannot do what `config` asks for.
        StoreError: on entering, if the dump cannot be written there.
        CaptureError: if the recorder fails and ``on_error="raise"``.

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
        model: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None = None,
        sink: Sink | None = None,
        outermost: bool = False,
        against: str | os.PathLike[str] | None = None,
    ) -> None:
        found = DumpConfig.from_environment() if config is None else config
        if not isinstance(found, DumpConfig):
            raise ConfigError(f"DumpMode got {config!r} as its config; allowed: a DumpConfig(path=...), or None")
        self.config = recorded_alike(found if against is None else dataclasses.replace(found, against=against))
        if self.config.saved_tensors == "hooks":
            refuse_hooks()
        paths, self._watch = ModulePaths(model), Watch()
        self._paths = paths
        self._interception = _interception(self.config, paths, self._watch, outermost)
        self._session = Session(self.config, paths, sink, self._watch, self._interception)
        kernels = [CompiledKernels(self._watch)] if self.config.compile == "kernels" else []
        self._throughout: list[Interceptor] = [*kernels, DeviceGraphs(self._watch, self._session.settle)]
        self._signals = HeldSignals(self._watch.is_busy)

    def __enter__(self) -> DumpMode:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not isinstance(error, GeneratorExit):  # that is how a generator's block ends
                self._session.ended_by(error)
            self.close()
        except AtenDumpError as own:
            if error is None:
                raise
            if str(own) != str(error):  # not what ends the block already
                warnings.warn(f"aten_dump: {own}", stacklevel=2)  # the program's own error goes first

    def start(self, step: int | None = None) -> DumpMode:
        """Begin to record, as ``with`` does; `close` ends it.

        Args:
            step: number of the first step; None is 0.

        Returns:
            This mode.

        Raises:
            CaptureError: a DumpMode is entered already in this process.
            StoreError: the dump cannot be written.
        """
        if step is not None and not self._session.is_entered:
            self._session.current_step = step_number("start", step)
        try:
            self._signals.install()
            if not self._session.is_entered:
                for one in self._throughout:
                    one.install()
            self._session.enter()
        finally:
            if self._session.is_entered and self not in _entered:
                _entered.append(self)
            elif not self._session.is_entered:
                self._signals.remove()
                for one in self._throughout:
                    one.remove()
                deliver()
        try:
            deliver()
        except BaseException:
            self.close()  # who is interrupted here has no handle to close it by
            raise
        return self

    @staticmethod
    def current() -> DumpMode | None:
        """Return the mode that is entered in this process; None if there is none."""
        return next((mode for mode in reversed(_entered) if mode._session.is_entered), None)

    @property
    def current_step(self) -> int:
        """The number of the step in progress."""
        return self._session.current_step

    @property
    def first_difference(self) -> Difference | None:
        """With ``against``, the first call that is not as that dump has it; None if none was found so far.

        It has ``step, rank, call`` (`Call.id`), ``name, op, module, source, slot, text``; `str` of it says all. Ask
        after the step: what is known of a call may come later than the call.
        """
        return self._session.first_difference

    @property
    def unseen(self) -> dict[str, int]:
        """What the steps that have ended do not show: how often, by the code of the note (docs/limitations.md)."""
        return dict(self._session.unseen)

    def step(self, number: int | None = None, *, paused: bool = False) -> None:
        """End the step in progress and begin the next one.

        Args:
            number: of the next one; None is the following.
            paused: the next one begins with `resume`; nothing is recorded before, and no files are made.

        Raises:
            ConfigError: `number` is no number above that of the step in progress.
        """
        self._session.step(number, paused=paused)
        deliver()

    def repeat_step(
        self, function: Callable[[], object], times: int = 2, *, restore: Callable[[], object] | None = None
    ) -> list[int]:
        """Run a training step several times from the same state, each as a recorded step: are the bits the same?

        Parameters, gradients and buffers of the models, optimizers that step and all random generators are put back
        bit by bit before each further run; afterwards all is as if the step had run once. ``aten-dump compare dump dump
        --step 1:0`` names the first op that differs; with ``data="hash"`` by its bits. All ranks call it.

        Args:
            function: the step, without ``dump.step()``.
            times: how often it runs, 2 or more.
            restore: called before each further run, to put back what else the step changes: a scheduler, an iterator.

        Returns:
            The numbers of the steps.

        Raises:
            ConfigError: `times` is no whole number from 2 on.
        """
        if not isinstance(times, int) or isinstance(times, bool) or times < 2:
            raise ConfigError(f"DumpMode.repeat_step got times={times!r}; allowed: a whole number from 2 on")
        state, numbers = StepState(self._paths.models()), []
        with state.watching_optimizers():
            for number in range(times):
                if number:
                    state.put_back()
                    if restore is not None:
                        restore()
                numbers.append(self._session.current_step)
                function()
                self.step()
        return numbers

    def flush(self) -> None:
        """Wait until all that was recorded so far is on file, of the step in progress and of those that have ended.

        With ``durability="fsync"`` it is on the disk then.

        Raises:
            StoreError: something could not be written; the message says what.
        """
        self._session.flush()
        deliver()

    def pause(self, *, keep_backward: bool = False) -> None:
        """Stop recording until `resume`; the step goes on.

        Args:
            keep_backward: go on to record the backward of the calls that were recorded, and nothing else. Of what
                checkpointing runs again, nothing is.
        """
        self._session.pause(keep_backward=keep_backward)
        deliver()

    def resume(self) -> None:
        """Record again after `pause`, within the same step."""
        self._session.resume()
        deliver()

    @runs_program
    def run_as_call(
        self, function: Callable[..., Any], name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function that the caller's caller was called for, and record it as a Python-level call."""
        return run_as_call(self._watch, function, name, args, kwargs)

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor under a name, and its gradient when backward computes it: ``rank.saved[name]`` has both.

        Does nothing while nothing is recorded. `DumpConfig.data` says what is kept of it, as of any tensor.

        Raises:
            ConfigError: it is no tensor, or the name is no text.
        """
        _check_text("save", name)
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"DumpMode.save({name!r}) got a {type(tensor).__name__}; allowed: a torch.Tensor")
        recorder = self._watch.recorder
        if recorder is not None:
            recorder.remarks.save(name, tensor, calling_frame())

    def mark(self, text: str) -> None:
        """Record a text where the program is: ``rank.marks`` has it, and the tree of calls.

        Raises:
            ConfigError: it is no text.
        """
        _check_text("mark", text)
        recorder = self._watch.recorder
        if recorder is not None:
            recorder.remarks.mark(text, calling_frame())

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put what runs in the block under a level of the tree, ``Scope.{name}``, and its backward too.

        Raises:
            ConfigError: the name is no text.

        Example:
            >>> with dump.scope("attention"):
            ...     scores = (q @ k.mT).softmax(-1) @ v
        """
        _check_text("scope", name)
        recorder = self._watch.recorder
        call = None if recorder is None else recorder.remarks.begin_scope(name, calling_frame(2))
        if recorder is None or call is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            recorder.remarks.end_scope(call, error)
            raise
        recorder.remarks.end_scope(call, None)

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Record each call of a function as a step: ``DumpMode`` as its decorator.

        Nothing is recorded between the calls. The dump ends with the process, or with `close` of this mode.

        Example:
            >>> @DumpMode(DumpConfig(path="dump", steps="0|5-8"), model=model)
            ... def train_step(batch):
            ...     loss = model(batch); loss.backward(); optimizer.step()
        """
        begun: list[Finalize] = []

        @functools.wraps(function)
        def step(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if not begun:
                self.start()
                begun.append(Finalize(None, self.close, exitpriority=0))
            elif self._session.is_entered:
                self.resume()
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                self._session.note("exception", f"{text_of(error)} ended the step")
                raise
            finally:
                if self._session.is_entered:
                    self.step(paused=True)

        return step

    @contextlib.contextmanager
    def thread(self) -> Iterator[None]:
        """Record the calling thread too, inside this block: torch keeps its modes per thread.

        Steps are ended by the thread that entered the mode; end one while no other thread is inside a call.

        Example:
            >>> def worker():
            ...     with dump.thread():
            ...         model(batch)
        """
        with self._interception.on_this_thread() if self._session.is_recording else contextlib.nullcontext():
            yield

    def __deepcopy__(self, memo: dict[int, Any]) -> DumpMode:
        """Return this mode: what a program copies (a model, a trainer's state) may hold it, and it records once."""
        return self

    def __repr__(self) -> str:
        return f"<DumpMode of {os.fspath(self.config.path)!r}: {state_of(self._session)}>"

    def close(self) -> None:
        """Commit the step in progress and wait until all of it is on file. Idempotent."""
        try:
            self._session.close()
        finally:
            if not self._session.is_entered:
                if self in _entered:
                    _entered.remove(self)
                self._signals.remove()
                self._interception.remove()
                for one in self._throughout:
                    one.remove()
            deliver()


def _check_text(method: str, text: object) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"DumpMode.{method} got {text!r:.100}, a {type(text).__name__}; allowed: a text")


def stop_all() -> None:
    """Close every mode that is entered in this process, for where an error has lost the handle.

    Call it in the thread that entered the mode.

    Raises:
        AtenDumpError: as `DumpMode.close`; the others are closed all the same.

    Example:
        >>> stop_all()
    """
    with contextlib.ExitStack() as stack:
        for mode in _entered:
            stack.callback(mode.close)


def _interception(config: DumpConfig, paths: ModulePaths, watch: Watch, outermost: bool) -> Interception:
    """Return all that is to see the program while a step is recorded."""
    compiled = CompiledCalls(watch, config, lambda ops_too: interception.step_aside(ops_too))
    op_mode = new_op_mode(watch, compiled.lets_compile)
    api_mode = ApiMode(watch, op_mode)
    interception = Interception(
        Modes(api_mode, op_mode, outermost),
        traced=[ModuleCalls(watch, paths, api_mode), FunctionCalls(watch)],
        others=[compiled, PackagedModels(watch), OptimizerSteps(watch), HigherOrderRules(op_mode)],
        lasting=[Waits(watch), SwappedTensors(paths), PassCompiler(watch.passes_are_compiled)],
    )
    return interception
