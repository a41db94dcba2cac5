"""Memory that nothing wrote, or that was freed, holds NaN: whoever reads it shows."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.npu.simulator import device

POISON = 0x7FF1
COUNT = 4096


def words_at(address: int, count: int) -> list[int]:
    """What lies in device memory now, by the host's eyes."""
    return list((ctypes.c_uint16 * count).from_address(address))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_fresh_memory_is_not_a_number(dtype: torch.dtype) -> None:
    assert torch.empty(COUNT, dtype=dtype, device="npu").isnan().all().item()


def test_memory_that_was_used_is_poisoned_again() -> None:
    x = torch.ones(COUNT, device="npu")
    address = x.data_ptr()
    del x
    torch.npu.synchronize()
    assert set(words_at(address, COUNT * 2)) == {POISON}
    again = torch.empty(COUNT, device="npu")
    assert again.data_ptr() == address, "the caching allocator gave other memory: this test shows nothing"
    assert again.isnan().all().item()


def test_memory_that_is_given_back_to_the_driver_is_poisoned() -> None:
    torch.npu.empty_cache()
    x = torch.ones(30 << 20, dtype=torch.uint8, device="npu")
    del x
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert torch.empty(COUNT, device="npu").isnan().all().item()


@pytest.mark.parametrize("recorded", [True, False])
def test_what_another_stream_reads_is_kept_only_by_record_stream(recorded: bool) -> None:
    """Without record_stream the caching allocator gives memory out that a slower stream has yet to read."""
    side = torch.npu.Stream()
    torch.npu.empty_cache()
    x = torch.full((COUNT,), 3.0, device="npu")
    torch.npu.synchronize()
    with device.held(side):
        with torch.npu.stream(side):
            y = x + 1
        if recorded:
            x.record_stream(side)
        del x
        overwriting = torch.zeros(COUNT, device="npu")
        torch.npu.current_stream().synchronize()
    side.synchronize()
    assert bool((y == 4).all().item()) is recorded
    del overwriting


def test_a_kernel_that_is_missing_is_an_error_not_unwritten_memory() -> None:
    x = torch.ones(1, 1, 2, 2, device="npu")
    with pytest.raises(RuntimeError, match=r"aclnn\w+ or aclnn\w+ not in libopapi|no kernel for the operator"):
        torch.ops.npu.npu_scaled_masked_softmax(x, x > 0, 1.0, False)
    with pytest.raises(RuntimeError, match="aclnnQuantize"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError, match="missing kernel for npu"):
        torch.quantize_per_channel(x, torch.ones(1).npu(), torch.zeros(1).npu(), 0, torch.qint8)


def test_a_device_runs_out_of_memory() -> None:
    torch.npu.empty_cache()
    free, _ = torch.npu.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(free + (1 << 30), dtype=torch.uint8, device="npu")
