"""Hooks on autograd nodes, put there for less.

Theory of operation
    ``node.register_hook`` asks ``torch.autograd.Function._register_hook`` for a dict of hooks and a handle that can
    take the hook away. Torch's makes an OrderedDict, a RemovableHandle and a weak reference; two hooks on each node of
    a large graph are then a third of all objects that Python's collector walks. While a step is recorded ours answers
    for the recorder's own hooks, with one lighter dict and a weak reference to it for a handle, and hands all others
    on. The program's hooks on the same node go into that dict as they would into torch's, and go with the node too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from torch.autograd.function import _HookMixin

from .patches import Patch

_KEY: Final = "aten_dump"
_own_types: Final[set[type]] = set()  # of the recorder's hooks
_torchs: Any = _HookMixin._register_hook  # or whose else it was when ours was installed
_patch: Patch | None = None


class Hooks(dict[Any, Any]):
    """The hooks of a node before or after its run; handles of the program's refer to it weakly."""

    __slots__ = ("__weakref__",)


def _register_hook(hooks: Any, hook: Any) -> tuple[Any, Any]:
    if hooks is None and type(hook) in _own_types:
        hooks = Hooks()
        hooks[_KEY] = hook
        return hooks, weakref.ref(hooks)
    found: tuple[Any, Any] = _torchs(hooks, hook)
    return found


def install(*own: type) -> None:
    """Answer for the recorder's own hooks, which are of these types, from now on."""
    global _torchs, _patch
    _own_types.update(own)
    if _patch is None:
        _torchs = _HookMixin._register_hook
        _patch = Patch(_HookMixin, "_register_hook", staticmethod(_register_hook))


def uninstall() -> None:
    """Leave it to torch again, unless somebody else has taken over."""
    global _patch
    if _patch is not None and _patch.undo():
        _patch = None


def let_others_first(handle: Any) -> bool:
    """Let our hook on a node run after the program's, which may replace gradients; tell whether there are any."""
    hooks, key = _found(handle)
    if hooks is None or len(hooks) < 2:
        return False
    if key in hooks:
        hooks[key] = hooks.pop(key)  # not move_to_end: the engine reads the plain dict underneath
    return True


def remove_all(handles: Iterable[Any]) -> None:
    """Take our hooks away."""
    for handle in handles:
        hooks, key = (handle(), _KEY) if type(handle) is weakref.ref else _found(handle)
        if hooks is not None:
            hooks.pop(key, None)


def _found(handle: Any) -> tuple[Any, Any]:
    """Return the dict that a handle is of, None if it has gone, and the hook's key in it."""
    return (handle(), _KEY) if type(handle) is weakref.ref else (handle.hooks_dict_ref(), handle.id)
