"""A function of the recorder that runs once, right before the program's next call of a module."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from ..torch_internals.engine import current_graph_task_id
from ..torch_internals.patches import Patch


class NextModuleCall:
    """Waits for the next call of a module in the main thread that backward does not make (a checkpoint's does).

    Args:
        run: is called before the module, which then runs under whatever modes and wrappers `run` has put there.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run
        self._patch = Patch(nn.Module, "__call__", self._wrapping(nn.Module.__call__))

    def cancel(self) -> bool:
        """Wait no more; return True if it has waited until now."""
        run, self._run = self._run, None
        if run is not None:
            self._patch.undo()
        return run is not None

    def _wrapping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            run = self._run
            if run is None or is_dynamo_compiling() or not _is_programs_turn():
                return original(module, *args, **kwargs)
            self._run = None
            is_gone = self._patch.undo()  # else somebody has wrapped it since, and called us
            run()
            return (nn.Module.__call__ if is_gone else original)(module, *args, **kwargs)

        return __call__


def _is_programs_turn() -> bool:
    return threading.current_thread() is threading.main_thread() and current_graph_task_id() == -1
