"""What analysis makes without naming a device is made in host memory, whatever the program's default device is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def made_on_the_host(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that does as if ``torch.set_default_device`` had not been called."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return run
