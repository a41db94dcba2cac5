"""What a PrecisionDebugger is to record: msprobe's config.json, and what the script says beside it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..config import DumpConfig
from ..config_files import msprobe_keys, read_named_fields
from ..errors import ConfigError

_DEFAULTS: Final = {"task": "statistics", "dump_path": "./dump_path", "level": "L1"}  # of msprobe's own config.json
_NOTHING: Final = "regex:(?!)"  # matches no name
SAVED_ONLY: Final = "debug"  # the level at which nothing is recorded but what `save` is given


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
