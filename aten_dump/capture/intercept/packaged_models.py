"""Models that AOTInductor compiled ahead of time: each run of one is recorded as one call.

Theory of operation
    A packaged model runs in C++. A few of its ops come by the dispatcher, its kernels do not, and these write to the
    memory that such an op was seen to write. So the methods of torch that run one are wrapped while a step is recorded,
    and a run is treated as that of a compiled function: ops in it, and all that follows, take memory for what it was
    only if it holds the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..calling_frame import calling_frame
from ..interrupts import deliver, held, runs_program
from ..naming.call_name import CallName
from ..recorder import StepRecorder, Watch
from ..step.open_calls import OpenCall
from ..torch_internals.compiler import PACKAGED_MODELS
from ..torch_internals.engine import len_dispatch_stack
from ..torch_internals.patches import Patch

_RUNS: Final = ("run", "boxed_run")


class PackagedModels:
    """Wraps the methods that run a packaged model while installed, and records each run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Wrap them."""
        for owner in vars(PACKAGED_MODELS).values() if PACKAGED_MODELS is not None else ():
            for method in _RUNS if isinstance(owner, type) else ():
                if method in vars(owner):
                    self._wrap(owner, method)

    def remove(self) -> None:
        """Put back what was there."""
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = []

    def _wrap(self, owner: type, method: str) -> None:
        original = getattr(owner, method)
        name = CallName(f"torch._C._aoti.{owner.__name__}.{method}", "Torch", f"aoti.{method}")

        @runs_program
        def wrapper(self_: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = self._watch.recorder
            if recorder is None or recorder.step.here.state.own.depth or not len_dispatch_stack():
                return original(self_, *args, **kwargs)
            call = recorder.calls.begin(recorder.step.here.state, name, args, kwargs, calling_frame())
            result = self._run(recorder, call, lambda: original(self_, *args, **kwargs))
            if held:
                deliver()
            return result

        self._patches.append(Patch(owner, method, wrapper))

    @staticmethod
    @runs_program
    def _run(recorder: StepRecorder, call: OpenCall | None, run: Callable[[], Any]) -> Any:
        thread, storages = recorder.step.here.state, recorder.values.storages
        recorder.step.coverage.add("packaged_model")
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
