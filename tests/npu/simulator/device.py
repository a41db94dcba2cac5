"""The simulated device, as Python programs use it: `start()` once, then ``tensor.to("npu")`` works.

Needs the environment that ``build.py`` prints.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@functools.cache
def launcher() -> ctypes.CDLL:
    """Return the library that launches kernels; the runtime's functions (``sim_*``) can be found through it too."""
    return ctypes.CDLL(os.environ["NPU_SIM_LAUNCHER"], mode=ctypes.RTLD_GLOBAL)


@functools.cache
def start() -> dict[str, Any]:
    """Give the device its kernels; returns how each op runs."""
    import torch_npu  # noqa: F401 - registers the device

    from .kernels import (  # noqa: F401 - each registers its kernels
        activations,
        attention,
        casts,
        dropout,
        experts,
        float_status,
        geometry,
        losses,
        matrices,
        norms,
        optimizer,
        recurrent,
        registering,
        rotary,
        routing,
    )  # fmt: skip

    warnings.filterwarnings("ignore", message="Cannot create tensor with internal format")
    torch.npu.init()
    routes = routing.install(launcher())
    launcher().sim_install_copy()
    registering.install()
    launcher().sim_poison_cached_memory()
    return dict(routes)


def set_delays(seed: int, most_us: int) -> None:
    """Let each stream wait now and then, up to so many microseconds; 0 stops that."""
    launcher().sim_set_delays(ctypes.c_uint64(seed), ctypes.c_uint(most_us))


@contextmanager
def held(stream: Any) -> Iterator[None]:
    """Stop a stream: what is put in it runs afterwards."""
    npu: Any = torch.get_device_module("npu")
    known = npu.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    handle = ctypes.c_void_p(known.npu_stream)
    launcher().sim_hold(handle)
    try:
        yield
    finally:
        launcher().sim_release(handle)


def limit_memory(device: int, nbytes: int) -> None:
    """Let a device have so many bytes of memory in all; 0 sets the limit back."""
    launcher().sim_set_memory_limit(ctypes.c_int(device), ctypes.c_size_t(nbytes))


def skip_all_reduce(number: int) -> None:
    """Plant a fault: of the all-reduces that come, this one (0 is the next) brings nothing of the other ranks."""
    launcher().sim_skip_all_reduce(ctypes.c_int(number))


_observers: list[Any] = []  # they stay: another thread may be inside one when it is taken off


@contextmanager
def counted(by: Callable[[], str] = lambda: "") -> Iterator[Counter[tuple[str, str]]]:
    """Count what makes the host wait or moves data between host and device: by what, and by whom `by` says."""
    counts: Counter[tuple[str, str]] = Counter()

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t)
    def observe(what: bytes, nbytes: int) -> None:
        counts[what.decode(), by()] += 1

    _observers.append(observe)
    launcher().sim_observe(observe)
    try:
        yield counts
    finally:
        launcher().sim_observe(None)
