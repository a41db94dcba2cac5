"""What the C file beside this one offers where it was compiled."""

from typing import Any

def pack_record(record: tuple[Any, ...], /) -> bytes | None:
    """Return a record as msgpack; None where that is not for this packer."""
