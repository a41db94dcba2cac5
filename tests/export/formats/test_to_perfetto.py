"""A timeline: tracks, slices, and arrows from forward to backward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aten_dump.export.formats.to_perfetto import write
from tests.dump.building import START_NS
from tests.export.made import FILE, chosen, small_step


def events(root: Path, out: Path, kinds: tuple[str, ...] = ("aten", "api", "module", "node")) -> tuple[list[Any], Any]:
    calls = chosen(root, kinds)
    write(calls, out)
    content = json.loads(out.read_text())
    assert content["displayTimeUnit"] == "ns"
    return content["traceEvents"], calls


def test_a_call_is_a_slice_in_microseconds_with_what_it_was(tmp_path: Path) -> None:
    found, calls = events(small_step(tmp_path / "dump"), tmp_path / "out.json")
    slices = {event["args"]["id"]: event for event in found if event["ph"] == "X"}
    assert set(slices) == {1, 2, 3, 4, 7} and calls.left_out == {"calls without a time of their own": 2}
    addmm = slices[3]
    assert (addmm["name"], addmm["cat"], addmm["pid"], addmm["tid"]) == ("Aten.addmm_.0.forward", "aten,forward", 0, 0)
    assert (addmm["dur"], addmm["ts"]) == (1.0, calls.ranks[0].calls[2].start_ns / 1000 - START_NS / 1000)
    assert addmm["args"] == {"op": "aten::addmm_", "module": "fc", "step": 0, "id": 3, "source": f"{FILE}:7"}
    assert slices[4]["args"]["error"] == "RuntimeError: stopped" and "source" not in slices[4]["args"]


def test_processes_and_threads_are_named_once(tmp_path: Path) -> None:
    small_step(tmp_path / "dump", 0, 0)
    small_step(tmp_path / "dump", 0, 2)
    found, _ = events(tmp_path / "dump", tmp_path / "out.json")
    names = [(event["name"], event["pid"], event["args"]["name"]) for event in found if event["ph"] == "M"]
    assert names == [
        ("process_name", 0, "rank 0"), ("thread_name", 0, "thread 0"),
        ("process_name", 2, "rank 2"), ("thread_name", 2, "thread 0"),
    ]  # fmt: skip


def test_an_arrow_leads_from_the_last_instant_of_the_forward_to_the_start_of_its_backward(tmp_path: Path) -> None:
    found, calls = events(small_step(tmp_path / "dump"), tmp_path / "out.json")
    starts = {event["id"]: event for event in found if event["ph"] == "s"}
    ends = {event["id"]: event for event in found if event["ph"] == "f"}
    assert set(starts) == set(ends) == {"0.0.3.4", "0.0.1.7"}, "and none to calls without a time of their own"
    forward, node = calls.ranks[0].calls[2], calls.ranks[0].calls[3]
    assert (forward.id, node.id) == (3, 4)
    assert round((ends["0.0.3.4"]["ts"] - starts["0.0.3.4"]["ts"]) * 1000) == node.start_ns - forward.start_ns - 999
    assert ends["0.0.3.4"]["bp"] == "e" and starts["0.0.3.4"]["name"] == "backward"


def test_steps_lie_on_one_line_of_time(tmp_path: Path) -> None:
    small_step(tmp_path / "dump", 0)
    small_step(tmp_path / "dump", 1)
    found, _ = events(tmp_path / "dump", tmp_path / "out.json", ("aten",))
    assert {event["args"]["step"] for event in found if event["ph"] == "X"} == {0, 1}
