"""`dedup="sample"`: who writes without an op is found by some words of the memory, and no op is accused."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, RankDump, open_dump, replay
from tests.capture.bits import calls

Write = Callable[[Tensor], object]


def _whole(x: Tensor) -> memoryview:
    return memoryview((ctypes.c_char * x.nbytes).from_address(x.data_ptr())).cast("B")


def _by_memoryview(x: Tensor) -> None:
    _whole(x)[:] = bytes([63]) * x.nbytes


def _by_file(x: Tensor) -> None:
    with mmap.mmap(-1, x.nbytes) as memory:
        memory.write(array.array("f", [1.5] * x.numel()).tobytes())
        memory.seek(0)
        ctypes.memmove(x.data_ptr(), memory.read(), x.nbytes)


def _by_unobserved_op(x: Tensor) -> None:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        x.neg_()


def _by_another_tensor(x: Tensor) -> None:
    torch.frombuffer(_whole(x), dtype=torch.float32).mul_(2)


WRITERS: dict[str, Write] = {
    "numpy fill": lambda x: x.numpy().fill(3),
    "numpy view of a transposed tensor": lambda x: x.t().numpy().__imul__(2),
    "numpy ufunc with out": lambda x: np.negative(x.numpy(), out=x.numpy()),
    "numpy copyto": lambda x: np.copyto(x.numpy(), np.ones(x.shape, np.float32)),
    "numpy in another dtype": lambda x: x.numpy().view(np.uint8).fill(63),
    "DLPack by numpy": lambda x: np.from_dlpack(x.numpy()).__iadd__(1),
    "DLPack by torch": lambda x: torch.from_dlpack(x.numpy()).add_(1),
    "memset": lambda x: ctypes.memset(x.data_ptr(), 0, x.nbytes),
    "memmove": lambda x: ctypes.memmove(x.data_ptr(), torch.ones_like(x).data_ptr(), x.nbytes),
    "memoryview": _by_memoryview,
    "a file in memory": _by_file,
    "an op that no mode sees": _by_unobserved_op,
    "another tensor on the same memory": _by_another_tensor,
    "a C function by its pointer": lambda x: ctypes.CDLL(None).memset(ctypes.c_void_p(x.data_ptr()), 64, x.nbytes),
}


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_is_noted_between_two_calls_and_no_op_is_accused(tmp_path: Path, writer: str, size: int) -> None:
    x = torch.linspace(-1, 1, size * size).reshape(size, size)
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", dedup="sample")):
        x.exp()
        x.sum()
        WRITERS[writer](x)
        x.cos()
        x.tanh()
    rank = open_dump(str(tmp_path)).step(0).rank(0)
    ours = [write for write in rank.unseen_writes if write.value.shape == x.shape]
    assert len(ours) == 1, rank.unseen_writes
    assert ours[0].last is not None and ours[0].first is not None
    (summed,) = calls(rank, kind="aten", op="aten::sum")
    assert ours[0].last.id >= summed.id  # the way to numpy may be ops that read it: a detach, a transpose
    assert ours[0].first.op == "aten::cos"
    assert [note for note in rank.notes if note.code == "unseen_writes" and ours[0].first.name in note.message]
    assert not replay(rank).suspects
    (before,), (after,) = (calls(rank, kind="aten", op=op) for op in ("aten::exp", "aten::tanh"))
    assert torch.equal(after.inputs[0][0].tensor(), x)
    assert not torch.equal(before.inputs[0][0].tensor(), x)


def test_a_training_step_has_no_such_writes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(inplace=True))
    optimizer = torch.optim.AdamW(model.parameters())
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", dedup="sample"), model=model) as dump:
        for _ in range(2):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    for number in (0, 1):
        rank: RankDump = open_dump(str(tmp_path)).step(number).rank(0)
        assert not rank.unseen_writes
        assert not [note for note in rank.notes if note.code == "unseen_writes"]
