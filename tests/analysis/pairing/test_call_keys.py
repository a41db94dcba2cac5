"""What a call is known by: its phase, its module without wrappers, its op with its kind, the shapes it has to do with."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump.analysis.pairing.alignment import CallKey
from aten_dump.analysis.pairing.call_keys import call_keys
from aten_dump.analysis.pairing.user_mapping import Mapping
from aten_dump.dump import RankDump, open_dump
from tests.dump.building import Builder, value


def recorded(path: Path) -> RankDump:
    """Return a step of three calls: a module, an op in it that writes its first argument, and a node of autograd."""
    builder = Builder(path)
    taken, made, written = (builder.value(torch.zeros(shape)) for shape in ((2, 3), (3, 4), (2, 4)))
    builder.call(
        builder.op("module", "model.Block", "Module", "_orig_mod.h.0"), args=[value(taken)], outputs=value(made),
        module="_orig_mod.h.0",
    )  # fmt: skip
    builder.call(
        builder.op("aten", "npu::add_", "NPU", "add_"), phase="recompute", args=[value(taken), value(made)],
        kwargs={"alpha": value(written)}, written=["self", value(written)],
    )  # fmt: skip
    builder.call(builder.op("node", "AddBackward0", "Node", "AddBackward0"), phase="backward", module="module.h.1")
    return open_dump(builder.finish()).rank(0, 0)


def test_keys_of_calls(tmp_path: Path) -> None:
    assert call_keys(recorded(tmp_path / "dump"), range(3)) == [
        CallKey("forward", "h.0", "module h.0", ((3, 4), (2, 3))),
        CallKey("recompute", "", "aten npu::add_", ((2, 4), (2, 3), (3, 4))),
        CallKey("backward", "h.1", "node AddBackward0", ()),
    ]


def test_keys_of_some_calls_in_the_order_asked_for(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "dump")
    first, _, last = call_keys(rank, range(3))
    assert call_keys(rank, [2, 0]) == [last, first]


def test_a_mapping_renames_modules_and_ops_of_the_target(tmp_path: Path) -> None:
    mapping = Mapping(modules={"h": "layers", "": "model"}, ops={"npu::add_": "aten::add_"})
    keys = call_keys(recorded(tmp_path / "dump"), range(3), mapping)
    assert [(key.module, key.op) for key in keys] == [
        ("layers.0", "module layers.0"), ("model", "aten aten::add_"), ("layers.1", "node AddBackward0"),
    ]  # fmt: skip


def test_the_model_itself_is_known_whatever_its_class(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    builder.call(builder.op("module", "transformers.models.GPT2Model", "Module", "GPT2Model"))
    builder.call(builder.op("module", "torch.nn.Linear", "Module", "head"))
    keys = call_keys(open_dump(builder.finish()).rank(0, 0), range(2))
    assert [key.op for key in keys] == ["module ", "module head"]
