"""Reading of the YAML files that a user writes for a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..yaml_text import read_yaml


def load_yaml(file: Path, subject: str, verb: str) -> Any:
    """Return what a YAML file holds.

    Args:
        file: the file.
        subject: what it is, for errors: ``"mapping"``.
        verb: ``"is"`` or ``"are"``, to go with it.

    Raises:
        ConfigError: it cannot be read or is not valid YAML.
    """
    try:
        return read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {subject} {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{subject} {file} {verb} not valid YAML: {error}") from error
