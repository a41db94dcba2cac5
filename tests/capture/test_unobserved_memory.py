"""Memory after code that the recorder did not see: what was not written there is undefined, what was is data."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import DumpConfig, DumpMode, open_dump


def _assert_only_the_second_factor_is_data(path: Path) -> None:
    products = open_dump(path).step(0).rank(0).calls.filter(op="aten::mul.Tensor")
    garbage, data = (call.inputs[0][0] for call in products)
    assert garbage.undefined and not data.undefined
    assert data.tensor().tolist() == [3.0] * 4


def test_pause_leaves_memory_that_nobody_wrote_undefined(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")) as dump:
        untouched, filled = torch.empty(33), torch.empty(4)
        dump.pause()
        filled.fill_(3.0)
        dump.resume()
        untouched.mul(2)
        filled.mul(2)
    _assert_only_the_second_factor_is_data(tmp_path / "dump")


def test_a_callback_that_no_mode_sees_defines_what_it_writes_alone(tmp_path: Path) -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")):
        untouched, filled = torch.empty(33), torch.empty(4)
        after = future.then(lambda _: filled.fill_(3.0))
        _set_elsewhere(future)
        after.wait()
        untouched.mul(2)
        filled.mul(2)
    _assert_only_the_second_factor_is_data(tmp_path / "dump")


def _set_elsewhere(future: torch.futures.Future[int]) -> None:
    """Complete a future on a thread where no mode is: its callbacks run there."""
    import threading

    thread = threading.Thread(target=lambda: future.set_result(1))
    thread.start()
    thread.join()
