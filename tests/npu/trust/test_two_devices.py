"""Two devices in one process, with a backward thread each."""

from __future__ import annotations

import threading

import pytest
import torch


def test_a_copy_between_devices() -> None:
    x = torch.arange(12.0).view(3, 4)
    there = x.to("npu:0").t().to("npu:1")
    assert there.device.index == 1
    assert torch.equal(there.cpu(), x.t())


def test_each_device_runs_its_backward_on_a_thread_of_its_own() -> None:
    x = torch.ones(4, device="npu:0", requires_grad=True)
    threads = {}

    def note(name: str) -> object:
        return lambda grad: threads.setdefault(name, threading.get_ident()) and None

    first = x * 2
    second = first.to("npu:1") * 3
    first.register_hook(note("npu:0"))
    second.register_hook(note("npu:1"))
    second.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0] * 4
    assert len({*threads.values(), threading.get_ident()}) == 3


def test_each_device_has_its_own_memory_and_generator() -> None:
    torch.npu.manual_seed_all(5)
    one, two = (torch.randn(8, device=f"npu:{i}") for i in range(2))
    assert torch.equal(one.cpu(), two.cpu())
    before = torch.npu.memory_allocated(1)
    kept = torch.ones(1 << 20, device="npu:1")
    assert torch.npu.memory_allocated(1) - before >= kept.nbytes


@pytest.mark.parametrize("other", ["cpu", "npu:1"])
def test_tensors_of_two_devices_do_not_meet(other: str) -> None:
    x, index = torch.ones(3, device="npu:0"), torch.tensor([2, 0], device="cpu")
    with pytest.raises(RuntimeError, match=f"at least two devices, npu:0 and {other}!"):
        x.add_(torch.ones(3, device=other))
    assert (x + torch.tensor(1.0, device="cpu"))[index].tolist() == [2.0, 2.0]


def test_a_generator_of_the_host_draws_nothing_on_a_device() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator"):
        torch.randn(3, device="npu", generator=torch.Generator("cpu"))
