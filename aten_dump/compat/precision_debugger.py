"""`PrecisionDebugger`: msprobe's class, recording with `DumpMode`.

Where msprobe's is told to start, a DumpMode is entered or resumed; where it is told to stop, it is paused.
What it writes is a dump of ours. Calls are found in it by the names that msprobe gives them, too.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from ..capture.launcher_rank import rank_and_world_size
from ..capture.mode import DumpMode
from ..errors import CaptureError, ConfigError
from .custom_apis import CustomApis
from .debugger_settings import ConfigSwitch, read_settings
from .token_range import TokenRange, range_of

Models = nn.Module | Sequence[nn.Module]


class PrecisionDebugger:
    """Record as msprobe's class of this name is told to. There is one in a process: a second call returns the first.

    Args:
        config_path: msprobe's config.json; None stands for task statistics, level L1.
        task: ``statistics``, ``tensor`` or ``structure``, in place of the config's; this and what follows.
        dump_path: directory of the dump. What an earlier run has left there is replaced.
        level: ``L0`` (modules), ``L1`` (Python-level calls), ``L2`` (aten ops), ``mix`` (all), ``debug`` (only `save`).
        step: steps to record, ints and ranges such as ``"2-4"``; empty means all.
        model: the model, which older scripts name here and later ones in `start`.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """

    _instance: ClassVar[PrecisionDebugger | None] = None
    _is_ready = False

    def __new__(cls, *args: Any, **kwargs: Any) -> PrecisionDebugger:
        if PrecisionDebugger._instance is None:
            PrecisionDebugger._instance = super().__new__(cls)
        return PrecisionDebugger._instance

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        step: Sequence[int | str] | None = None,
        *,
        model: Models | None = None,
    ) -> None:
        if self._is_ready:
            return
        path = None if dump_path is None else os.fspath(dump_path)
        self._settings = read_settings(config_path, {"task": task, "dump_path": path, "level": level, "step": step})
        self._switch = ConfigSwitch(config_path, self._settings.switch)
        self._model = model
        self._mode: DumpMode | None = None  # from the first start on
        self._first_step = 0
        self._steps = 0  # that have ended, since the first step was set
        self._is_on = False
        self._tokens: TokenRange | None = None
        self._apis = CustomApis()
        self._is_ready = True
        atexit.register(self._close)

    @classmethod
    def start(
        cls,
        model: Models | None = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Mapping[str, int] | None = None,
    ) -> None:
        """Record from now on.

        Args:
            model: the model or models; they may be named later than the first start, too.
            token_range: of the calls of the model since here, record those from the first to the last.
            rank_id: number of this process. It must be the one that torch.distributed or the launcher tells.
            scheduled_tokens: tokens of each request to a server; requests are not told apart here.
        """
        self = cls._get()
        known, _ = rank_and_world_size()
        if rank_id is not None and rank_id != known:
            raise ConfigError(
                f"PrecisionDebugger.start: rank_id is {rank_id}, but this process is rank {known} to torch.distributed "
                "or its launcher; set RANK and WORLD_SIZE in its environment"
            )
        self._model = self._model if model is None else model
        if self._settings.saved_only or not self._switch.is_on():
            self._pause()
            return
        if token_range is None:
            self._resume()
        else:
            self._begin_tokens(token_range)

    @classmethod
    def stop(cls) -> None:
        """Record no more until `start`; a backward pass that comes now is not recorded."""
        self = cls._get()
        if not self._settings.saved_only:
            self._pause()

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """End the block that `start` began: its backward goes on to be recorded until `stop`, and nothing else."""
        self = cls._get()
        if self._is_on and self._mode is not None and not self._settings.saved_only:
            self._is_on = False
            self._mode.pause(keep_backward=True)

    @classmethod
    def step(cls) -> None:
        """End a step; what was recorded of it is on file, and can be read."""
        self = cls._get()
        self._steps += 1
        if self._mode is None:
            return
        self._is_on = self._is_on and not self._settings.saved_only and self._switch.is_on()
        self._go_on(paused=not self._is_on)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record a tensor, or those in lists, tuples and dicts, under a name: ``rank.saved[name]``.

        At level ``debug`` nothing else is recorded; at other levels it counts between `start` and `stop`.

        Args:
            variable: a tensor, number or string, or several of them.
            name: the name; what is in a list or dict has its key behind that.
            save_backward: record gradients of the tensors too.
        """
        self = cls._get()
        if self._settings.saved_only and self._switch.is_on():
            self._resume()
        mode = self._mode
        if mode is None or not self._is_on:
            return
        for path, item in _items(name, variable):
            if isinstance(item, torch.Tensor):
                mode.save(path, item if save_backward else item.detach())
            else:
                mode.mark(f"{path} = {item!r}")

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Count steps from `step` on, as where a training goes on from a checkpoint."""
        self = cls._get()
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ConfigError(f"PrecisionDebugger.set_init_step: step is {step!r}; allowed: an int of 0 or more")
        self._first_step, self._steps = step, 0
        if self._is_on:
            self._go_on()

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record the calls of ``module.api``, a function of the program's own, as ``api_prefix.api``."""
        cls._get()._apis.register(module, api, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Leave ``module.api`` as it was before `register_custom_api`."""
        cls._get()._apis.restore(module, api)

    # -- below this line: what the methods above are made of

    @classmethod
    def _get(cls) -> PrecisionDebugger:
        if PrecisionDebugger._instance is None:
            raise CaptureError("there is no PrecisionDebugger yet; make one before calling its methods")
        return PrecisionDebugger._instance

    def _resume(self) -> None:
        self._is_on = True
        if self._mode is not None:
            self._go_on()
            self._mode.resume()
            return
        model = self._model if self._model is None or isinstance(self._model, nn.Module) else _by_number(self._model)
        self._mode = DumpMode(self._settings.config, model=model).start(self._first_step + self._steps)

    def _go_on(self, *, paused: bool = False) -> None:
        """Put the mode into the step in progress; steps in which nothing was started are left out of the dump."""
        number = self._first_step + self._steps
        if self._mode is not None and self._mode.current_step != number:
            self._mode.step(number, paused=paused)

    def _pause(self) -> None:
        self._is_on = False
        if self._mode is not None:
            self._mode.pause()

    def _begin_tokens(self, token_range: Sequence[int]) -> None:
        first, last = range_of(token_range)
        if self._model is None:
            raise ConfigError("PrecisionDebugger.start: token_range counts calls of the model; pass it as model")
        model = self._model if isinstance(self._model, nn.Module) else self._model[0]
        if self._tokens is None:
            self._tokens = TokenRange(model, first, last, self._resume, self._pause)
        self._pause()
        self._tokens.begin()

    def _close(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.close()


def _items(name: str, variable: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a variable holds, each under a name of its own."""
    if isinstance(variable, list | tuple | dict):
        pairs = variable.items() if isinstance(variable, dict) else enumerate(variable)
        for key, item in pairs:
            yield from _items(f"{name}.{key}", item)
    else:
        yield name, variable


def _by_number(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    return {str(number): model for number, model in enumerate(models)}
