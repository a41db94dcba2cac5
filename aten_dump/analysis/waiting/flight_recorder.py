"""Reads traces of torch's flight recorder: which collectives each rank has enqueued, started and completed.

Theory of operation
    The files are pickles of plain dicts and lists, as C++ writes them, or the same as JSON. They are read by an
    unpickler that knows no class and no function, so that nothing in them is run. An entry's number counts the
    collectives of its group, or its messages, from the beginning of the run; of those before the first that is kept
    nothing is known. The name of the group is that in a dump, so both say which ranks wait in what.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import FormatError, StoreError
from .disagreements import Disagreement
from .meetings_begun import Key, Meet
from .open_meetings import OpenMeeting

_RANK: Final = re.compile(r"(\d+)(?:\.\w+)?$")
_NUMBER: Final = re.compile(r"\d{1,9}")
_MOST_BYTES: Final = 1 << 30
_SAME_SHAPES: Final = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "barrier")
_DTYPES: Final = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}


@dataclass(frozen=True, slots=True)
class Traces:
    """What the traces of several ranks say."""

    open: tuple[OpenMeeting, ...] = ()
    apart: tuple[Disagreement, ...] = ()


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, tuples, texts and numbers, and refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        raise FormatError(f"it names {module}.{name}, which no trace of a flight recorder does; nothing of it was run")


def read_traces(files: Sequence[str | Path]) -> Traces:
    """Read traces, one of each rank; the rank is the number at the end of the file's name.

    Raises:
        FormatError: a file is no trace, or its name has no number.
        StoreError: a file cannot be read.
    """
    by_key: dict[Key, dict[int, dict[int, Meet]]] = {}  # by rank and number
    for file in map(Path, files):
        rank = _rank_of(file)
        trace = _read(file)
        groups = trace.get("pg_config") or {}
        try:
            for entry in trace["entries"]:
                meet = _meet_of(entry, rank, groups)
                by_key.setdefault(meet.key, {}).setdefault(rank, {})[meet.number] = meet
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FormatError(f"{file} is no trace of a flight recorder that is known here: {error!r}") from error
    open_: list[OpenMeeting] = []
    apart: list[Disagreement] = []
    for named, ranks in by_key.items():
        key = named if named.ranks else named._replace(ranks=tuple(sorted(ranks)))
        open_ += _open(key, ranks)
        apart += _apart(key, ranks)
    return Traces(tuple(sorted(open_, key=lambda meeting: meeting.since_unix_ns)), tuple(apart))


def _rank_of(file: Path) -> int:
    match = _RANK.search(file.name)
    if match is None:
        raise FormatError(f"{file}: the name of a flight recorder's trace ends in the number of its rank, as trace_3")
    return int(match[1])


def _read(file: Path) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MOST_BYTES)
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {file}: {error.strerror}") from error
    try:
        found = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except FormatError as error:
        raise FormatError(f"{file} is no trace of a flight recorder: {error}") from None
    except Exception as error:
        raise FormatError(f"{file} is no trace of a flight recorder: {error!r}") from error
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise FormatError(f"{file} is no trace of a flight recorder: it has no list of entries")
    return found


def _meet_of(entry: Mapping[str, Any], rank: int, groups: Mapping[str, Any]) -> Meet:
    name = str(entry["process_group"][0])
    is_message = bool(entry.get("is_p2p"))
    op = str(entry["profiling_name"])
    shapes = [
        f"{_DTYPES.get(dtype, dtype)}{list(shape)}"
        for dtype, shape in zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    ]
    alike = any(text in op for text in _SAME_SHAPES)
    ended = entry.get("state") == "completed" or bool(entry.get("retired"))
    frame = next(iter(_frames(entry)), "")
    number = int(entry["p2p_seq_id" if is_message else "collective_seq_id"])
    ranks = _ranks_of(groups.get(name))  # gloo does not name the group there: then those that have traces of it
    return Meet(
        Key(name, ranks, "flight recorder" if is_message else None), rank, 0, number,
        " ".join((op, *(shapes if alike else ()))), " ".join((op, *shapes)), ended, int(entry["time_created_ns"]), 0,
        f"entry {entry['record_id']}", frame, "",
    )  # fmt: skip


def _frames(entry: Mapping[str, Any]) -> Iterable[str]:
    frames = [(str(f["filename"]), f["line"], str(f["name"])) for f in entry.get("frames") or ()]
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return (f"{file}:{line} in {name}" for file, line, name in own)


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group, which are the text of a list."""
    text = group.get("ranks") if isinstance(group, dict) else None
    found = _NUMBER.findall(text) if isinstance(text, str) else text
    return tuple(int(number) for number in found) if isinstance(found, (list, tuple)) else ()


def _open(key: Key, ranks: Mapping[int, Mapping[int, Meet]]) -> Iterable[OpenMeeting]:
    last = {rank: max(meets) for rank, meets in ranks.items()}
    for number in sorted({number for meets in ranks.values() for number in meets}):
        waiting = {r: meets[number] for r, meets in ranks.items() if number in meets and not meets[number].ended}
        missing = tuple(rank for rank in key.ranks if rank in ranks and last[rank] < number)
        if waiting and missing and not key.is_message:
            yield OpenMeeting(key, 0, number, waiting, missing)


def _apart(key: Key, ranks: Mapping[int, Mapping[int, Meet]]) -> Iterable[Disagreement]:
    for number in sorted({number for meets in ranks.values() for number in meets}) if not key.is_message else ():
        asked: dict[str, tuple[Meet, list[int]]] = {}
        for rank, meets in sorted(ranks.items()):
            if number in meets:
                asked.setdefault(meets[number].asks, (meets[number], []))[1].append(rank)
        if len(asked) > 1:
            yield Disagreement(key, 0, number, tuple((meet, tuple(alike)) for meet, alike in asked.values()))
            return
