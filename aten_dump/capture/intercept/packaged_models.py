"""Models that AOTInductor compiled ahead of time: each run of one is recorded as one call (`unseen_runs`)."""

from __future__ import annotations

from typing import Any, Final

from ..interrupts import runs_program
from ..naming.call_name import CallName
from ..recorder import Watch
from ..torch_internals.compiler import PACKAGED_MODELS
from ..torch_internals.patches import Patch
from .unseen_runs import is_seen, run_as_one_call

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
            if recorder is None or not is_seen(recorder):
                return original(self_, *args, **kwargs)
            return run_as_one_call(
                recorder, name, "packaged_model", (args, kwargs), lambda: original(self_, *args, **kwargs)
            )

        self._patches.append(Patch(owner, method, wrapper))
