"""What the C file beside this one offers where it was compiled."""

from collections.abc import Callable
from typing import Any

def pack_record(record: tuple[Any, ...], /) -> bytes | None:
    """Return a record as msgpack; None where that is not for this packer."""

def adder(
    waiting: list[bytes], otherwise: Callable[[list[bytes], tuple[Any, ...]], None], /
) -> Callable[[tuple[Any, ...]], None]:
    """Return what packs a record and appends it to `waiting`.

    Args:
        waiting: the list.
        otherwise: is called with it and a record that ends with None, or is not for this packer.
    """
