"""Copies from a device to host memory, for which the program's thread does not wait.

Theory of operation
    A copy runs on a stream of its own, behind what the program has queued so far; the writer's thread waits for its
    event. The program may write to the source in place with its next op, so the source is first copied on the device
    (fast, and ordered on the program's stream) as long as no more than STAGING_BYTES wait, with what others have made
    for a copy alone; beyond that, and where the device has no memory left, the program's stream, not its thread, waits
    for the copy. The allocator knows the second stream, so that memory which the program frees is not given out
    again too early. Only what `torch.accelerator` offers is used.
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
        self._staged: dict[torch.Event, int] = {}  # bytes by the event of their copy

    def copy(self, source: torch.Tensor, host: torch.Tensor, private: bool = False) -> Wait:
        """Begin to copy `source` to `host`; returns what waits until that is done. Call inside `quiet()`.

        Args:
            source: uint8 on the device.
            host: as long, of `host_memory.host_tensor`; not to be freed before the copy is done.
            private: `source` was made on the current stream for this copy: nobody else writes to it.
        """
        current = torch.accelerator.current_stream(self._device)
        nbytes = source.numel()
        staged = self._stage(nbytes)
        if staged and not private:
            own = self._own_copy(source)
            staged, source = own is not None, source if own is None else own
        self._stream.wait_event(current.record_event())
        with on_stream(self._stream):
            host.copy_(source, non_blocking=True)
        if staged or not private:
            source.record_stream(self._stream)
        done = self._stream.record_event()
        if staged:
            with self._lock:
                self._staged[done] = nbytes
        else:
            current.wait_event(done)  # so whoever takes the memory of `source` after that, on this stream, comes later

        def wait() -> None:
            done.synchronize()
            self._let_go(done)

        return wait

    def _own_copy(self, source: torch.Tensor) -> torch.Tensor | None:
        try:
            return source.clone()
        except torch.OutOfMemoryError:
            with self._lock:
                self._staged_bytes -= source.numel()
            return None

    def _stage(self, nbytes: int) -> bool:
        with self._lock:
            if self._staged_bytes + nbytes > STAGING_BYTES:
                self._let_go_what_is_done()
            if self._staged_bytes + nbytes > STAGING_BYTES:
                return False
            self._staged_bytes += nbytes
            return True

    def _let_go_what_is_done(self) -> None:
        """Count copies that are done no more, though nobody has waited for them yet; they end in order."""
        while self._staged and (first := next(iter(self._staged))).query():
            self._staged_bytes -= self._staged.pop(first)

    def _let_go(self, done: torch.Event) -> None:
        with self._lock:
            self._staged_bytes -= self._staged.pop(done, 0)


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Make `stream` the thread's current one meanwhile; that makes its device the current one, too."""
    device = torch.accelerator.current_device_index()
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        if stream.device.index != device:
            torch.accelerator.set_device_index(device)


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
