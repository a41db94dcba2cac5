"""The environment in which a command is recorded: variables that its child processes inherit."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..config import DumpConfig
from ..errors import ConfigError
from ..whole_files import url_scheme
from .hook.torch_import import VARIABLE

PROCESS: Final = "ATEN_DUMP_RUN_PROCESS"  # the id of the process that becomes the command
_HOOK: Final = Path(__file__).with_name("hook")


def environment_of(
    config: DumpConfig | None, inherited: Mapping[str, str], watch: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return `inherited` with what makes each Python process below it record.

    Args:
        config: what is recorded; with `watch`, where an alert has a step recorded, or None.
        inherited: the environment as it is.
        watch: options of `Watch`, for processes that are watched.

    Raises:
        ConfigError: the config holds a function, which cannot be handed to another process.
    """
    fields: dict[str, Any] = {} if config is None else _fields(config)
    if watch is not None:
        fields["watch"] = dict(watch)
    before = inherited.get("PYTHONPATH")
    return {
        **inherited,
        VARIABLE: json.dumps(fields),
        PROCESS: str(os.getpid()),
        "PYTHONPATH": f"{_HOOK}{os.pathsep}{before}" if before else str(_HOOK),
    }


def _fields(config: DumpConfig) -> dict[str, Any]:
    if callable(config.trigger):
        raise ConfigError("DumpConfig.trigger is a function; a command can be recorded with a trigger by name only")
    path = os.fspath(config.path)
    if url_scheme(path) is None:
        path = os.path.abspath(path)  # a launcher may start its processes in another folder
    against = None if config.against is None else os.path.abspath(os.fspath(config.against))
    return dataclasses.replace(config, path=path, against=against).as_dict()
