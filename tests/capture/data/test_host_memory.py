"""Host memory for bytes of tensors: writable, shared with its array, unseen by the program's modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.data.host_memory import _given_out as given_out
from aten_dump.capture.data.host_memory import as_array, host_memory, host_tensor, tensor_at


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def test_an_array_is_the_memory_of_its_tensor() -> None:
    tensor = host_tensor(5)
    array = as_array(tensor)
    array[:] = [1, 2, 3, 4, 255]
    assert tensor.tolist() == [1, 2, 3, 4, 255]
    assert array.dtype == np.uint8


def test_memory_for_the_writer_is_as_long_as_asked_and_keeps_itself_alive() -> None:
    memory = host_memory(1 << 16)
    assert memory.shape == (1 << 16,) and memory.flags.writeable
    memory.fill(7)
    assert int(memory.sum()) == 7 << 16
    assert host_memory(0).size == 0


def test_without_a_device_in_use_memory_is_not_pinned() -> None:
    """Pinning would start the device's context in a program that has no use for it."""
    assert not host_tensor(8).is_pinned()


def test_the_program_s_modes_see_nothing_of_it() -> None:
    with Seen() as seen:
        as_array(host_tensor(16))
        host_memory(3)
    assert seen.ops == []
    with Seen() as seen:
        torch.ones(2)
    assert len(seen.ops) == 1, "the mode sees what is not hidden"


def test_parts_of_memory_that_was_given_out_are_views_of_it() -> None:
    array = host_memory(64)
    array[:] = range(64)
    part = tensor_at(array.ctypes.data + 8, 4)
    assert part.tolist() == [8, 9, 10, 11]
    assert part.untyped_storage().data_ptr() == array.ctypes.data, "a view, not a tensor of its own on those bytes"
    other = np.arange(8, dtype=np.uint8)
    assert tensor_at(other.ctypes.data + 2, 3).tolist() == [2, 3, 4]


def test_nothing_is_kept_of_memory_that_is_gone() -> None:
    array = host_memory(64)
    address = array.ctypes.data
    assert address in given_out
    del array
    assert address not in given_out
