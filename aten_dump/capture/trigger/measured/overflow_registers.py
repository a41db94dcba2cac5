"""The overflow registers of devices that saturate: after which call each was found set.

Theory of operation
    Such a device gives the largest finite number where others give Inf, and sets its register, which stays so until the
    program clears it. After each call that had tensors there, a kernel reads the register behind the call's own, on the
    same stream, and leaves it as it is: a gradient scaler finds what it finds without us. The readings stay on the
    device; `collect` brings them over in one copy, when MOST_PENDING wait or the oldest has waited for MOST_SECONDS.

    What the program did between two steps may be unrecorded, so a step begins with a reading that accuses no call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from ...devices import device_in_use, overflow_status, saturates
from ...torch_internals.quiet import quiet

MOST_PENDING: Final = 512
MOST_SECONDS: Final = 0.1


class FoundSet(NamedTuple):
    """A call after which a register was set, and had not been before as far as that is known."""

    device: torch.device
    was_clear: bool  # before the call; False: nothing is known of that


class _Reading(NamedTuple):
    call: int | None  # position of the call that had just ended; None: before the step's first
    device: torch.device
    stream: Any
    status: torch.Tensor  # on the device; its first element is 0 where the register was clear


class OverflowRegisters:
    """What was read of them in one step; its length is how many readings are still on a device."""

    def __init__(self) -> None:
        self._readings: list[_Reading] = []
        self._since = math.inf  # when the oldest of them was asked for
        self._touched: set[torch.device] = set()  # since the last reading
        self._is_set: dict[torch.device, bool | None] = {}  # as read last; None: not known
        self._found: dict[int, FoundSet] = {}

    def __len__(self) -> int:
        return len(self._readings)

    @property
    def is_due(self) -> bool:
        """True if the readings should be collected now."""
        return len(self._readings) >= MOST_PENDING or perf_counter() - self._since > MOST_SECONDS

    def begin_step(self) -> None:
        """Forget the step before, whose readings have been collected."""
        self._found.clear()
        self._touched.clear()
        device = device_in_use()
        if device is not None and saturates(device.type):
            self._is_set.setdefault(device, None)
        for device in self._is_set:
            self._read(device, None)

    def touch(self, device: torch.device) -> bool:
        """Note that a call has a tensor on this device; return True if that has an overflow register."""
        if not saturates(device.type):
            return False
        self._touched.add(device)
        return True

    def call_ended(self, position: int) -> None:
        """Read the registers of the devices that the call had to do with."""
        for device in self._touched:
            self._is_set.setdefault(device, None)
            self._read(device, position)
        self._touched.clear()

    def found_at(self, position: int) -> FoundSet | None:
        """Return what was found after a call whose readings have been collected."""
        return self._found.get(position)

    def collect(self) -> None:
        """Bring the readings over that are still on devices."""
        readings, self._readings = self._readings, []
        self._since = math.inf
        for reading, is_set in sorted(_brought(readings), key=lambda found: found[0].call or 0):
            device, was_set = reading.device, self._is_set[reading.device]
            if reading.call is None:
                self._is_set[device] = None if is_set and not was_set else is_set
                continue
            self._is_set[device] = is_set
            if is_set and not was_set:
                self._found[reading.call] = FoundSet(device, was_set is not None)

    def _read(self, device: torch.device, call: int | None) -> None:
        with quiet():
            try:
                status = overflow_status(device)
            except torch.OutOfMemoryError:
                return  # the next reading finds it set as well
            stream = None if status.is_cpu else torch.accelerator.current_stream(device)
        if not self._readings:
            self._since = perf_counter()
        self._readings.append(_Reading(call, device, stream, status))


def _brought(readings: list[_Reading]) -> Iterator[tuple[_Reading, bool]]:
    """Yield the readings of one device and stream after the other, each with whether the register was set."""
    by_stream: dict[tuple[Any, ...], list[_Reading]] = {}
    for reading in readings:
        by_stream.setdefault((reading.device, reading.stream and reading.stream.stream_id), []).append(reading)
    with quiet():
        for some in by_stream.values():
            if some[0].stream is not None:
                some[0].stream.synchronize()
            numbers = torch.stack([reading.status for reading in some])[:, 0].tolist()
            yield from zip(some, map(bool, numbers), strict=True)
