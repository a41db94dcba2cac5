"""What the recorder's saved-tensor hook keeps of a tensor, and what it gives back.

Theory of operation
    Autograd calls a pack hook with a tensor that a node is about to save, and the unpack hook with what that returned
    when the node runs. Whatever has such a hook loses what autograd does itself, so it is done here:

    - A node's own result, kept as it is, would make a cycle of node and tensor, which is never freed. `detach` shares
      its memory and its version, and knows no node; autograd does the same. An input is kept as it is, as it is there.
    - Autograd no longer looks whether the tensor was modified in place. The version is compared here, and the error is
      torch's own, word for word.
    - Only the innermost hooks run. Where the program has some around ours, they are called as if ours were not there:
      they decide what is kept (checkpoint's nothing, `save_on_cpu`'s a copy), and ours only look on.

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

from ...errors import ConfigError
from ..interrupts import runs_program
from .engine import SHOWS_TOP_SAVED_HOOKS, get_sequence_nr
from .mode_stack import detached

_SAID: Final = re.compile(
    r"(.*)\[torch\.FloatTensor \[1\]\](, which is output )0( of )(\w+)(, is at version )1(; expected version )0( .*)",
    re.DOTALL,
)
_SUFFIX: Final = re.compile(r"Backward\d*$")

Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]


class PackedTensor:
    """One saved tensor."""

    __slots__ = ("_kept", "_node", "_unpack", "_version", "id", "is_output", "owner", "value")

    @runs_program
    def __init__(self, tensor: torch.Tensor, around: Hooks | None) -> None:
        """Keep a tensor; `around` are the program's hooks, which do it if there are any."""
        self.id = 0  # of its record; 0 where it was not recorded
        self.value = 0
        self.owner: Any = None  # the call that saved it
        self.is_output = False  # of the node that saves it
        self._unpack: Callable[[Any], torch.Tensor] | None = None
        if around is not None:
            self._kept = around[0](tensor)
            self._unpack = around[1]
            return
        with torch._C.DisableTorchFunction():  # modes of the program would see each attribute that is read
            self.is_output = is_output(tensor)
            self._kept = detached(tensor) if self.is_output else tensor
            self._version = tensor._version
            self._node = (tensor.output_nr, tensor.grad_fn.name()) if self.is_output and tensor.grad_fn else None

    @runs_program
    def unpack(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: it was modified in place since, as autograd says it.
        """
        if self._unpack is not None:
            return self._unpack(self._kept)
        kept: torch.Tensor = self._kept
        with torch._C.DisableTorchFunction():
            if kept._version != self._version:
                raise RuntimeError(self._modified(kept))
        return kept

    def _modified(self, kept: torch.Tensor) -> str:
        node = kept.grad_fn  # of an input, the one that it has by now
        maker = (0, node.name()) if node is not None else self._node
        versions = (kept._version, self._version)
        return words_of_torch(torch.is_anomaly_enabled()).say(name_of(kept), maker, versions)


def is_output(tensor: torch.Tensor) -> bool:
    """Return True if a tensor that is being saved is a result of the very node that saves it."""
    node = tensor.grad_fn
    return node is not None and node._sequence_nr() == get_sequence_nr() - 1


def refuse_hooks() -> None:
    """Raise where the hooks of the program around ours cannot be asked for: ours would take their place.

    Raises:
        ConfigError: this torch does not show them.
    """
    if not SHOWS_TOP_SAVED_HOOKS:
        raise ConfigError(
            f'DumpConfig.saved_tensors is "hooks": torch {torch.__version__} does not say which saved-tensor hooks '
            'the program has, and would no longer call them; take "nodes", or a newer torch'
        )


def may_push_hooks() -> bool:
    """Return True if torch takes saved-tensor hooks now: within `torch.func.grad` and its like it does not."""
    return bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]


def push_hooks(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
    """Send all that is saved through these, until `pop_hooks`."""
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def pop_hooks() -> None:
    """Take the innermost hooks away."""
    torch._C._autograd._pop_saved_tensors_default_hooks()


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
