"""Module calls as they are: `nn.Module.__call__` is wrapped while a step is recorded.

Hooks on the modules would travel into ``copy.deepcopy(model)`` and break ``torch.save(model)`` inside the block, and
hooks for all modules see neither keyword arguments nor what later hooks replace. One wrapper around
``nn.Module.__call__``, process-wide and only while a step is recorded, sees what the caller gave and what it got.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Final

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ..calling_frame import calling_frame
from ..interrupts import deliver, held, runs_program
from ..naming.call_name import CallName
from ..recorder import StepRecorder, Watch
from ..step.module_paths import ModulePaths
from ..step.open_calls import OpenCall
from ..torch_internals.mode_stack import without_function_mode
from ..torch_internals.module_hooks import may_replace_arguments
from ..torch_internals.patches import Patch

_FAST_PATH_MODULES: Final = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class PreHooks:
    """Lets the recorder see what a module's forward pre-hooks made of its arguments.

    torch copies the list of a module's pre-hooks when a call begins. This stands in it twice: called as the first it
    takes itself out of the module, so that none of the program's sees or saves it; called as the last, it has what
    ``forward`` will get. Modules without pre-hooks are left alone.
    """

    __slots__ = ("_module", "_waits", "_watch")

    def __init__(self, module: nn.Module, watch: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        self._module = module
        self._watch = watch
        self._waits = False

    def __enter__(self) -> None:
        hooks: Any = self._module._forward_pre_hooks
        hooks[id(self)] = self
        hooks[-id(self)] = self
        hooks.move_to_end(-id(self), last=False)
        self._module._forward_pre_hooks_with_kwargs[id(self)] = True
        self._waits = True

    def __exit__(self, *error: object) -> None:
        self._waits = False
        self._leave()
        self._module._forward_pre_hooks_with_kwargs.pop(id(self), None)

    def _leave(self) -> None:
        self._module._forward_pre_hooks.pop(id(self), None)
        self._module._forward_pre_hooks.pop(-id(self), None)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if module is not self._module or not self._waits:
            return
        if kwargs is None:  # as the first
            self._leave()
        else:
            self.__exit__()
            self._watch(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing  # a pre-hook for all modules copies its module


def _nothing(*args: Any) -> None:
    """Replace a copy of the recorder's hook."""


class ModuleCalls:
    """Wraps `nn.Module.__call__` while installed, and records each call."""

    def __init__(self, watch: Watch, paths: ModulePaths, function_mode: TorchFunctionMode) -> None:
        self._watch = watch
        self._paths = paths
        self._function_mode = function_mode
        self._patch: Patch | None = None

    def install(self) -> None:
        """Wrap it."""
        original = nn.Module.__call__
        run = self._run

        @runs_program
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # True to dynamo, where it traces this: what it compiles is not recorded
                return original(self, *args, **kwargs)
            return run(original, self, args, kwargs, calling_frame())

        self._patch = Patch(nn.Module, "__call__", __call__)

    def remove(self) -> None:
        """Put back what was there."""
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.undo()

    @runs_program
    def _run(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> Any:
        recorder = self._watch.recorder
        kind = type(module)
        if recorder is None or not recorder.calls.sees(kind.__qualname__):
            return original(module, *args, **kwargs)
        thread = recorder.step.here.state
        outer = thread.training
        thread.set_training(vars(module).get("training"))
        try:
            call = self._begin(recorder, module, args, kwargs, frame)
            if call is None:
                return original(module, *args, **kwargs)
            try:
                with self._fast_path(module), self._pre_hooks(recorder, module, call):
                    result = original(module, *args, **kwargs)
            except BaseException as error:
                recorder.calls.end(thread, call, None, error)
                raise
            recorder.calls.end(thread, call, result, None)
        finally:
            thread.set_training(outer)
        if held:
            deliver()
        return result

    def _begin(
        self,
        recorder: StepRecorder,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> OpenCall | None:
        kind = type(module)
        try:
            path = self._paths.path(module)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            recorder.step.failed(error)
            return None
        name = CallName(f"{kind.__module__}.{kind.__qualname__}", "Module", path or kind.__name__)
        return recorder.calls.begin_module(name, args, kwargs, frame, path)

    def _fast_path(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which a module of torch's with a fast path takes it as in the bare program.

        They ask `has_torch_function`, which is true under any function mode; so ours is off inside them in eval mode.
        """
        if isinstance(module, _FAST_PATH_MODULES) and not module.training:
            return without_function_mode(self._function_mode)
        return nullcontext()

    @staticmethod
    def _pre_hooks(recorder: StepRecorder, module: nn.Module, call: OpenCall) -> AbstractContextManager[None]:
        """Return a context in which the arguments that pre-hooks make are recorded as those of the call."""
        if not may_replace_arguments(module):
            return nullcontext()
        return PreHooks(module, lambda args, kwargs: recorder.calls.replace_arguments(call, args, kwargs))
