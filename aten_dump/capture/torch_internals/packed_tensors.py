"""What a saved-tensor hook of ours keeps of a tensor, and what it gives back.

Theory of operation
    Autograd calls a pack hook with a tensor that a node is about to save, and the unpack hook with what that returned
    when the node runs. Whatever has such a hook loses what autograd does itself, so it is done here:

    - A node's own result, kept as it is, would make a cycle of node and tensor, which is never freed. `detach` shares
      its memory and its version, and knows no node; autograd does the same. An input is kept as it is, as it is there.
    - Autograd no longer looks whether the tensor was modified in place. The version is compared here, and the error is
      torch's own, word for word.
    - Only the innermost hooks run. Where the program has some around ours, they are called as if ours were not there:
      they decide what is kept (checkpoint's nothing, `save_on_cpu`'s a copy), and ours only look on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ConfigError
from ..interrupts import runs_program
from .engine import TELLS_TOP_SAVED_HOOKS, get_sequence_nr
from .mode_stack import detached
from .modified_tensors import name_of, words_of_torch

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
        ConfigError: this torch does not tell them.
    """
    if not TELLS_TOP_SAVED_HOOKS:
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
