"""Short text for bytes, times, numbers and tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...torch_names import DTYPES
from ..call_facts import CallFacts
from ..value_facts import ValueFacts

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


def format_bytes(nbytes: float) -> str:
    """Return ``"1.50 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def duration_text(call: CallFacts) -> str:
    """Return how long a call took; "" where nobody recorded it, as in most dumps of other tools."""
    if not call.finished:
        return "cut short"
    return format_ns(call.duration_ns) if call.duration_ns else ""


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


def format_exactly(number: float, dtype_name: str) -> str:
    """Return a number of a dtype in six digits, or in as many as set it apart from its neighbours: ``"1.0000002"``."""
    dtype = DTYPES.get(dtype_name, torch.float64)
    texts = (f"{number:.{digits}g}" for digits in range(6, 17))
    return next(
        (text for text in texts if torch.tensor(float(text), dtype=dtype, device="cpu").item() == number), repr(number)
    )


def tensor_type(value: ValueFacts) -> str:
    """Return ``"f32[8, 128]"``, with what is unusual about the tensor after it."""
    name = _DTYPES.get(value.dtype_name, value.dtype_name) or "?"
    text = f"{name}[{', '.join(map(str, value.shape))}]"
    marks = [value.layout_name] if value.layout_name != "strided" else []
    marks += [mark for mark, is_set in (("undefined", value.undefined), ("opaque", value.opaque)) if is_set]
    return " ".join([text, *marks])
