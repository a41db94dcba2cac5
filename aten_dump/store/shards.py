"""Shard files: names and the safetensors header.

Theory of operation
    A shard is a safetensors file: 8 bytes with N (little endian), N bytes of JSON padded with spaces,
    then the data. The data are streamed, so N is fixed when the shard is begun and the JSON is written when it
    ends; until then the name ends in ``.partial``. safetensors allows no holes, so bytes between two blobs
    (for alignment) are a U8 tensor named ``pad.<offset>``: a header follows from the Blob records alone, and
    recovery builds the very header that the writer would have written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import FormatError, StoreError
from .records import Blob
from .regular_files import PARTIAL
from .stored_files import open_stored

ALIGNMENT: Final = 64  # of the data's start in the file
MAX_HEADER_BYTES: Final = 64 << 20  # safetensors refuses headers above 100,000,000 bytes
HEADER_START: Final = '{"__metadata__":{"format":"pt"}'
HEADER_END: Final = "}"
PAD_PREFIX: Final = "pad."
_NUMBER_BYTES: Final = 20  # of a number below 2**64 and the comma after it
_ENTRY_BYTES: Final = 64  # of an item, but for its dtype and numbers

# Bits per element of safetensors' dtypes.
DTYPE_BITS: Final[dict[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F4": 4,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip

# Bytes per element of torch's dtypes, by their names in `Value.dtype`; those of less than a byte are not here.
DTYPE_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8), "complex128": 16,
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}  # fmt: skip


def shard_name(number: int) -> str:
    """Return the file name of a finished shard."""
    return f"shard-{number:05d}.safetensors"


def partial_name(number: int) -> str:
    """Return the file name of a shard while it grows."""
    return shard_name(number) + PARTIAL


def header_entry(name: str, dtype: str, shape: Sequence[int], start: int, end: int) -> str:
    """Return one item of a shard's JSON header, with the comma before it."""
    return f',"{name}":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":[{start},{end}]}}'


def most_entry_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return how long the item of a blob can be at most, wherever it lies and whatever its number is."""
    return _ENTRY_BYTES + len(dtype) + (len(shape) + 3) * _NUMBER_BYTES


def pad_entry(start: int, end: int) -> str:
    """Return the header item of the bytes between two blobs."""
    return header_entry(f"{PAD_PREFIX}{start}", "U8", (end - start,), start, end)


def header_entries(blobs: Iterable[Blob]) -> tuple[list[str], int]:
    """Return the header items of journaled blobs, pads between them included, and the data's length."""
    entries: list[str] = []
    end = 0
    for blob in sorted(blobs, key=lambda blob: (blob.offset, blob.nbytes, blob.id)):
        if blob.offset < end:
            raise FormatError(
                f"blob {blob.id} starts at byte {blob.offset} of shard {blob.shard}, "
                f"inside the blob before it, which ends at {end}"
            )
        if blob.offset > end:
            entries.append(pad_entry(end, blob.offset))
        end = blob.offset + blob.nbytes
        entries.append(header_entry(str(blob.id), blob.dtype, blob.shape, blob.offset, end))
    return entries, end


def encode_header(entries: Iterable[str], header_bytes: int) -> bytes:
    """Return the first `header_bytes` bytes of a shard: length, JSON, spaces."""
    text = "".join((HEADER_START, *entries, HEADER_END)).encode()
    if len(text) + 8 > header_bytes:
        raise FormatError(f"the header of a shard needs {len(text) + 8} bytes, {header_bytes} are reserved")
    return (header_bytes - 8).to_bytes(8, "little") + text.ljust(header_bytes - 8)


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the bytes before the data and the JSON header of a finished shard."""
    try:
        with contextlib.closing(open_stored(path)) as file:
            size = int.from_bytes(file.read(8, 0), "little")
            text = file.read(size, 8) if size <= 100_000_000 else b""
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path} has no safetensors header ({error}); run `aten-dump recover` on its dump") from error
    if not isinstance(header, dict):
        raise FormatError(f"{path} has a JSON {type(header).__name__} as its header; an object is expected")
    return size + 8, header
