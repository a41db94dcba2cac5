"""The hash of elements in host memory, by the functions that `DumpConfig.hash` may name.

xxh3 of long memory, and of elements that do not lie in a row, is taken on torch's threads where the C file beside this
one was compiled (hatch_build.py) and knows the processor.
"""

from __future__ import annotations

from typing import Final

from ...store.writing.checksums import HASHES
from ...store.writing.host_bytes import memory_at
from ..memory.geometry import Elements
from ..team_threads import team_threads

try:
    from ._xxh3 import copy_and_digest as copy_and_digest
    from ._xxh3 import digest as xxh3_of_elements
    from ._xxh3 import use_team as use_team
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

LEAST_BYTES: Final = 241  # that the C file hashes
COPY_ALIGNMENT: Final = 32  # of the memory that it copies to


def digest_of_elements(algorithm: str, elements: Elements) -> bytes | None:
    """Return the hash of elements in host memory, in row-major order; None of such as do not lie in a row and which the
    C file does not hash.
    """
    dtype, _, nbytes, address, layout = elements
    threads = team_threads(nbytes)
    if IS_COMPILED and algorithm == "xxh3" and nbytes >= LEAST_BYTES and (layout is not None or threads > 1):
        item, shape, strides = (1, (nbytes,), (1,)) if layout is None else (dtype.itemsize, *layout)
        return xxh3_of_elements(address, item, shape, strides, threads)
    return HASHES[algorithm](memory_at(address, nbytes)) if layout is None else None
