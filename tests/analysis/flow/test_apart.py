"""Calls that take no part in the flow: transport, placing, pickles, wrappers."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import open_dump
from aten_dump.analysis.flow.data_flow import calls_apart
from aten_dump.dump import RankDump
from tests.dump.building import Builder, value

X = torch.zeros(4)


def recorded(folder: Path) -> RankDump:
    """Return an all-reduce that copies, ``set_``, and a wait for what a functional collective brought."""
    b = Builder(folder)
    reduce = b.op("aten", "c10d::allreduce_", "Distributed", "allreduce_", ("tensors",))
    copy = b.op("aten", "aten::copy_", "Aten", "copy_", ("self", "src"))
    placing = b.op("aten", "aten::set_.source_Storage", "Aten", "set_", ("self", "source"))
    gather = b.op("aten", "_c10d_functional::all_gather_into_tensor", "Distributed", "all_gather", ("input",))
    wait = b.op("aten", "_c10d_functional::wait_tensor", "Distributed", "wait_tensor", ("tensor",))
    given, brought, late = (b.value(torch.zeros(4)) for _ in range(3))
    b.call(reduce, id=1, args=[value(given)])
    b.call(copy, id=2, parent=1, args=[value(given), value(brought)])
    b.call(placing, id=3, args=[value(given), value(brought)])
    b.call(gather, id=4, args=[value(given)], outputs=value(brought))
    b.call(wait, id=5, args=[value(given)], outputs=value(brought))
    b.call(wait, id=6, args=[value(given)], outputs=value(late))
    whole = torch.zeros(4)
    b.call(gather, id=7, args=[value(given)], outputs=value(b.value(whole)))
    b.call(wait, id=8, args=[value(given)], outputs=value(b.value(whole[2:])))
    return open_dump(b.finish()).rank(0, 0)


def test_transport_placing_and_waits(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "dump")
    assert calls_apart(rank, wrappers=False) == {2, 3}
    assert calls_apart(rank, wrappers=True) == {2, 3, 5, 8}, "what call 6 brings was begun in another step"
