"""Training programs that write tensors without an op, each in the way such programs do.

A writer is given a tensor and other numbers of its size. Where in a program it writes is a form: a batch that is filled
again, weights that an optimizer of its own changes, an activation in place. `PROGRAMS` has these, and some that are
programs of their own; each says which op of every step reads first what was written.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing.shared_memory
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Write = Callable[[Tensor, np.ndarray], object]
SIZE = 24
BYTES = 4 * SIZE * SIZE


def _pointer(x: Tensor) -> Any:
    return ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))


def _file_of(numbers: np.ndarray) -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(numbers.tobytes())
    file.seek(0)
    return file


def by_readinto(x: Tensor, numbers: np.ndarray) -> None:
    with _file_of(numbers) as file:
        file.readinto(memoryview(x.numpy()).cast("B"))


def by_preadv(x: Tensor, numbers: np.ndarray) -> None:
    with _file_of(numbers) as file:
        os.preadv(file.fileno(), [x.numpy()], 0)


def by_socket(x: Tensor, numbers: np.ndarray) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(numbers.tobytes())
        here.recv_into(memoryview(x.numpy()).cast("B"), x.nbytes, socket.MSG_WAITALL)


def by_h5py(x: Tensor, numbers: np.ndarray) -> None:
    h5py = pytest.importorskip("h5py")
    with tempfile.TemporaryDirectory() as folder, h5py.File(f"{folder}/rows.h5", "w") as file:
        file.create_dataset("rows", data=numbers).read_direct(x.numpy())


def by_generator(x: Tensor, numbers: np.ndarray) -> None:
    np.random.default_rng(int(abs(numbers).sum())).standard_normal(out=x.numpy(), dtype=np.float32)


def by_shuffling(x: Tensor, numbers: np.ndarray) -> None:
    np.random.default_rng(0).shuffle(x.numpy(), axis=0)


def by_scatter(x: Tensor, numbers: np.ndarray) -> None:
    np.add.at(x.numpy(), np.arange(len(x)) % 5, numbers)
    x.numpy()[5:] *= 0.5


def by_dlpack_of_numpy(x: Tensor, numbers: np.ndarray) -> None:
    ctypes.memmove(np.from_dlpack(x).ctypes.data, numbers.tobytes(), x.nbytes)


def by_dlpack_twice(x: Tensor, numbers: np.ndarray) -> None:
    np.asarray(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).numpy())[:] = numbers


def by_pandas(x: Tensor, numbers: np.ndarray) -> None:
    pandas = pytest.importorskip("pandas")
    x.numpy()[:] = pandas.DataFrame(numbers).rolling(3, min_periods=1).mean()


def by_cffi(x: Tensor, numbers: np.ndarray) -> None:
    there = pytest.importorskip("cffi").FFI()
    there.memmove(there.cast("char *", x.data_ptr()), numbers.tobytes(), x.nbytes)


def by_structure(x: Tensor, numbers: np.ndarray) -> None:
    class Rows(ctypes.Structure):
        _fields_ = (("values", ctypes.c_float * x.numel()),)

    Rows.from_address(x.data_ptr()).values[:] = numbers.ravel().tolist()


def by_sorting_in_c(x: Tensor, numbers: np.ndarray) -> None:
    order = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_float))
    compared = order(lambda a, b: (a[0] < b[0]) - (a[0] > b[0]))
    ctypes.CDLL(None).qsort(ctypes.c_void_p(x.data_ptr()), x.numel(), 4, compared)


def by_blas_of_torch(x: Tensor, numbers: np.ndarray) -> None:
    (path,) = Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")
    add = ctypes.CDLL(str(path)).cblas_saxpy
    given = np.ascontiguousarray(numbers)
    add(x.numel(), ctypes.c_float(0.75), ctypes.c_void_p(given.ctypes.data), 1, ctypes.c_void_p(x.data_ptr()), 1)


def by_storage_from_file(x: Tensor, numbers: np.ndarray) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(x.numel().to_bytes(8, "little") + numbers.tobytes())
        file.flush()
        with Path(file.name).open("rb") as opened:
            x.untyped_storage()._set_from_file(opened, None, True, 4)


def by_another_thread(x: Tensor, numbers: np.ndarray) -> None:
    def fill() -> None:
        x.copy_(torch.from_numpy(numbers))

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()


def by_op_without_mutates_args(x: Tensor, numbers: np.ndarray) -> None:
    torch.ops.tests_writers.fill(x, float(numbers[0, 0]))


@torch.library.custom_op("tests_writers::fill", mutates_args=())
def _fill(x: Tensor, by: float) -> Tensor:
    x.numpy()[:] = np.cos(x.numpy() * 3 + by)
    return torch.zeros(1)


# -- memory that others have too


def memory_of_file(folder: Path) -> tuple[Tensor, Write]:
    """A tensor on a file that is mapped, which another map of the file writes."""
    path = folder / "rows.bin"
    path.write_bytes(bytes(BYTES))
    x = torch.from_file(str(path), shared=True, size=SIZE * SIZE).view(SIZE, SIZE)

    def write(x: Tensor, numbers: np.ndarray) -> None:
        there = np.memmap(path, np.float32, "r+", shape=(SIZE, SIZE))
        there[:] = numbers
        there.flush()

    return x, write


def memory_of_storage(folder: Path) -> tuple[Tensor, Write]:
    """A storage from a file, that `pwrite` writes."""
    path = folder / "storage.bin"
    path.write_bytes(bytes(BYTES))
    storage = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=BYTES)
    x = torch.tensor([], dtype=torch.float32).set_(storage, 0, (SIZE, SIZE))

    def write(x: Tensor, numbers: np.ndarray) -> None:
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), numbers.tobytes(), 0)

    return x, write


_CHILD = """
import sys, numpy
from multiprocessing import shared_memory, resource_tracker
found = shared_memory.SharedMemory(sys.argv[1])
resource_tracker.unregister(found._name, "shared_memory")
n = int(sys.argv[2])
numpy.ndarray((n,), numpy.float32, found.buf)[:] = numpy.frombuffer(sys.stdin.buffer.read(), numpy.float32)
"""


def memory_of_another_program(folder: Path) -> tuple[Tensor, Write]:
    """Shared memory by its name, that another program fills: a data loader of its own."""
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=BYTES)
    x = torch.frombuffer(shared.buf, dtype=torch.float32, count=SIZE * SIZE).view(SIZE, SIZE)
    x.__dict__["shared"] = shared

    def write(x: Tensor, numbers: np.ndarray) -> None:
        command = [sys.executable, "-c", _CHILD, shared.name, str(x.numel())]
        subprocess.run(command, input=numbers.tobytes(), check=True)

    return x, write


def memory_of_a_fork(folder: Path) -> tuple[Tensor, Write]:
    """A map without a file, that a forked child fills."""
    memory = mmap.mmap(-1, BYTES)
    x = torch.frombuffer(memory, dtype=torch.float32).view(SIZE, SIZE)

    def write(x: Tensor, numbers: np.ndarray) -> None:
        child = os.fork()
        if not child:
            memory.seek(0)
            memory.write(numbers.tobytes())
            os._exit(0)
        os.waitpid(child, 0)

    return x, write


def _serve(asked: Any, done: Any) -> None:
    x, numbers = asked.get()
    while numbers is not None:
        x.copy_(torch.from_numpy(numbers))
        done.put(0)
        x, numbers = asked.get()


def memory_of_torch_shared(folder: Path) -> tuple[Tensor, Write]:
    """A tensor in torch's own shared memory, that a worker of torch.multiprocessing fills by an op."""
    context = torch.multiprocessing.get_context("spawn")
    x, asked, done = torch.zeros(SIZE, SIZE).share_memory_(), context.Queue(), context.Queue()
    worker = context.Process(target=_serve, args=(asked, done), daemon=True)
    worker.start()

    def write(x: Tensor, numbers: np.ndarray) -> None:
        asked.put((x, numbers))
        done.get(timeout=60)

    return x, write


