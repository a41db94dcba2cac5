"""All twelve statistics from one read of the memory, where the C file beside this one was compiled (hatch_build.py).

Without it, or where elements are not those of a dtype in `CODES`, what torch computes in several passes is taken:
`one_tensor`, which also says what the numbers are and how far off they may be.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch

from ....config import STATISTICS

try:
    from ._one_pass import of_many
    from ._one_pass import of_one as of_one
    from ._one_pass import use_team as use_team
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

# In the order of _one_pass.c.
_NAMES: Final = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
CODES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): code for code, name in enumerate(_NAMES) if hasattr(torch, name)
} | {torch.bool: _NAMES.index("uint8")}
_TEAM_ELEMENTS: Final = 1 << 16  # of which other threads take a part: with fewer, that costs more than it saves


def of_memory(dtype: torch.dtype, address: int, count: int, names: tuple[str, ...]) -> list[Any] | None:
    """Return the statistics `names` of elements in the host's memory; None where torch is to compute them.

    Args:
        dtype: of the elements; any.
        address: of the first.
        count: how many; None is returned for none.
        names: of `config.STATISTICS`.
    """
    code = CODES.get(dtype)
    if not IS_COMPILED or code is None or not count or not address:
        return None
    threads = 1 if count < _TEAM_ELEMENTS else torch.get_num_threads()
    return of_one(code, address, count, threads, _places(names))


def of_parts(parts: list[bytes], dtype: torch.dtype, names: tuple[str, ...] = STATISTICS) -> list[list[Any]] | None:
    """Return the statistics `names` of tensors whose elements are these bytes, a list for each; None as `of_memory`."""
    code = CODES.get(dtype)
    return of_many(code, parts, _places(names)) if IS_COMPILED and code is not None else None


@cache
def _places(names: tuple[str, ...]) -> bytes:
    """Return which statistics these are, as the C file takes it."""
    return bytes(map(STATISTICS.index, names))
