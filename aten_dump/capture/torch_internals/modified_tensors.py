"""Autograd's error for a saved tensor that was modified in place, in the words of the torch that is installed.

The words change from one version of torch to the next. So torch is made to say them once, and what it said of one
tensor is said of another.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from typing import Final, NamedTuple

import torch

_SAID: Final = re.compile(
    r"(.*)\[torch\.FloatTensor \[1\]\](, which is output )0( of )(\w+)(, is at version )1(; expected version )0( .*)",
    re.DOTALL,
)
_SUFFIX: Final = re.compile(r"Backward\d*$")


class Words(NamedTuple):
    """The pieces of the error between what is said of a tensor."""

    start: str
    which: str
    of: str
    short_names: bool  # of nodes: "Exp", not "ExpBackward0"
    found: str
    expected: str
    end: str

    def say(self, what: str, maker: tuple[int, str] | None, versions: tuple[int, int]) -> str:
        """Return the error.

        Args:
            what: type and shape of the tensor.
            maker: which output of which node it is; None for a leaf.
            versions: the present one, and that when it was saved.
        """
        which = ""
        if maker is not None:
            name = _SUFFIX.sub("", maker[1]) if self.short_names else maker[1]
            which = f"{self.which}{maker[0]}{self.of}{name},"
        found = self.found.removeprefix(",")
        return f"{self.start}[{what}]{which}{found}{versions[0]}{self.expected}{versions[1]}{self.end}"


_OF_2_6: Final = Words(
    "one of the variables needed for gradient computation has been modified by an inplace operation: ",
    ", which is output ",
    " of ",
    False,
    ", is at version ",
    "; expected version ",
    " instead.",
)


@functools.cache
def words_of_torch(anomaly: bool) -> Words:
    """Return the words of the torch that is installed, with or without anomaly detection."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(_said(anomaly)))  # without modes and hooks of the program's
    thread.start()
    thread.join()
    match = _SAID.fullmatch(said[0])
    if match is None:
        return _OF_2_6
    start, which, of, name, found, expected, end = match.groups()
    return Words(start, which, of, _SUFFIX.search(name) is None, found, expected, end)


def _said(anomaly: bool) -> str:
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
        warnings.simplefilter("ignore")
        result = torch.ones(1, device="cpu", dtype=torch.float32, requires_grad=True).exp()
        with torch.no_grad():
            result.add_(1)
        try:
            result.backward()
        except RuntimeError as error:
            return str(error)
    return ""