# -- forms of programs

Step = Callable[[], object]


def numbers_of(seed: int, size: tuple[int, ...] = (SIZE, SIZE)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def loss_of(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores, torch.arange(len(scores)) % 5)


def gradients_of(*layers: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for layer in layers for p in layer.parameters() if p.grad is not None]


def batches(make: Callable[[Path], tuple[Tensor, Write]], folder: Path, step: Step) -> list[Tensor]:
    """Two micro-batches a step, both filled into one buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    buffer, write = make(folder)
    kept = []
    for number in range(2):
        for part in range(2):
            write(buffer, numbers_of(2 * number + part + 1))
            loss = loss_of(model(buffer))
            loss.backward()
            kept.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        step()
    return [*kept, *(p.detach().clone() for p in model.parameters())]


def activations(write: Write, folder: Path, step: Step) -> list[Tensor]:
    """A layer whose result is changed in place, before the next op reads it."""
    torch.manual_seed(0)
    one, other = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 5)
    kept = []
    for number in range(2):
        h = one(torch.from_numpy(numbers_of(number + 1)))
        write(h.detach(), numbers_of(number + 5))
        loss = loss_of(other(torch.tanh(h)))
        loss.backward()
        kept += [loss.detach(), *gradients_of(one, other)]
        step()
    return kept


def weights(write: Write, folder: Path, step: Step) -> list[Tensor]:
    """Weights that are changed by no op, and read by a validation in the same step."""
    torch.manual_seed(0)
    one, other = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 5)
    kept = []
    for number in range(2):
        x = torch.from_numpy(numbers_of(number + 1))
        loss = loss_of(other(one(x)))
        loss.backward()
        write(one.weight.detach(), numbers_of(number + 7) / 5)
        with torch.no_grad():
            kept += [loss.detach(), loss_of(other(one(x * 2)))]
        step()
    return kept


# -- programs of their own


def pages(folder: Path, step: Step) -> list[Tensor]:
    """A paged cache of keys, of which a kernel is given the address of one page."""
    torch.manual_seed(0)
    query, cache, kept = nn.Linear(SIZE, SIZE), torch.zeros(16, 4, SIZE), []
    for number in range(2):
        for page in range(3):
            made = numbers_of(10 * number + page, (4, SIZE))
            ctypes.memmove(cache.data_ptr() + page * made.nbytes, made.ctypes.data, made.nbytes)
            with torch.no_grad():
                keys = cache.flatten(0, 1)
                kept.append((query(torch.ones(2, SIZE)) @ keys.T).softmax(-1) @ keys)
        step()
    return kept


def simulator(folder: Path, step: Step) -> list[Tensor]:
    """A simulator that keeps arrays of its own: what is observed, and what it is worth."""
    torch.manual_seed(0)
    observed, worth = np.zeros((8, SIZE), np.float32), np.zeros(8, np.float32)
    x, reward, policy = torch.from_numpy(observed), torch.from_numpy(worth), nn.Linear(SIZE, 3)
    optimizer, kept = torch.optim.SGD(policy.parameters(), lr=0.1), []
    for number in range(2):
        total = torch.zeros(())
        for moment in range(3):
            observed[:] = numbers_of(10 * number + moment, observed.shape)
            chosen = policy(x.clone()).log_softmax(-1)[:, 0]
            worth[:] = observed.sum(1) + chosen.detach().numpy()
            total = total - (chosen * reward.exp()).mean()
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(total.detach())
        step()
    return kept


def other_dtypes(folder: Path, step: Step) -> list[Tensor]:
    """Tokens, a mask and weights in bfloat16, filled by a memoryview, by C and through other bits."""
    torch.manual_seed(0)
    table, kept = nn.Embedding(20, 8), []
    tokens, mask = torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.bool)
    weight = torch.zeros(6, dtype=torch.bfloat16)
    for number in range(2):
        for part in range(3):
            memoryview(tokens.numpy())[:] = memoryview((np.arange(6) * 7 + part + number) % 20)  # type: ignore[assignment]
            ctypes.memset(mask.data_ptr(), part % 2, 6)
            weight.view(torch.int16).numpy()[:] = np.int16(0x3F80 + part)
            loss = ((table(tokens).sum(-1) * mask) * weight.float()).sum()
            loss.backward()
            kept.append(loss.detach())
        step()
    return kept


class _ByHand(torch.autograd.Function):
    """An activation whose forward and backward fill memory from `torch.empty`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        y.numpy()[:] = np.sin(x.numpy())
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        found = torch.empty_like(gradient)
        np.multiply(gradient.numpy(), np.cos(ctx.saved_tensors[0].numpy()), out=found.numpy())
        return found


def function_by_hand(folder: Path, step: Step) -> list[Tensor]:
    """A `torch.autograd.Function` around a kernel of the program's own."""
    torch.manual_seed(0)
    one, other = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 5)
    kept = []
    for number in range(2):
        loss = loss_of(other(_ByHand.apply(one(torch.from_numpy(numbers_of(number + 1))))))
        loss.backward()
        kept += [loss.detach(), *gradients_of(one, other)]
        step()
    return kept


