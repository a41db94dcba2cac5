"""Which blobs hold several stretches of memory side by side: small tensors, stored together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...store import records
from ..index.tables import Tables
from ..value_facts import ValueFacts

_STRIDED: Final = records.LAYOUTS.index("strided")


def find_packed(tables: Tables, value_by_id: Callable[[int], ValueFacts]) -> frozenset[int]:
    """Return the ids of such blobs; views of one storage are not several, wherever they begin."""
    known: dict[int, tuple[int, int, int]] = {}
    packed: set[int] = set()
    for data in tables.data.records():
        if data.layout == _STRIDED and data.blob not in packed:
            value = value_by_id(data.value)
            start = value.storage_offset * value.dtype.itemsize - data.offset  # of the blob, in bytes of the storage
            key = (value.storage, value.version, start)
            if start < 0 or known.setdefault(data.blob, key) != key:
                packed.add(data.blob)
    return frozenset(packed)
