"""Streams run later and apart: in order within one, in any order between two, tied by events only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.npu.simulator import device


@pytest.fixture
def delays() -> Iterator[None]:
    device.set_delays(seed=7, most_us=400)
    yield
    device.set_delays(seed=0, most_us=0)


def test_the_host_does_not_wait_for_a_kernel() -> None:
    x = torch.ones(8, device="npu")
    stream = torch.npu.current_stream()
    with device.held(stream):
        y = x + 1
        assert y.shape == (8,) and not stream.query()
    assert y.tolist() == [2.0] * 8 and stream.query()


def test_a_stream_keeps_its_order(delays: None) -> None:
    x = torch.zeros(64, device="npu")
    for i in range(100):
        x = x * 2 + i if i % 3 else x.sub_(i)
    expected = torch.zeros(64)
    for i in range(100):
        expected = expected * 2 + i if i % 3 else expected.sub_(i)
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("waits", [True, False])
def test_only_events_order_two_streams(waits: bool) -> None:
    one, two = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    with device.held(one):
        with torch.npu.stream(one):
            x.add_(1)
            done = one.record_event()
        with torch.npu.stream(two):
            if waits:
                two.wait_event(done)
            y = x * 10
        if not waits:
            two.synchronize()
    torch.npu.synchronize()
    assert y.tolist() == [10.0 if waits else 0.0] * 8


def test_an_event_tells_whether_it_was_reached() -> None:
    stream = torch.npu.current_stream()
    with device.held(stream):
        torch.ones(8, device="npu").exp()
        event = stream.record_event()
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_a_copy_to_pinned_memory_comes_later() -> None:
    x = torch.full((64,), 5.0, device="npu")
    torch.npu.synchronize()
    host = torch.full((64,), -1.0).pin_memory()
    with device.held(torch.npu.current_stream()):
        host.copy_(x, non_blocking=True)
        assert host.tolist() == [-1.0] * 64
    torch.npu.synchronize()
    assert host.tolist() == [5.0] * 64


def test_a_copy_that_blocks_waits_for_its_stream(delays: None) -> None:
    x = torch.arange(1000, device="npu")
    for _ in range(20):
        x = x + 1
    assert torch.equal(x.cpu(), torch.arange(1000) + 20)


def test_delays_are_the_same_for_the_same_seed_and_change_no_result(delays: None) -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Linear(8, 8, device="npu")
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = net(torch.randn(4, 8, device="npu")).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    delayed = train()
    device.set_delays(seed=0, most_us=0)
    assert delayed == train()


def test_a_kernel_that_fails_is_told_at_the_next_wait() -> None:
    torch.nn.functional.embedding(torch.tensor([9], device="npu"), torch.ones(4, 2, device="npu"))
    with pytest.raises(RuntimeError, match="507015"):
        torch.npu.synchronize()
    assert torch.ones(2, device="npu").sum().item() == 2


def test_random_numbers_follow_the_devices_generator() -> None:
    torch.npu.manual_seed(3)
    state = torch.npu.get_rng_state()
    first = torch.randn(16, device="npu").cpu()
    second = torch.randn(16, device="npu").cpu()
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(16, device="npu").cpu(), first)
    assert not torch.equal(first, second)
