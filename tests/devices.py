"""The device that tests run on, as ``--device`` says: the CPU, a GPU, or an NPU (a real one, or the simulated one)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

DEVICES: Final = ("cpu", "cuda", "npu")


def start(device: str) -> None:
    """Have the device ready. The simulated NPU needs the environment that `make test-npu` sets."""
    if device == "npu":
        from tests.npu.simulator import device as simulated

        simulated.start()


@contextmanager
def default_device(device: str) -> Iterator[None]:
    """Make tensors on `device` where nothing else is said, as ``torch.set_default_device`` does for users."""
    if device == "cpu":
        yield
    else:
        with torch.device(device):
            yield


def here() -> torch.device:
    """Return the device that tensors are made on where nothing else is said."""
    return torch.empty(0).device


_ONE_OP_OF_NPU: Final = {
    "aten::mm": "aten::matmul",
    "aten::bmm": "aten::matmul",
    "MmBackward0": "MatmulBackward0",
}


def op_here(name: str) -> str:
    """Return the op or node that runs here where the CPU runs this one: an NPU has as one what the CPU composes."""
    return _ONE_OP_OF_NPU.get(name, name) if here().type == "npu" else name


def random_states() -> list[Tensor]:
    """Return the states of the generators: the CPU's and the accelerator's."""
    states = [torch.get_rng_state()]
    device = here()
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return states


def drawn(*shape: int, seed: int, draw: Any = torch.randn) -> Tensor:
    """Draw numbers that are the same on every device, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    numbers: Tensor = draw(*shape, generator=generator, device="cpu")
    return numbers.to(here())
