"""The function of torch that calls what torch.compile made: which one it is, and what its frame shows.

Theory of operation
    ``torch._dynamo.eval_frame`` puts a wrapper around each compiled function. It is called ``compile_wrapper``, and
    ``_fn`` in torch 2.6 to 2.8, where the wrapper of ``torch.compiler.disable`` is called so too; so it is known by its
    code. The older one returns what was computed without naming it: then nobody who sees the frame sees the result.

    While the compiler is on, it compiles each frame that begins, those of the recorder too. A newer torch leaves
    one function alone, with what it calls, if asked to; with an older one, ours switch the compiler off.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MODULE: Final = "torch._dynamo.eval_frame"
SWITCH: Final = "_maybe_set_eval_frame"  # what the wrapper asks to switch the compiler on and back
_WRAPPERS: Final = ("compile_wrapper", "_fn")
_OPERATORS: Final = "torch._higher_order_ops."
UNSEEN: Final = "what a compiled function returns is not seen with this version of torch"
_MOST_WRAPPED: Final = 16  # callbacks around a backend
_ATTENTION: Final = "torch.nn.attention.flex_attention"
# What has the methods that run a model which AOTInductor compiled: torch's classes of C++.
PACKAGED_MODELS: Final[Any] = getattr(torch._C, "_aoti", None)
_frames: Final[Any] = getattr(torch._C._dynamo, "eval_frame", None)
_set_strategy: Final[Any] = getattr(_frames, "set_code_exec_strategy", None)
_skip: Final[Any] = getattr(_frames, "skip_code", None)

# To an older torch a tensor is another input where a mode is on the stack: a compiled function would be compiled anew.
compiles_alike_under_modes: Final = hasattr(TorchDispatchMode, "ignore_compile_internals")
can_leave_alone: Final = _set_strategy is not None  # a function of the recorder, and what it calls
set_compiler: Final[Callable[[Any], Any]] = getattr(_frames, "set_eval_frame", lambda callback: None)


def leave_alone(function: Any) -> None:
    """Keep dynamo from compiling `function`; what it calls too where torch `can_leave_alone`."""
    if _set_strategy is not None:
        action = _frames._FrameAction.SKIP
        _set_strategy(function.__code__, _frames._FrameExecStrategy(action, action))
    elif _skip is not None:
        _skip(function.__code__)


def run_as_written(function: Any) -> None:
    """Keep dynamo from compiling `function`, also as a part of what calls it; what it calls is compiled as ever."""
    if _skip is not None:
        _skip(function.__code__)
    function._torchdynamo_disable = True  # as torch._dynamo.skip does, which would import the compiler


def wrapper_of(module: ModuleType) -> CodeType | None:
    """Return the code of the wrapper around compiled functions; None of a torch that has another one."""
    context = getattr(module, "_TorchDynamoContext", None)
    made = context.__call__.__code__.co_consts if context is not None else ()
    return next((code for code in made if isinstance(code, CodeType) and code.co_name in _WRAPPERS), None)


def result_of(frame: FrameType, handled: BaseException | None) -> tuple[Any, BaseException | None]:
    """Return what a wrapper's frame that is about to end returns, `UNSEEN` where it does not say, and what it raises.

    Args:
        frame: the wrapper's.
        handled: the exception that was being handled when it began.
    """
    values = frame.f_locals
    if "result" in values:
        return values["result"], None
    error = sys.exc_info()[1]
    return (UNSEEN, None) if error is handled else (None, error)


def name_of_compiled(frame: FrameType) -> str:
    """Return the qualified name of the function that a wrapper's frame calls."""
    function = frame.f_locals.get("fn")
    if callable(function):
        function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.rpartition("<locals>.")[2]


def is_for_higher_order(frame: FrameType) -> bool:
    """Return True if a higher-order operator has the compiler trace its arguments."""
    operators = sys.modules.get(_OPERATORS + "utils")
    if operators is None:
        return False
    asked = getattr(operators, "_in_hop_compile", None)
    if asked is not None:
        return bool(asked())
    function = frame.f_locals.get("fn")
    room = str(getattr(function, "__module__", ""))
    is_local = "<locals>" in str(getattr(function, "__qualname__", ""))
    return room.startswith(_OPERATORS) or (room == _ATTENTION and is_local)


def is_inductor(frame: FrameType) -> bool:
    """Return True if the compiled function of a wrapper's frame is compiled by inductor."""
    found = getattr(frame.f_locals.get("self"), "callback", None)
    for _ in range(_MOST_WRAPPED):
        backend = getattr(found, "_torchdynamo_orig_backend", None) or getattr(
            found, "_torchdynamo_orig_callable", None
        )
        if backend is None:
            break
        found = backend
    return getattr(found, "compiler_name", "") == "inductor"
