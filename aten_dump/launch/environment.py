"""The environment in which a command is recorded: two variables, which its child processes inherit."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..config import DumpConfig
from ..errors import ConfigError
from .hook.torch_import import VARIABLE

_HOOK: Final = Path(__file__).with_name("hook")


def environment_of(config: DumpConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return `inherited` with what makes each Python process below it record.

    Raises:
        ConfigError: the config holds a function, which cannot be handed to another process.
    """
    if callable(config.trigger):
        raise ConfigError("DumpConfig.trigger is a function; a command can be recorded with a trigger by name only")
    path = os.path.abspath(os.fspath(config.path))  # a launcher may start its processes in another folder
    fields = dataclasses.replace(config, path=path).as_dict()
    before = inherited.get("PYTHONPATH")
    return {
        **inherited,
        VARIABLE: json.dumps(fields),
        "PYTHONPATH": f"{_HOOK}{os.pathsep}{before}" if before else str(_HOOK),
    }
