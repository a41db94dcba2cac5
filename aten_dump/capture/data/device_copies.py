"""Copies from a device to host memory, for which the program's thread does not wait.

Theory of operation
    A copy runs on a stream of its own, behind what the program has queued so far; the writer's thread waits for its
    event. The program may write to the source in place with its next op, so the source is first copied on the device
    (fast, and ordered on the program's stream) as long as no more than STAGING_BYTES wait; beyond that, and where the
    device has no memory left, the program's stream, not its thread, waits for the copy. The allocator is told of the
    second stream, so that memory which the program frees is not given out again too early. Only what
    `torch.accelerator` offers is used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ..devices import accelerator

STAGING_BYTES: Final = 32 << 20

Wait = Callable[[], None]


class Copier:
    """Copies from one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)
        self._lock = threading.Lock()
        self._staged_bytes = 0

    def copy(self, source: torch.Tensor, host: torch.Tensor, private: bool = False) -> Wait:
        """Begin to copy `source` to `host`; returns what waits until that is done. Call inside `quiet()`.

        Args:
            source: uint8 on the device.
            host: as long, of `host_memory.host_tensor`; not to be freed before the copy is done.
            private: nobody else writes to `source`.
        """
        current = torch.accelerator.current_stream(self._device)
        nbytes = source.numel()
        own = None if private or not self._stage(nbytes) else self._own_copy(source)
        staged = own is not None
        source = source if own is None else own
        self._stream.wait_event(current.record_event())
        with on_stream(self._stream):
            host.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        done = self._stream.record_event()
        if not (private or staged):
            current.wait_event(done)

        def wait() -> None:
            done.synchronize()
            if staged:
                self._stage(-nbytes)

        return wait

    def _own_copy(self, source: torch.Tensor) -> torch.Tensor | None:
        try:
            return source.clone()
        except torch.OutOfMemoryError:
            self._stage(-source.numel())
            return None

    def _stage(self, nbytes: int) -> bool:
        with self._lock:
            if self._staged_bytes + nbytes > STAGING_BYTES:
                return False
            self._staged_bytes += nbytes
            return True


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Make `stream` the thread's current one meanwhile."""
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


@functools.cache
def copier_of(device: torch.device) -> Copier | None:
    """Return the Copier of a device; None where it has no streams, or is not the accelerator of this torch."""
    current = accelerator()
    if current is None or current.type != device.type:
        return None
    try:
        return Copier(device)
    except (NotImplementedError, RuntimeError):
        return None
