"""Autograd's error for a saved tensor that was modified in place, in the words of the torch that is installed.

The words change from one version of torch to the next. So torch is made to say them once, and what it said of one
tensor is said of another. How it names a tensor ("torch.FloatTensor", "CPUBFloat16Type", "npuFloatType") follows from
its type in a way of torch's own: so it is made to name each.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

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
    match = _SAID.fullmatch(_apart(lambda: _said(anomaly)))
    if match is None:
        return _OF_2_6
    start, which, of, name, found, expected, end = match.groups()
    return Words(start, which, of, _SUFFIX.search(name) is None, found, expected, end)


def name_of(tensor: torch.Tensor) -> str:
    """Return how the error names a tensor: its type and its shape."""
    words = words_of_torch(False)
    said = _apart(lambda: _said_of(tensor))
    named, found, _ = said.removeprefix(f"{words.start}[").rpartition(f"]{words.found.removeprefix(',')}1")
    return named if found else f"{tensor.type()} {list(tensor.shape)}"


def _apart(say: Callable[[], str]) -> str:
    """Return what torch says on a thread of its own: without modes and hooks of the program's."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(say()))
    thread.start()
    thread.join()
    return said[0]


class _Saves(torch.autograd.Function):
    """Saves a tensor, and runs no kernel."""

    @staticmethod
    def forward(ctx: Any, saver: torch.Tensor, saved: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*saved)
        return saver.view_as(saver)


def _said_of(tensor: torch.Tensor) -> str:
    try:
        alias = tensor.data  # of the same type and shape, with a version of its own
        saver = _Saves.apply(torch.ones(1, device="cpu", requires_grad=True), [alias])  # type: ignore[no-untyped-call]
        torch.autograd.graph.increment_version(alias)
        _ = saver.grad_fn.saved_tensors
    except RuntimeError as error:
        return str(error)
    return ""


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
