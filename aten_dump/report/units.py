"""Short text for bytes, times, dtypes, tensors and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..dump import GeneratorRef, ObjectRef, ReprRef, Value
from ..dump.shown.short_texts import duration_text, format_bytes, format_number, tensor_type

__all__ = ["argument", "duration_text", "format_bytes", "format_number", "tensor_type"]

_MAX_TENSORS: Final = 3
_MAX_LITERALS: Final = 8


def argument(tree: Any) -> str:
    """Return one argument or output as text; long lists are cut."""
    if isinstance(tree, Value):
        return tensor_type(tree)
    if isinstance(tree, (list, tuple)):
        texts = _cut(list(tree), argument)
        return f"[{texts}]" if isinstance(tree, list) else f"({texts})"
    if isinstance(tree, dict):
        return f"{{{_cut(list(tree.items()), lambda pair: f'{pair[0]}: {argument(pair[1])}')}}}"
    if isinstance(tree, ObjectRef):
        return f"<{tree.type_name.rpartition('.')[2]}>"
    if isinstance(tree, GeneratorRef):
        return f"<Generator {tree.device} seed {tree.seed}>"
    if isinstance(tree, ReprRef):
        return tree.text
    return repr(tree) if isinstance(tree, str) else str(tree)


def _cut(items: Sequence[Any], text: Callable[[Any], str]) -> str:
    """Return the items as text; of many, the first ones and a count."""
    most = _MAX_LITERALS if all(isinstance(item, (int, float, str)) for item in items) else _MAX_TENSORS
    if len(items) <= most:
        return ", ".join(map(text, items))
    return ", ".join([*map(text, items[: most - 1]), f"... {len(items) - most + 1} more"])
