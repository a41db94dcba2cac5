"""The device that tests run on, as ``--device`` says: the CPU, a GPU, or an NPU (a real one, or the simulated one)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.utils._device
from torch import Tensor

DEVICES: Final = ("cpu", "cuda", "npu")


def start(device: str) -> None:
    """Make the device ready. The simulated NPU needs the environment that `make test-npu` sets."""
    if device == "npu":
        from tests.npu.simulator import device as simulated

        simulated.start()
    if device == "cuda":  # two bare runs must have the same bits
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True


_used = "cpu"


def use(device: str) -> None:
    """Make tensors on the device where nothing else is said, from now on."""
    global _used
    start(device)
    _used = device
    if device != "cpu":
        torch.set_default_device(device)


def kind(index: int | None = None) -> str:
    """Return the device that the tests run on, whatever the default is now: "npu", or "npu:1" with an index."""
    return _used if index is None else f"{_used}:{index}"


def here() -> torch.device:
    """Return the device that tensors are made on where nothing else is said."""
    return torch.empty(0).device


def modes_on_the_stacks() -> tuple[int, int]:
    """Return how many dispatch and function modes are on torch's stacks, but for that of a default device."""
    of_default = torch.utils._device.CURRENT_DEVICE is not None
    return torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack() - of_default


def script_here(script: str) -> str:
    """Return a script for a process of its own, from the root of the checkout, that makes its tensors where tests do."""
    kind = here().type
    return script if kind == "cpu" else f"from tests import devices; devices.use({kind!r})\n{script}"


_ONE_OP_OF_NPU: Final = {
    "aten::mm": "aten::matmul",
    "aten::bmm": "aten::matmul",
    "MmBackward0": "MatmulBackward0",
}


def op_here(name: str) -> str:
    """Return the op or node that runs here where the CPU runs this one: an NPU has as one what the CPU composes."""
    return _ONE_OP_OF_NPU.get(name, name) if here().type == "npu" else name


def random_states(device: str | None = None) -> list[Tensor]:
    """Return the states of the generators: the CPU's and that of a device, or of the one that tensors are made on."""
    states = [torch.get_rng_state()]
    device = device or here().type
    if device != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return states


def drawn(*shape: int, seed: int, draw: Any = torch.randn) -> Tensor:
    """Draw numbers that are the same on every device, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    numbers: Tensor = draw(*shape, generator=generator, device="cpu")
    return numbers.to(here())


@contextlib.contextmanager
def held(stream: Any) -> Iterator[None]:
    """Stop a stream of the device: what is put in it runs afterwards. A GPU's goes on by itself, after a second or so."""
    if kind() == "npu":
        from tests.npu.simulator import device as simulated

        with simulated.held(stream):
            yield
        return
    current = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    torch.cuda._sleep(2_000_000_000)  # cycles
    torch.accelerator.set_stream(current)
    yield


@contextlib.contextmanager
def no_memory_given() -> Iterator[None]:
    """Let the device give out no more memory than torch's allocator has of it."""
    _give_memory(False)
    try:
        yield
    finally:
        _give_memory(True)


def _give_memory(does: bool) -> None:
    if kind() == "npu":
        from tests.npu.simulator import device as simulated

        simulated.limit_memory(0, 0 if does else 1)
    else:
        torch.cuda.set_per_process_memory_fraction(1.0 if does else 0.0)
