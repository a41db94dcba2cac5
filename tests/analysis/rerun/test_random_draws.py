"""Random ops are replayed from recorded states, whatever other threads draw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from aten_dump.analysis.rerun import run_op as random_draws
from aten_dump.analysis.rerun.shared_memory import Surroundings


def test_threads_do_not_draw_each_others_random_numbers() -> None:
    states = [torch.Generator().manual_seed(seed).get_state() for seed in (1, 2)]
    draws = threading.Event()

    def slowly(seconds: float) -> torch.Tensor:
        draws.set()
        time.sleep(seconds)  # the other thread would set the state now
        return torch.randn(4)

    def drawn(op: Callable[[], torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        found, drew = random_draws.draw(op, None, ("cpu", state.numpy().tobytes()), Surroundings())
        assert drew and isinstance(found, torch.Tensor)
        return found

    before = torch.get_rng_state()
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(drawn, partial(slowly, 0.3), states[0])
        assert draws.wait(10)
        second = drawn(partial(slowly, 0.6), states[1])
    for found, seed in ((first.result(), 1), (second, 2)):
        assert torch.equal(found, torch.randn(4, generator=torch.Generator().manual_seed(seed)))
    assert torch.equal(torch.get_rng_state(), before)