@dataclass(frozen=True)
class Program:
    """A program that writes without an op.

    Attributes:
        run: runs it for two steps, in a folder, and returns what it came to; it ends each step by calling what it is given.
        readers: the ops that are, in every step, the first to read what was written.
    """

    run: Callable[[Path, Step], list[Tensor]]
    readers: frozenset[str]


def _plain(write: Write) -> Callable[[Path], tuple[Tensor, Write]]:
    return lambda folder: (torch.zeros(SIZE, SIZE), write)


def _batches(make: Callable[[Path], tuple[Tensor, Write]]) -> Program:
    return Program(partial(batches, make), frozenset({"aten::addmm"}))


def _activations(write: Write) -> Program:
    return Program(partial(activations, write), frozenset({"aten::tanh"}))


def _weights(write: Write) -> Program:
    return Program(partial(weights, write), frozenset({"aten::t"}))


PROGRAMS: dict[str, Program] = {
    "readinto of a file": _batches(_plain(by_readinto)),
    "preadv": _batches(_plain(by_preadv)),
    "a socket": _batches(_plain(by_socket)),
    "h5py": _batches(_plain(by_h5py)),
    "numpy's generator": _batches(_plain(by_generator)),
    "pandas": _batches(_plain(by_pandas)),
    "an op of another thread": _batches(_plain(by_another_thread)),
    "numpy.memmap": _batches(memory_of_file),
    "a storage on a file": _batches(memory_of_storage),
    "another program": _batches(memory_of_another_program),
    "a fork": _batches(memory_of_a_fork),
    "torch.multiprocessing": _batches(memory_of_torch_shared),
    "numpy's shuffle": _activations(by_shuffling),
    "numpy's add.at": _activations(by_scatter),
    "DLPack into numpy": _activations(by_dlpack_of_numpy),
    "qsort of C": _activations(by_sorting_in_c),
    "an op that does not name what it writes": _activations(by_op_without_mutates_args),
    "DLPack twice, then numpy": _weights(by_dlpack_twice),
    "cffi": _weights(by_cffi),
    "a ctypes structure": _weights(by_structure),
    "torch's own BLAS": _weights(by_blas_of_torch),
    "a storage read from a file": _weights(by_storage_from_file),
    "pages of a cache": Program(pages, frozenset({"aten::view"})),
    "a simulator": Program(simulator, frozenset({"aten::clone", "aten::exp"})),
    "other dtypes": Program(other_dtypes, frozenset({"aten::embedding", "aten::mul.Tensor", "aten::_to_copy"})),
    "a function by hand": Program(function_by_hand, frozenset({"aten::addmm"})),
}
