"""``--to perfetto``: a timeline in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

A process for each rank, a track for each of its threads, a slice for each call; calls that were put together from
others (the backward of an API) have no time of their own and are left out. An arrow leads from a forward call to each
call of its backward and to its recomputation. Steps follow each other as they ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...dump import Call, RankDump
from ..chosen_calls import ChosenCalls

Event = dict[str, Any]


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write the file."""
    origin: int | None = None
    with open(out, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [')
        separator = "\n"
        for rank in chosen.each_rank():
            origin = rank.header.start_unix_ns if origin is None else origin
            for event in _events(chosen, rank, origin):
                file.write(separator + json.dumps(event))
                separator = ",\n"
        file.write("\n]}\n")


def _events(chosen: ChosenCalls, rank: RankDump, origin: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": f"rank {rank.rank}"}}
    threads: set[int] = set()
    for call in chosen.calls(rank):
        if not call.duration_ns:
            chosen.leave_out("calls without a time of their own")
            continue
        if call.thread not in threads:
            threads.add(call.thread)
            name = {"name": f"thread {call.thread}"}
            yield {"ph": "M", "name": "thread_name", "pid": rank.rank, "tid": call.thread, "args": name}
        yield _slice(call, rank, origin)
        forward = call.forward
        if forward is not None and forward.duration_ns:
            yield from _arrow(forward, call, rank, origin)


def _place(call: Call, rank: RankDump, at_ns: int, origin: int) -> Event:
    return {"pid": rank.rank, "tid": call.thread, "ts": (at_ns - origin) / 1000}


def _slice(call: Call, rank: RankDump, origin: int) -> Event:
    source = call.source
    details = {"op": call.op, "module": call.module, "step": rank.step, "id": call.id}
    if source is not None:
        details["source"] = f"{source.file}:{source.line}"
    if call.error is not None:
        details["error"] = call.error
    place = _place(call, rank, call.start_ns, origin)
    category = f"{call.kind},{call.phase}"
    return {"ph": "X", "name": call.name, "cat": category, **place, "dur": call.duration_ns / 1000, "args": details}


def _arrow(forward: Call, call: Call, rank: RankDump, origin: int) -> Iterator[Event]:
    """Yield the two ends of an arrow."""
    number = f"{rank.step}.{rank.rank}.{forward.id}.{call.id}"
    names = {"name": call.phase, "cat": "belongs", "id": number}
    # A flow starts from the slice that encloses its time: the last instant of the forward call.
    yield {"ph": "s", **names, **_place(forward, rank, forward.start_ns + forward.duration_ns - 1, origin)}
    yield {"ph": "f", "bp": "e", **names, **_place(call, rank, call.start_ns, origin)}
