"""`PrecisionDebugger`: msprobe's class, recording with `DumpMode`.

`start` enters or resumes a DumpMode, `stop` pauses it.
It writes a dump of aten_dump, whose calls are found by the names of msprobe too.
"""

from __future__ import annotations

import atexit
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import nn

from ...capture.launcher_rank import rank_and_world_size
from ...capture.mode import DumpMode
from ...capture.naming.call_name import CallName
from ...config import DumpConfig
from ...config_files import read_named_fields
from ...errors import CaptureError, ConfigError
from . import msprobe_keys

_DEFAULTS: Final = {"task": "statistics", "dump_path": "./dump_path", "level": "L1"}  # of msprobe's own config.json
_NOTHING: Final = "regex:(?!)"  # matches no name
SAVED_ONLY: Final = "debug"  # the level at which nothing is recorded but what `save` is given

Models = nn.Module | Sequence[nn.Module]


class PrecisionDebugger:
    """Record as msprobe's class of this name does. There is one in a process: a second call returns the first.

    Args:
        config_path: msprobe's config.json; None stands for task statistics, level L1.
        task: ``statistics``, ``tensor`` or ``structure``, instead of the config's; this and what follows.
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
            rank_id: number of this process. It must be the one that torch.distributed or the launcher gives.
            scheduled_tokens: tokens of each request to a server; requests are not distinguished here.
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


class CustomApis:
    """Functions that are recorded as calls, by the object that holds them and their name."""

    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Callable[..., Any]]] = {}

    def register(self, module: Any, api: str, prefix: str | None) -> None:
        """Record the calls of a function as ``prefix.api``.

        Raises:
            ConfigError: there is no such function.
        """
        original = getattr(module, api, None)
        if not callable(original):
            raise ConfigError(f"register_custom_api: {module!r} has no function {api!r}")
        if (id(module), api) in self._originals:
            return
        self._originals[id(module), api] = module, original
        setattr(module, api, recorded(original, prefix or str(getattr(module, "__name__", "Custom")), api))

    def restore(self, module: Any, api: str) -> None:
        """Put a function back; one that was not registered stays as it is."""
        if (id(module), api) in self._originals:
            setattr(module, api, self._originals.pop((id(module), api))[1])


def recorded(original: Callable[..., Any], prefix: str, api: str) -> Callable[..., Any]:
    """Return a function that does the same, and is recorded as a call where there is a DumpMode."""
    name = CallName(f"{prefix}.{api}", prefix, api)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        mode = DumpMode.current()
        return original(*args, **kwargs) if mode is None else mode.run_as_call(original, name, args, kwargs)

    return run


@dataclass(frozen=True, slots=True)
class DebuggerSettings:
    """What is asked for, in our terms."""

    config: DumpConfig
    saved_only: bool
    switch: bool | None  # dump_enable of the config; None: it is not switched while it runs


def read_settings(config_path: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> DebuggerSettings:
    """Read msprobe's config; what is given and not None stands in for its keys.

    A warning names keys that have no meaning here.

    Raises:
        ConfigError: the config is missing or holds what msprobe does not allow.
    """
    source = "PrecisionDebugger" if config_path is None else f"config file {os.fspath(config_path)}"
    found = {} if config_path is None else read_named_fields(config_path)
    content = _DEFAULTS | dict(found) | {key: value for key, value in given.items() if value is not None}
    if content["task"] == "structure" and content["level"] == "L1":
        content["level"] = "mix"  # as msprobe has it
    translation = msprobe_keys.translate(content, source)
    switch = content.get("dump_enable")
    if switch is not None and not isinstance(switch, bool):
        raise ConfigError(f"{source}: dump_enable is {switch!r}; msprobe allows: True, False")
    unheard = {key: why for key, why in translation.without_meaning.items() if key != "dump_enable"}
    if unheard:
        warnings.warn(
            f"{source} has keys without meaning here: {'; '.join(f'{key}: {why}' for key, why in unheard.items())}",
            stacklevel=4,
        )
    # msprobe writes over what an earlier run of the script has left, and has a step on file when it has ended.
    fields = {"overwrite": True, "durability": "step", **translation.fields}
    if content["level"] == SAVED_ONLY:
        fields["ops"] = (_NOTHING,)  # what is saved under a name is recorded all the same
    config = DumpConfig.from_dict(fields, source)
    return DebuggerSettings(config, content["level"] == SAVED_ONLY, switch)


class ConfigSwitch:
    """``dump_enable`` of a config file, which may be written anew while the program runs."""

    def __init__(self, path: str | os.PathLike[str] | None, is_on: bool | None) -> None:
        self._path = None if is_on is None else path  # a config without the key is not read again
        self._is_on = is_on
        self._seen = self._state()

    def is_on(self) -> bool:
        """Return True if to record, as the file has it now; a file that cannot be read turns it off, with a warning."""
        state = self._state()
        if self._path is not None and state != self._seen:
            self._seen = state
            try:
                self._is_on = read_named_fields(self._path).get("dump_enable", self._is_on)
            except ConfigError as error:
                self._is_on = False
                warnings.warn(f"PrecisionDebugger records nothing until this is fixed: {error}", stacklevel=3)
        return self._is_on is not False

    def _state(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size


class TokenRange:
    """Turns recording on and off by the number of the model's call since `begin`.

    Args:
        model: the model; a hook before and one after each of its calls are put on it.
        first: number of the first call to record, counted from 0.
        last: number of the last one.
        turn_on: is called before the first one; no call of the model is open then.
        turn_off: is called in the first one after the last.
    """

    def __init__(
        self, model: nn.Module, first: int, last: int, turn_on: Callable[[], None], turn_off: Callable[[], None]
    ) -> None:
        self._first, self._last = first, last
        self._turn_on, self._turn_off = turn_on, turn_off
        self._token = 0
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)

    def begin(self) -> None:
        """Count from 0 again."""
        self._token = 0
        if self._first == 0:
            self._turn_on()

    def _before(self, model: nn.Module, args: Any) -> None:
        if self._token == self._last + 1:
            self._turn_off()

    def _after(self, model: nn.Module, args: Any, result: Any) -> None:
        self._token += 1
        if self._token == self._first:  # now, not within the call: the model's own call is recorded whole
            self._turn_on()


def range_of(found: Sequence[int]) -> tuple[int, int]:
    """Return first and last.

    Raises:
        ConfigError: it is no pair of ints that go up from 0.
    """
    numbers = list(found) if isinstance(found, list | tuple) else []
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if len(numbers) != 2 or not whole or not 0 <= numbers[0] <= numbers[1]:
        raise ConfigError(f"token_range is {found!r}; allowed: [first, last], two ints with 0 <= first <= last")
    return numbers[0], numbers[1]
