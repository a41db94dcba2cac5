"""Storages that forward keeps for backward: each once, from its first keeper to the last who needs it."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import open_dump
from aten_dump.report.html.payload.saved_memory import saved_section
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.report.sections_read import Read


class Kept:
    """Two forward ops that read x; the first has a backward."""

    def __init__(self, path: Path) -> None:
        b = self.b = Builder(path / "dump")
        self.x = torch.ones(4, 4)
        self.whole, self.row = b.value(self.x), b.value(self.x[1])
        self.made = b.value(torch.ones(2))
        exp, node = b.op("aten", "aten::exp", "Aten", "exp"), b.op("node", "ExpBackward0", "Node", "ExpBackward0")
        b.call(exp, id=1, args=[value(self.whole)], outputs=value(self.made))
        b.call(exp, id=2, n=1, args=[value(self.row)])
        b.call(node, id=3, phase="backward", forward=1)
        b.call(node, id=4, n=1, phase="backward", forward=1)
        b.call(exp, id=5, n=2)

    def saved(self, call: int, node: str, *values: int) -> None:
        self.b.emit(r.Saved(r.SAVED, call, node, list(values)))

    def read(self) -> Read | None:
        found = saved_section(open_dump(self.b.finish()).step(0).rank(0))
        return None if found is None else Read(found)


def test_a_storage_counts_once_for_its_first_keeper(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.saved(1, "ExpBackward0", kept.whole, kept.made)
    kept.saved(2, "SinBackward0", kept.row)
    found = kept.read()
    assert found is not None
    assert found.columns["nbytes"] == [64, 8] and found.columns["keeper"] == [0, 0]
    assert [found.json["nodes"][at] for at in found.columns["node"]] == ["ExpBackward0"] * 2
    assert found.columns["outside"] == [1, 0], "x came from outside the step"
    assert found.columns["until"] == [5, 3], "the second keeper of x has no backward: to the end of the step"


def test_it_is_kept_until_the_last_call_of_its_backward(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.saved(1, "ExpBackward0", kept.made)
    found = kept.read()
    assert found is not None and found.columns["until"] == [3]


def test_parts_of_a_sparse_tensor_are_kept_each(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.b.emit(
        r.Value(
            r.VALUE,
            50,
            0,
            0,
            0,
            0,
            [2],
            [],
            0,
            {"layout": "sparse_coo", "parts": {"values": kept.made, "indices": kept.whole}},
        )
    )
    kept.saved(1, "MulBackward0", 50)
    found = kept.read()
    assert found is not None and sorted(found.columns["nbytes"]) == [8, 64]


def test_what_nobody_kept_or_a_call_that_was_left_out_has_no_section(tmp_path: Path) -> None:
    assert Kept(tmp_path / "a").read() is None
    kept = Kept(tmp_path / "b")
    kept.saved(77, "ExpBackward0", kept.made)
    assert kept.read() is None
