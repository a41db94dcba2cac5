"""A step recorded whole, because of an alert: a `DumpMode` that is entered at the first, and paused between."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable

from torch import nn

from ..capture.intercept.next_module_call import NextModuleCall
from ..capture.launcher_rank import folder_of_attempt
from ..capture.mode import DumpMode
from ..config import DumpConfig
from ..errors import AtenDumpError, ConfigError


class StepRecording:
    """Records a step after `arm`, from one `switch` to the next.

    Args:
        record: where; None: nowhere.
        most: so many steps.
        models: with their prefixes.

    Raises:
        ConfigError: `record` is something else, or there is a dump already.
    """

    def __init__(
        self, record: str | os.PathLike[str] | DumpConfig | None, most: int, models: list[tuple[str, nn.Module]]
    ) -> None:
        self._config = _config(record)
        self._left = most if self._config is not None else 0
        self._models = dict(models)
        self._dump: DumpMode | None = None
        self._is_armed = self._is_recording = False
        self._next_module: NextModuleCall | None = None

    @property
    def is_wanted(self) -> bool:
        """True as long as a step may be recorded."""
        return self._left > 0

    def arm(self) -> None:
        """Ask for the next step to be recorded."""
        self._is_armed = self.is_wanted

    def switch_before_next_module(self, step: Callable[[], int]) -> None:
        """Call `switch` before the program calls a module next: where the optimizer's step is over."""
        if (self._is_armed or self._is_recording) and self._next_module is None:
            self._next_module = NextModuleCall(lambda: self._at_next_module(step()))

    def _at_next_module(self, step: int) -> None:
        self._next_module = None
        self.switch(step)

    def switch(self, step: int) -> None:
        """End the step that is recorded, if one is; record the step `step` from here, if that was asked for."""
        try:
            self._switch(step)
        except AtenDumpError as error:
            self._config = self._dump = None
            warnings.warn(f"aten_dump: Watch records no step: {error}", stacklevel=3)

    def _switch(self, step: int) -> None:
        dump = self._dump
        if self._is_recording and dump is not None:
            self._is_recording = False
            dump.step(paused=True)
            if not self._left:
                self._dump = None
                dump.close()
        if not self._is_armed or self._config is None:
            return
        self._is_armed = False
        if self._dump is None and DumpMode.current() is not None:
            return  # the program records by itself
        self._left -= 1
        self._is_recording = True
        if self._dump is None:
            self._dump = DumpMode(self._config, model=self._models or None).start(step)
            return
        if self._dump.current_step < step:
            self._dump.step(step, paused=True)
        self._dump.resume()

    def close(self) -> None:
        """End the recording. Idempotent."""
        waiting, self._next_module = self._next_module, None
        if waiting is not None:
            waiting.cancel()
        dump, self._dump = self._dump, None
        if dump is not None:
            dump.close()


def _config(record: object) -> DumpConfig | None:
    if record is None:
        return None
    if isinstance(record, DumpConfig):
        config = dataclasses.replace(record, steps="all", on_error="warn")
    elif isinstance(record, (str, os.PathLike)):
        config = DumpConfig(path=os.fspath(record), data="tensor", on_error="warn")
    else:
        raise ConfigError(f"Watch got record={record!r:.100}; allowed: a path, a DumpConfig, or None")
    if not config.overwrite and (folder_of_attempt(config.path)[0] / "run.json").exists():
        raise ConfigError(f"Watch's record={str(config.path)!r} holds a dump already; choose another path")
    return config
