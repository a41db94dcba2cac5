"""Hooks on autograd nodes, put there for less.

Theory of operation
    ``node.register_hook`` asks ``torch.autograd.Function._register_hook`` for a dict of hooks and a handle that can
    take the hook away. Torch's makes an OrderedDict, a RemovableHandle and a weak reference; two hooks on each node of
    a large graph are then a third of all objects that Python's collector walks. While a step is recorded ours answers
    for the recorder's own hooks, with one lighter dict, and hands all others on. The program's hooks on the same node
    go into that dict as they would into torch's, and go with the node too. Both dicts of a node are found through one
    weak reference.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from torch.autograd.function import _HookMixin

from ..collector import HIDES, HIDES_DICTS, hide
from .patches import Patch

_KEY: Final = "aten_dump"
_own_types: Final[set[type]] = set()  # of the recorder's hooks
_torchs: Any = _HookMixin._register_hook  # or whose else it was when ours was installed
_patch: Patch | None = None


class Hooks(dict[Any, Any]):
    """The hooks of a node before or after its run; handles of the program's refer to it weakly."""

    __slots__ = ("__weakref__", "after")
    after: Hooks  # of the hooks before a run: those after it


def _register_hook(hooks: Any, hook: Any) -> tuple[Any, Any]:
    if hooks is None and type(hook) in _own_types:
        hooks = Hooks()
        hooks[_KEY] = hook
        return hooks, hooks
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


def put(node: Any, hook: Any) -> Any:
    """Have a hook of ours called before and after a node's runs; return the handle of both."""
    first, second = node.register_prehook(hook), node.register_hook(hook)
    if type(first) is Hooks and type(second) is Hooks:
        first.after = second
        handle = weakref.ref(first)
        if HIDES_DICTS:
            hide(first, second, handle)
        elif HIDES:
            hide(handle)
        return handle
    return tuple(weakref.ref(one) if type(one) is Hooks else one for one in (first, second))


def let_others_first(handle: Any) -> bool:
    """Let our hook after a run come after the program's, which may replace gradients; tell whether there are any."""
    if type(handle) is weakref.ref:
        before = handle()
        hooks, key = None if before is None else before.after, _KEY
    else:
        hooks, key = _found(handle[1])
    if hooks is None or len(hooks) < 2:
        return False
    if key in hooks:
        hooks[key] = hooks.pop(key)  # not move_to_end: the engine reads the plain dict underneath
    return True


def remove_all(handles: Iterable[Any]) -> None:
    """Take our hooks away."""
    for handle in handles:
        if type(handle) is weakref.ref:
            before = handle()
            if before is not None:
                before.pop(_KEY, None)
                before.after.pop(_KEY, None)
            continue
        for one in handle:
            hooks, key = _found(one)
            if hooks is not None:
                hooks.pop(key, None)


def _found(handle: Any) -> tuple[Any, Any]:
    """Return the dict that one hook's handle is of, None if it has gone, and the hook's key in it."""
    return (handle(), _KEY) if type(handle) is weakref.ref else (handle.hooks_dict_ref(), handle.id)
