"""Hooks on autograd nodes, put there for less.

Theory of operation
    ``node.register_hook`` asks ``torch.autograd.Function._register_hook`` for a dict of hooks and a handle that can
    take the hook away. Torch's makes an OrderedDict, a RemovableHandle and a weak reference; two hooks on each node of
    a large graph are then a third of all objects that Python's collector walks. While a step is recorded ours answers
    for the recorder's own hooks, with one lighter dict, and hands all others on. The program's hooks on the same node
    go into that dict as they would into torch's, and go with the node too. Both dicts of a node are found through one
    weak reference.

    Most nodes need none before their run. Where the program puts a hook of its own on such a node, before its run or
    after it, an opener goes ahead of that hook, which shows that the node runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch.autograd.function import _HookMixin

from ..collector import HIDES, HIDES_DICTS, hide
from .patches import Patch

_KEY: Final = "aten_dump"
_OPENER: Final = "aten_dump.opener"
_own_types: Final[set[type]] = set()  # of the recorder's hooks
_opener: Callable[..., None] | None = None  # runs ahead of hooks of the program's
_openers: Final[list[Any]] = []  # weak references to the dicts of the program's that it is in
_torchs: Any = _HookMixin._register_hook  # or whose else it was when ours was installed
_patch: Patch | None = None


class Hooks(dict[Any, Any]):
    """The hooks of a node before or after its run; handles of the program's refer to it weakly."""

    __slots__ = ("__weakref__", "after")
    after: Hooks | None  # of the hooks before a run: those after it; None of those after a run that has none before it


def _register_hook(hooks: Any, hook: Any) -> tuple[Any, Any]:
    if hooks is None and type(hook) in _own_types:
        hooks = Hooks()
        hooks[_KEY] = hook
        return hooks, hooks
    found: tuple[Any, Any] = _torchs(hooks, hook)
    if _opener is not None and type(hook) not in _own_types:
        _put_opener(found[0], hooks is None)
    return found


def _put_opener(hooks: Any, is_new: bool) -> None:
    """Put the opener ahead of a hook of the program's, and ours after it."""
    if is_new:
        _openers.append(weakref.ref(hooks))
        ours = None
    elif type(hooks) is Hooks and _KEY in hooks and getattr(hooks, "after", hooks) is None:
        ours = hooks.pop(_KEY)
    else:
        return
    theirs = {key: hook for key, hook in hooks.items() if key != _OPENER}
    hooks.clear()  # not move_to_end: the engine reads the plain dict underneath
    hooks[_OPENER] = _opener
    hooks.update(theirs)
    if ours is not None:
        hooks[_KEY] = ours


def install(own: type, opener: Callable[..., None]) -> None:
    """Answer for the recorder's own hooks, which are of this type, from now on.

    Args:
        own: the type.
        opener: is called in a node's run ahead of hooks of the program's with what those are called with.
    """
    global _torchs, _patch, _opener
    _own_types.add(own)
    _opener = opener
    if _patch is None:
        _torchs = _HookMixin._register_hook
        _patch = Patch(_HookMixin, "_register_hook", staticmethod(_register_hook))


def uninstall() -> None:
    """Leave it to torch again, unless somebody else has taken over."""
    global _patch, _opener
    _opener = None
    for found in _openers:
        hooks = found()
        if hooks is not None:
            hooks.pop(_OPENER, None)
    _openers.clear()
    if _patch is not None and _patch.undo():
        _patch = None


def put_after(node: Any, hook: Any) -> Any:
    """Call a hook after a node's runs; return its handle, or None if the program has hooks on the node.

    Hooks that the program adds from now on run after the recorder's opening hook: see `install`.
    """
    hooks = node.register_hook(hook)
    if type(hooks) is not Hooks:
        hooks.remove()
        return None
    hooks.after = None
    handle = weakref.ref(hooks)
    if HIDES_DICTS:
        hide(hooks, handle)
    elif HIDES:
        hide(handle)
    return handle


def put(node: Any, hook: Any) -> Any:
    """Call a hook before and after a node's runs; return the handle of both."""
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
    """Let our hook after a run come after the program's, which may replace gradients; return True if there are any."""
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


def remove_all(handles: Iterable[Any]) -> list[Any]:
    """Take our hooks away; return those that were still there."""
    removed: list[Any] = []
    for handle in handles:
        if type(handle) is weakref.ref:
            before = handle()
            if before is not None:
                for hooks in (before, before.after or before):
                    removed.append(hooks.pop(_KEY, None))
                    hooks.pop(_OPENER, None)
            continue
        for one in handle:
            hooks, key = _found(one)
            if hooks is not None:
                removed.append(hooks.pop(key, None))
    return [hook for hook in removed if hook is not None]


def _found(handle: Any) -> tuple[Any, Any]:
    """Return the dict that one hook's handle is of, None if it has gone, and the hook's key in it."""
    return (handle(), _KEY) if type(handle) is weakref.ref else (handle.hooks_dict_ref(), handle.id)
