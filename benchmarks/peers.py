"""What else a user could put around the same step."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .measure import Mode, Sample, Sampler, timed
from .workloads import Workload


class _EmptyDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _EmptyFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _SaveOutputs(TorchDispatchMode):
    """A file per tensor that an op returns: what one would write in ten minutes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder = folder
        self._numbers = itertools.count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor):
                torch.save(leaf.detach().clone(), self._folder / f"{next(self._numbers)}.pt")
        return result


def _within(make: Callable[[], AbstractContextManager[object]]) -> Callable[..., AbstractContextManager[Sampler]]:
    """Return the start of a mode that is entered afresh for each step and writes nothing."""

    @contextlib.contextmanager
    def start(workload: Workload, folder: Path) -> Iterator[Sampler]:
        def step() -> None:
            with make():
                workload.step()

        yield functools.partial(_sample, step)

    return start


def _sample(step: Callable[[], None], steps: int) -> Sample:
    return timed(steps, step)


@contextlib.contextmanager
def _empty() -> Iterator[None]:
    with _EmptyDispatch(), _EmptyFunction():  # type: ignore[no-untyped-call]
        yield


@contextlib.contextmanager
def _debug_mode(hashes: bool = False, hash_inputs: bool = False, stacks: bool = False) -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    with contextlib.ExitStack() as stack:
        stack.enter_context(DebugMode(record_stack_trace=stacks))
        if hashes:
            stack.enter_context(DebugMode.log_tensor_hashes(hash_inputs=hash_inputs))
        yield


@contextlib.contextmanager
def _save_outputs(workload: Workload, folder: Path) -> Iterator[Sampler]:
    numbers = itertools.count()

    def sample(steps: int) -> Sample:
        path = folder / str(next(numbers))
        path.mkdir()

        def step() -> None:
            with saving:
                workload.step()

        saving = _SaveOutputs(path)
        return timed(steps, step, lambda: (path,))

    yield sample


@contextlib.contextmanager
def _execution_trace(workload: Workload, folder: Path) -> Iterator[Sampler]:
    from torch.profiler import ExecutionTraceObserver

    numbers = itertools.count()

    def sample(steps: int) -> Sample:
        path = folder / f"{next(numbers)}.json"
        observer = ExecutionTraceObserver()
        observer.register_callback(str(path))

        def finish() -> tuple[Path, ...]:
            observer.stop()
            observer.unregister_callback()
            return (path,)

        observer.start()
        return timed(steps, workload.step, finish)

    yield sample


def _msprobe(level: str, task: str, summary: str = "statistics") -> Callable[..., AbstractContextManager[Sampler]]:
    @contextlib.contextmanager
    def start(workload: Workload, folder: Path) -> Iterator[Sampler]:
        from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]

        out = folder / "out"
        choice = {"scope": [], "list": [], "data_mode": ["all"]}
        config = {
            "task": task,
            "dump_path": str(out),
            "rank": [],
            "step": [],
            "level": level,
            "statistics": {**choice, "summary_mode": summary},
            "tensor": choice,
        }
        (folder / "config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
        numbers = itertools.count()

        def step() -> None:
            debugger.start(model=workload.model)
            workload.step()
            debugger.stop()
            debugger.step()

        def sample(steps: int) -> Sample:
            written = tuple(out / f"step{next(numbers)}" for _ in range(steps))
            return timed(steps, step, lambda: written)

        yield sample

    return start


def _msprobe_mode(level: str, name: str, task: str, summary: str = "statistics") -> Mode:
    # Once mounted, its patches stay after stop().
    return Mode(f"msprobe-{level}-{name}", "msprobe", _msprobe(level, task, summary), is_paired=False)


PEERS = (
    Mode("empty-modes", "peers", _within(_empty)),
    Mode("debugmode", "peers", _within(_debug_mode)),
    Mode("debugmode-hashes", "peers", _within(functools.partial(_debug_mode, hashes=True))),
    Mode("debugmode-hashes-io", "peers", _within(functools.partial(_debug_mode, hashes=True, hash_inputs=True))),
    Mode("debugmode-stacks", "peers", _within(functools.partial(_debug_mode, stacks=True))),
    Mode("execution-trace", "peers", _execution_trace),
    Mode("torch-save", "peers", _save_outputs),
    *(
        mode
        for level in ("L1", "mix")
        for mode in (
            _msprobe_mode(level, "statistics", "statistics"),
            _msprobe_mode(level, "md5", "statistics", "md5"),
            _msprobe_mode(level, "tensor", "tensor"),
        )
    ),
)
