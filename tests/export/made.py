"""A small dump made by hand, with what a recorded one seldom has, and its calls as an export is given them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aten_dump import RankDump, open_dump
from aten_dump.export.chosen_calls import ChosenCalls
from aten_dump.store import records as r
from tests.dump.building import Builder, value

X, W, Y = torch.tensor([[1.0, -2.0, 0.0]]), torch.ones(2, 3), torch.tensor([[3.0, -4.0]])
FILE = "/home/me/train.py"


def small_step(root: Path, step: int = 0, rank: int = 0, config: dict[str, Any] | None = None) -> Path:
    """Write a step: module `fc` calls linear, which runs addmm_ (id 3, in place, with literals); then their backward.

    Of the calls, 4 raised and used undefined memory, 5 is a backward without a time of its own, 6 a second one.
    """
    b = Builder(root, step, rank, config)
    stack = b.stack((FILE, 7, "forward", True), ("/lib/torch/nn.py", 9, "__call__", False))
    x, w, y, g = (b.value(t) for t in (X, W, Y, torch.full((1, 3), 0.5)))
    b.emit(r.Statistics(r.STATISTICS, y, [2, -4.0, 3.0, -0.5, 5.0, None, 0, 0, 0, 0, 1, 1]))
    b.emit(r.Hash(r.HASH, y, b"\1\2\3\4\5\6\7\10"))
    nothing = b.value(torch.zeros(5), flags=r.UNDEFINED, store=None)
    fc = b.op("module", "torch.nn.modules.linear.Linear", "Module", "fc")
    linear = b.op("api", "torch.nn.functional.linear", "Functional", "linear")
    addmm = b.op("aten", "aten::addmm_", "Aten", "addmm_", ("self", "mat1", "mat2", "beta"))
    node = b.op("node", "AddmmBackward0", "Node", "AddmmBackward0")
    b.call(addmm, id=3, parent=2, args=[value(x), [r.TREE_LIST, value(w), 2], 1.5], kwargs={"beta": True},
           outputs=value(y), written=["self", value(y)], module="fc", stack=stack)  # fmt: skip
    b.call(linear, id=2, parent=1, args=[value(x), value(w), None], outputs=value(y), module="fc", stack=stack,
           duration_ns=2000)  # fmt: skip
    b.call(fc, id=1, args=[value(x)], kwargs={"mask": value(w)}, outputs=[r.TREE_TUPLE, value(y), None], module="fc",
           duration_ns=3000)  # fmt: skip
    b.call(node, id=4, args=[value(y)], outputs=[r.TREE_TUPLE, value(nothing)], forward=3, phase="backward", module="fc",
           error="RuntimeError: stopped")  # fmt: skip
    for number, repeat in ((5, 0), (6, 1)):
        b.call(linear, id=number, repeat=repeat, args=[value(y)], outputs=[r.TREE_TUPLE, value(g), None, None],
               forward=2, phase="backward", module="fc", duration_ns=0)  # fmt: skip
    b.call(fc, id=7, args=[value(y)], outputs=[r.TREE_TUPLE, value(g)], forward=1, phase="backward", module="fc")
    b.emit(r.Gradient(r.GRADIENT, "fc.weight", g, 4))
    return b.finish()


def chosen(root: Path, kinds: Sequence[str] = ("aten", "api", "module", "node"), **fields: Any) -> ChosenCalls:
    """Return all steps and ranks of a dump as an export is given them."""
    dump = open_dump(root)
    ranks: list[RankDump] = [step.rank(rank) for step in map(dump.step, dump.steps) for rank in step.ranks]
    return ChosenCalls(ranks, kinds, **fields)
