"""Records made in memory, out of what another tool recorded, and read like an index of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import RankDump
from aten_dump.dump.foreign.foreign_rank import ForeignRank
from aten_dump.dump.foreign.made_index import MadeCall, MadeIndex, MadeTensor
from aten_dump.errors import FormatError
from aten_dump.store import records as r

CONFIG = {"statistics": ["min", "max"], "hash": "md5", "source": "msprobe"}


@pytest.fixture
def made(tmp_path: Path) -> MadeIndex:
    return MadeIndex(tmp_path, 3, 1, 2, CONFIG)


def opened(made: MadeIndex, path: Path) -> RankDump:
    return ForeignRank(lambda *place: made, path, 3, 1, 2)


RELU = MadeCall("api", "torch.relu", "Torch", "relu", 0, "forward", "fc", 7, 1000)


def test_an_empty_one(made: MadeIndex, tmp_path: Path) -> None:
    rank = opened(made, tmp_path)
    assert len(rank.calls) == 0 and rank.header.step == 3 and rank.header.rank == 1 and rank.header.world_size == 2
    assert rank.complete and rank.config["source"] == "msprobe"


def test_texts_have_one_number_each(made: MadeIndex) -> None:
    assert made.text("") == 0
    assert (made.text("a"), made.text("b"), made.text("a")) == (1, 2, 1)


def test_calls_are_numbered_and_read_back(made: MadeIndex, tmp_path: Path) -> None:
    x = made.tensor(MadeTensor("float32", (2, 3), {"min": -1.0, "max": 2.0}, requires_grad=True))
    first = made.call(RELU, args=[x], outputs=None)
    backward = MadeCall("api", "torch.relu", "Torch", "relu", 0, "backward")
    second = made.call(backward, forward=first, args=[], outputs=None)
    inner = made.call(MadeCall("aten", "aten::relu", "Aten", "relu", 0, "forward"), parent=first, args=[])
    assert (first, second, inner, made.calls) == (1, 2, 3, 3)
    rank = opened(made, tmp_path)
    call = rank["Torch.relu.0.forward"]
    assert (call.module, call.thread, call.start_ns, call.op) == (
        "fc",
        7,
        rank.header.start_unix_ns + 1000,
        "torch.relu",
    )
    assert [c.name for c in call.backward] == ["Torch.relu.0.backward"]
    assert [c.name for c in call.children] == ["Aten.relu.0.forward"]
    value = call.inputs[0][0]
    assert (value.shape, value.stride, value.dtype, value.requires_grad) == ((2, 3), (3, 1), torch.float32, True)
    assert (value.stats.min, value.stats.max, value.has_data, value.hash) == (-1.0, 2.0, False, None)


@pytest.mark.parametrize(
    ("shape", "stride"), [((), ()), ((4,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 4), (4, 4, 1)), ((0,), (1,))]
)
def test_tensors_are_row_major(made: MadeIndex, tmp_path: Path, shape: Any, stride: Any) -> None:
    made.call(RELU, args=[made.tensor(MadeTensor("int8", shape))])
    value = opened(made, tmp_path)["Torch.relu.0.forward"].inputs[0][0]
    assert (tuple(value.shape), value.stride) == (shape, stride)


def test_statistics_and_checksums_where_there_are_any(made: MadeIndex, tmp_path: Path) -> None:
    trees = [
        made.tensor(MadeTensor("float32", (2,))),
        made.tensor(MadeTensor("float32", (2,), {"max": 4.0, "unknown": 9.0})),
        made.tensor(MadeTensor("float32", (2,), {"mean": 4.0}, bytes(16))),
        made.tensor(MadeTensor("float32", (2,), {"min": 0.0})),
    ]
    made.call(RELU, args=trees)
    values = opened(made, tmp_path)["Torch.relu.0.forward"].inputs[0]
    assert [value.stats is None for value in values] == [True, False, True, False]
    assert (values[1].stats.min, values[1].stats.max) == (None, 4.0)
    assert values[3].stats.min == 0.0, "zero is a number"
    assert [value.hash for value in values] == [None, None, "00" * 16, None]


def test_bytes_are_read_when_they_are_asked_for(made: MadeIndex, tmp_path: Path) -> None:
    asked = []

    def load() -> torch.Tensor:
        asked.append(1)
        return torch.arange(4.0)

    trees = [made.tensor(MadeTensor("float32", (4,), load=load)) for _ in range(2)]
    made.call(RELU, args=trees)
    rank = opened(made, tmp_path)
    values = rank["Torch.relu.0.forward"].inputs[0]
    assert asked == [] and all(value.has_data for value in values)
    assert values[0].tensor().tolist() == [0.0, 1.0, 2.0, 3.0] and asked == [1]
    assert made.blob_bytes == 32 and rank.summary().shard_bytes == 32
    checksums = {rank.tables.blobs[number].checksum for number in made.loads}
    assert len(checksums) == 2, "nobody has read them, so they are not told to be equal"


def test_frames_and_stacks_are_kept_once(made: MadeIndex, tmp_path: Path) -> None:
    outer, inner = ("train.py", 7, "main", True), ("model.py", 3, "forward", True)
    number = made.stack([inner, outer])
    assert made.stack([inner, outer]) == number
    assert made.stack([outer]) != number and made.stack([]) == 0
    made.call(RELU, stack=number, args=[])
    stack = opened(made, tmp_path)["Torch.relu.0.forward"].stack
    assert [(f.file, f.line, f.function, f.user) for f in stack] == [inner, outer]


def test_gradients_and_notes(made: MadeIndex, tmp_path: Path) -> None:
    made.gradient("fc.weight", made.tensor(MadeTensor("float32", (2,))))
    made.note("unread", "two entries", 2)
    rank = opened(made, tmp_path)
    assert list(rank.gradients) == ["fc.weight"]
    assert [(note.code, note.message, note.count) for note in rank.notes] == [("unread", "two entries", 2)]


def test_what_no_tensor_is(made: MadeIndex, tmp_path: Path) -> None:
    for dtype in ("evil", "nn", "float33", ""):
        with pytest.raises(FormatError, match=f"has dtype {dtype!r}, which torch does not have"):
            made.tensor(MadeTensor(dtype, (1,)))
    with pytest.raises(FormatError, match=r"has shape \(2, -1\); no size may be negative"):
        made.tensor(MadeTensor("float32", (2, -1)))
    made.call(MadeCall("api", "torch.relu", "Torch", "relu", 1 << 70, "forward"))
    with pytest.raises(FormatError, match="has a number or text that no dump has"):
        made.finish()


def test_ids_of_phases_and_kinds_are_those_of_our_format(made: MadeIndex) -> None:
    made.call(MadeCall("module", "Linear", "Module", "fc", 0, "optimizer"), args=[])
    rows = made.finish()
    assert rows.header.kind == r.HEADER and rows.commit is not None and rows.commit.calls == 1
