"""Checks every byte of a step and rank."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from ...errors import AtenDumpError, FormatError
from ...geometry import reach
from ..argument_trees import input_ids, result_ids
from ..index_reader import IndexData, index_path, read_index
from ..records import BLOB, CALL, DATA, LAYOUTS, NOTE, RECOVERED, SHARD, TEXT, VALUE, Blob, Value
from ..regular_files import size_inside
from ..shard_reader import ShardReader
from ..shards import DTYPE_BYTES, encode_header, header_entries, read_header, shard_name
from ..stored_files import with_local_header
from .references import check_references

_NBYTES, _SHARD = (Blob._fields.index(name) for name in ("nbytes", "shard"))
_VALUE_FIELDS: Final = len(Value._fields)
_MOST_PROBLEMS: Final = 100  # of records, after which one more says nothing new

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def verify(directory: Path, progress: Progress | None = None) -> list[str]:
    """Check every byte of a step and rank; return the problems found, each a sentence.

    Args:
        directory: the folder ``step*/rank*``.
        progress: called with (bytes done, bytes in all) now and then.
    """
    directory = index_path(directory).parent
    try:
        data = read_index(directory)
    except AtenDumpError as error:
        return [str(error)]
    problems = [data.problem] if data.problem else []
    problems += [f"{data.path}: has no Header record"] if data.header is None else []
    problems += _place(directory, data)
    senseless = list(islice(_senseless(data), _MOST_PROBLEMS))
    problems += senseless
    if not senseless:  # else what follows would lean on what is not so
        problems += _sizes(directory, data)
        problems += _headers(directory, data)
        problems += _checksums(directory, data, progress)
    return problems


def _place(directory: Path, data: IndexData) -> Iterable[str]:
    """Compare the header with the folders that the index is in."""
    if data.header is None:
        return
    for folder, kind, number in ((directory.parent, "step", data.header.step), (directory, "rank", data.header.rank)):
        if folder.name.startswith(kind) and folder.name != f"{kind}{number}":
            yield f"{data.path} is that of {kind} {number}, as its header says, and lies in {folder.name}"


def _senseless(data: IndexData) -> Iterable[str]:
    """Yield what is wrong with the records themselves, whatever their checksums say."""
    try:
        check_references(data.rows, str(data.path))
        for rows in data.rows.values():
            for at in range(len(rows)):
                rows.peek(at)
    except FormatError as error:
        yield str(error)
        return
    values = frozenset(data.rows[VALUE].column(1).tolist())
    for call in data.records(CALL):
        unknown = next((id for id in (*input_ids(call), *result_ids(call)) if id not in values), None)
        if unknown is not None:
            yield f"{data.path}: call {call.id} names value {unknown}, which has no record"
    yield from _beyond_blobs(data)


def _beyond_blobs(data: IndexData) -> Iterable[str]:
    """Yield values whose elements lie beyond the end of their blob."""
    dtypes = {row[1]: DTYPE_BYTES.get(row[2]) for row in data.rows[TEXT]}
    nbytes = {row[1]: row[4] for row in data.rows[BLOB]}
    values = {row[1]: row for row in data.rows[VALUE]}
    for record in data.records(DATA):
        value = Value._make(values[record.value][:_VALUE_FIELDS])
        size = dtypes.get(value.dtype)
        if record.blob in nbytes and size is not None and 0 not in value.shape:
            end = record.offset + size * _elements_needed(value, record.layout)
            if end > nbytes[record.blob]:
                yield (
                    f"{data.path}: value {value.id} reaches to byte {end} of blob {record.blob}, which has "
                    f"{nbytes[record.blob]}"
                )


def _elements_needed(value: Value, layout: int) -> int:
    """Return how many elements of a blob a value needs."""
    name = LAYOUTS[layout] if layout < len(LAYOUTS) else ""
    if name == "strided":
        return reach(value.shape, value.stride)
    return math.prod(value.shape) if name == "compact" else 0


def _sizes(directory: Path, data: IndexData) -> Iterable[str]:
    """Compare the counts and file sizes in the commit with what is there."""
    if data.commit is None:
        return
    written = set(data.rows[BLOB].column(_SHARD).tolist())
    for number, expected in enumerate(data.commit.shards):
        path = directory / shard_name(number)
        found = size_inside(path)
        if found is None and not expected and number not in written:
            continue  # begun, and never made, as a disk failed before: recovery had nothing to complete
        if found is None:
            yield f"{path} does not exist"
        elif found != expected:
            yield f"{path} has {found} bytes, the commit record says {expected}"
    for name, kind, expected in (("calls", CALL, data.commit.calls), ("blobs", BLOB, data.commit.blobs)):
        if len(data.rows[kind]) != expected:
            yield f"{data.path} has {len(data.rows[kind])} {name}, the commit record says {expected}"


def _headers(directory: Path, data: IndexData) -> Iterable[str]:
    """Open each finished shard with stock safetensors and compare its header with the journal."""
    blobs: defaultdict[int, list[Blob]] = defaultdict(list)
    for blob in data.records(BLOB):
        blobs[blob.shard].append(blob)
    is_recovered = any(row[1] == RECOVERED for row in data.rows[NOTE])
    for shard in data.records(SHARD):
        path = directory / shard_name(shard.number)
        nbytes = size_inside(path)
        if nbytes is None:
            continue  # still growing, or said by _sizes
        try:
            with with_local_header(path) as local, safe_open(local, "np") as file:
                file.keys()
            size = nbytes - shard.header_bytes
            entries, _ = header_entries(blob for blob in blobs[shard.number] if blob.offset + blob.nbytes <= size)
            expected = json.loads(encode_header(entries, shard.header_bytes)[8:])
            header_bytes, header = read_header(path)
        except (SafetensorError, FormatError, OSError) as error:
            yield f"{path}: {error}"
            continue
        # An index that lost its tail, recovered, may know less than a shard that was finished before.
        is_same = header == expected or (is_recovered and header.items() >= expected.items())
        if header_bytes != shard.header_bytes or not is_same:
            yield f"{path}: its header is not the one that the Blob records call for"


def _checksums(directory: Path, data: IndexData, progress: Progress | None) -> Iterable[str]:
    """Read every blob and compare its checksum."""
    reader = ShardReader(directory, data.rows[SHARD])
    total, done = int(data.rows[BLOB].column(_NBYTES).sum()), 0
    for blob in data.records(BLOB):
        try:
            reader.verify(blob)
        except AtenDumpError as error:
            yield str(error)
        done += blob.nbytes
        if progress is not None:
            progress(done, total)
