"""A reader written from docs/format.md alone reads what the Writer wrote."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from aten_dump.store import records as r
from aten_dump.store.writing.index_writer import IndexWriter
from tests.store import minimal_reader
from tests.store.minimal_reader import Step
from tests.store.recording import RANK, call, header, store, writer


@pytest.fixture(params=["finished", "growing"])
def step(tmp_path: Path, request: pytest.FixtureRequest) -> Step:
    sink = writer(tmp_path)
    sink.begin_step(header(level="mix"))
    for number, text in enumerate(("float32", "complex64", "float64", "int8"), 1):
        sink.emit(r.Text(r.TEXT, number, text))
    sink.emit(r.Op(r.OP, 1, 0, "aten::addmm", "Aten", "addmm", ["self"]))
    sink.emit(r.Op(r.OP, 2, 2, "torch.nn.Linear", "Module", "layers.0.fc", []))
    base = store(sink, np.arange(12, dtype=np.float32), "F32", [12])
    sink.emit(r.Value(r.VALUE, 1, 1, 0, 0, 1, [3, 4], [4, 1], 0, None))
    sink.emit(r.Data(r.DATA, 1, base, 0, 0))
    sink.emit(r.Value(r.VALUE, 2, 1, 0, 4, 1, [2, 2], [1, 4], 0, None))  # a transposed view on the same bytes
    sink.emit(r.Data(r.DATA, 2, base, 16, 0))
    odd = store(sink, np.array([1, 2, 3], np.int8), "I8")
    sink.emit(r.Value(r.VALUE, 3, 2, 0, 0, 4, [3], [1], 0, None))
    sink.emit(r.Data(r.DATA, 3, odd, 0, 1))
    pairs = store(sink, np.array([1 + 2j, 3 - 4j], np.complex64).view(np.float32), "F32")
    sink.emit(r.Value(r.VALUE, 4, 3, 0, 0, 2, [2], [1], r.CONJUGATE, None))
    sink.emit(r.Data(r.DATA, 4, pairs, 0, 1))
    sample = store(sink, np.arange(5, dtype=np.float64), "F64")
    sink.emit(r.Value(r.VALUE, 5, 4, 0, 0, 3, [100, 100], [100, 1], 0, None))
    sink.emit(r.Data(r.DATA, 5, sample, 0, 2))
    sink.emit((r.VALUE, 6, 5, 0, 0, 1, [2], [1], r.UNDEFINED))  # without the fields that have their default
    sink.emit(
        call(
            2,
            parent=1,
            n=3,
            args=[[0, 1], [1, [0, 2], 1.5], [9, 1.0, 2.0]],
            kwargs={"alpha": 2},
            outputs=[2, [0, 3], None],
        )
    )
    sink.emit(call(1, op=2, n=0, phase=2, repeat=1, outputs=[3, "x", [4, "float32"]], error="RuntimeError: no"))
    sink.emit((r.CALL, 3, 0, 1, 4, 0, 0, 0, 5, 6))
    if request.param == "finished":
        sink.end_step(3, 6, {})
    sink.close()
    if request.param == "growing":
        (tmp_path / RANK / "shard-00000.safetensors").rename(tmp_path / RANK / "shard-00000.safetensors.partial")
    return Step(tmp_path / RANK)


def test_calls(step: Step) -> None:
    assert step.calls() == [
        {
            "name": "Module.layers.0.fc.0.backward.1", "kind": "module", "phase": "backward", "op": "torch.nn.Linear",
            "error": "RuntimeError: no", "args": [], "kwargs": {}, "outputs": {"x": ("dtype", "float32")},
        },
        {
            "name": "Aten.addmm.3.forward", "kind": "aten", "phase": "forward", "op": "aten::addmm", "error": None,
            "args": [("value", 1), [("value", 2), 1.5], ("complex", 1.0, 2.0)], "kwargs": {"alpha": 2},
            "outputs": (("value", 3), None),
        },
        {
            "name": "Aten.addmm.4.forward", "kind": "aten", "phase": "forward", "op": "aten::addmm", "error": None,
            "args": [], "kwargs": {}, "outputs": None,
        },
    ]  # fmt: skip


def test_tensors(step: Step) -> None:
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    expected = {
        1: base,
        2: base[1:].t()[:2],
        3: torch.tensor([1, 2, 3], dtype=torch.int8),
        4: torch.tensor([1 - 2j, 3 + 4j]),
        5: torch.arange(5, dtype=torch.float64),
    }
    for number, tensor in expected.items():
        found = step.tensor(number)
        assert found is not None
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor), number
    assert step.tensor(6) is None


def test_stock_safetensors(step: Step) -> None:
    if (step.folder / "shard-00000.safetensors").exists():
        assert set(step.stock(0)) == {"1", "2", "3", "4", "pad.51", "pad.68"}
        assert step.stock(0)["2"].tolist() == [1, 2, 3]


def test_it_drops_a_torn_tail(tmp_path: Path) -> None:
    """Wherever the index is cut or spoilt: the calls up to the last check record before that, and none after."""
    path, ends = tmp_path / "index.msgpack", []
    index = IndexWriter.create(path)
    index.add([header(), r.Op(r.OP, 1, 0, "aten::addmm", "Aten", "addmm", ["self"])])
    for number in (1, 2, 3):
        index.add([call(number)])
        index.flush()  # a check record ends what is flushed
        ends.append(path.stat().st_size)
    index.close()
    whole = path.read_bytes()

    def calls_of(found: bytes) -> int:
        path.write_bytes(found)
        return len(Step(path.parent).calls())

    assert [calls_of(whole[:cut]) for cut in range(ends[0], ends[2])] == [
        1 if cut < ends[1] else 2 for cut in range(ends[0], ends[2])
    ]
    assert calls_of(whole + bytes(100)) == 3
    assert calls_of(whole + whole) == 3
    for at in (ends[0], ends[1] - 1, ends[1]):
        spoilt = bytearray(whole)
        spoilt[at] ^= 1
        assert calls_of(bytes(spoilt)) == (1 if at < ends[1] else 2), at


def test_it_stands_alone() -> None:
    source = Path(minimal_reader.__file__).read_text()
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported == {"__future__", "re", "pathlib", "typing", "msgpack", "torch", "xxhash", "safetensors"}
    assert len(source.splitlines()) <= 100
