"""Custom autograd functions as calls: `torch.autograd.Function.apply` is wrapped while a step is recorded.

Theory of operation
    ``apply`` is no torch function: no mode sees it, only the ops in its ``forward``. It is looked up on the class at
    each call, so one wrapper around ``torch.autograd.Function.apply``, there only while a step is recorded, sees all
    of them but those whose bound method the program took earlier (``f = MyFunction.apply`` at import): the node of
    such a one belongs to the first op of its ``forward``.

    A plain function of the program's own is a call where the program asks for it: `run_as_call`.

    A module's full backward hooks are built on a Function of torch's own, which computes nothing: it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..calling_frame import calling_frame
from ..interrupts import deliver, held, runs_program
from ..naming.call_name import CallName
from ..recorder import StepRecorder, Watch
from ..torch_internals.module_hooks import BackwardHookFunction
from ..torch_internals.patches import Patch

_names: Final[WeakKeyDictionary[type, CallName]] = WeakKeyDictionary()  # a class may be made for one call


def name_of_function(kind: type) -> CallName:
    """Return the name of a subclass of torch.autograd.Function."""
    name = _names.get(kind)
    if name is None:
        name = _names[kind] = CallName(f"{kind.__module__}.{kind.__qualname__}", "Torch", kind.__name__)
    return name


class FunctionCalls:
    """Wraps `torch.autograd.Function.apply` while installed, and records each call."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._patch: Patch | None = None

    def install(self) -> None:
        """Wrap it."""
        original = vars(torch.autograd.Function)["apply"]
        watch = self._watch

        @runs_program
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(None, cls)
            if issubclass(cls, BackwardHookFunction):
                return bound(*args, **kwargs)
            return _run(watch.recorder, _Called(bound, name_of_function(cls), calling_frame(), True), args, kwargs)

        self._patch = Patch(torch.autograd.Function, "apply", classmethod(apply))

    def remove(self) -> None:
        """Put back what was there."""
        patch, self._patch = self._patch, None
        if patch is not None:
            patch.undo()


class _Called(NamedTuple):
    function: Callable[..., Any]
    name: CallName
    frame: FrameType | None  # that calls it
    is_autograd: bool  # the `apply` of an autograd function


@runs_program
def run_as_call(
    watch: Watch, function: Callable[..., Any], name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a function that the program has called two frames above this one, as a call of this name."""
    return _run(watch.recorder, _Called(function, name, calling_frame(2), False), args, kwargs)


@runs_program
def _run(recorder: StepRecorder | None, called: _Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function = called.function
    if recorder is None or not recorder.calls.sees(called.name.api):
        return function(*args, **kwargs)
    thread = recorder.step.here.state
    call = recorder.calls.begin(thread, called.name, args, kwargs, called.frame)
    if call is None:
        return function(*args, **kwargs)
    call.is_function = called.is_autograd
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        recorder.calls.end(thread, call, None, error)
        raise
    recorder.calls.end(thread, call, result, None)
    if held:
        deliver()
    return result
