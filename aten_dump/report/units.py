"""Short text for bytes, times, dtypes, tensors and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..dump import GeneratorRef, ObjectRef, ReprRef, Value

_DTYPES: Final = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex128": "c128",
    "complex64": "c64",
    "complex32": "c32",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
}
_MAX_TENSORS: Final = 3
_MAX_LITERALS: Final = 8


def format_bytes(nbytes: float) -> str:
    """Return ``"1.50 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def format_ns(duration_ns: float) -> str:
    """Return ``"1.50 ms"``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if duration_ns >= size:
            return f"{duration_ns / size:.2f} {unit}"
    return f"{duration_ns:.0f} ns"


def format_number(number: Any) -> str:
    """Return a statistic in six digits; ``"-"`` where it is not defined."""
    if number is None:
        return "-"
    if isinstance(number, complex):
        return f"{number.real:.6g}{number.imag:+.6g}j"
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def tensor_type(value: Value) -> str:
    """Return ``"f32[8, 128]"``, with what is unusual about the tensor after it."""
    name = _DTYPES.get(value.dtype_name, value.dtype_name) or "?"
    text = f"{name}[{', '.join(map(str, value.shape))}]"
    marks = [value.layout_name] if value.layout_name != "strided" else []
    marks += [mark for mark, is_set in (("undefined", value.undefined), ("opaque", value.opaque)) if is_set]
    return " ".join([text, *marks])


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
