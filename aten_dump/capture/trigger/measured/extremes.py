"""The smallest and greatest element of tensors, as triggers need them, without waiting for a device at each.

Theory of operation
    One `aminmax` over a tensor shows enough: NaN makes both ends NaN, an infinity is an end. On the CPU the two
    numbers are read at once. On a device they are written by the kernel into the next slot of a buffer on that device,
    one buffer per stream and dtype, and stay there; `collect` brings a buffer over in one copy, after its stream has
    done what was asked of it. It `is_due` when MOST_PENDING results wait, or the oldest has waited for MOST_SECONDS.
    Only results that are notable are kept, so that the great mass of finite ones costs no memory. Views that cover the
    same memory at the same version share one result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from ...data.statistics.on_device import MOST_ELEMENTS, pieces
from ...memory.geometry import covers
from ...memory.storages import StorageState
from ...torch_internals.quiet import quiet

MOST_PENDING: Final = 512
MOST_SECONDS: Final = 0.1
READ_AT_ONCE: Final = frozenset(("cpu",))  # devices whose results there is no need to wait for


class Extremes(NamedTuple):
    """The ends of a tensor's elements; both NaN where one of them is NaN."""

    low: float
    high: float

    @property
    def nan(self) -> bool:
        return self.low != self.low

    @property
    def infinite(self) -> bool:
        return self.high == math.inf or self.low == -math.inf


class _Buffer:
    """Slots on a device for extremes, filled in order."""

    def __init__(self, device: torch.device, dtype: torch.dtype, stream: Any) -> None:
        self._stream = stream
        self._memory = torch.empty(2, MOST_PENDING, dtype=dtype, device=device)
        self._slots = list(zip(self._memory[0].unbind(), self._memory[1].unbind(), strict=True))
        self.values: list[int] = []

    def measure(self, tensor: torch.Tensor, value: int) -> None:
        low, high = self._slots[len(self.values)]
        for number, part in enumerate(_parts(tensor)):
            if number == 0:
                torch.aminmax(_comparable(part), out=(low, high))
            else:
                more = torch.aminmax(_comparable(part))
                torch.minimum(low, more.min, out=low)
                torch.maximum(high, more.max, out=high)
        self.values.append(value)

    def collect(self) -> Iterator[tuple[int, Extremes]]:
        values, self.values = self.values, []
        if values:
            if self._stream is not None:
                self._stream.synchronize()
            lows, highs = self._memory[:, : len(values)].cpu().tolist()
            yield from zip(values, map(Extremes, lows, highs), strict=True)


class ExtremesOfValues:
    """The notable extremes of the values of one step; its length is how many are still on a device."""

    def __init__(self, is_notable: Callable[[Extremes], bool], most_elements: float = math.inf) -> None:
        """Begin.

        Args:
            is_notable: True for results that are worth keeping.
            most_elements: larger tensors are not measured.
        """
        self._is_notable = is_notable
        self._most_elements = most_elements
        self._buffers: dict[tuple[Any, ...], _Buffer] = {}
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the step before, whose results have been collected."""
        self._notable: dict[int, Extremes] = {}
        self._whole: dict[tuple[int, torch.dtype], tuple[int, int]] = {}  # storage, dtype -> version, value
        self._aliases: list[tuple[int, int]] = []  # value, and the one with the same elements whose result is pending
        self._pending: set[int] = set()
        self._since = math.inf  # when the oldest pending one was asked for

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_due(self) -> bool:
        """True if pending results should be collected now."""
        return len(self._pending) >= MOST_PENDING or perf_counter() - self._since > MOST_SECONDS

    @property
    def has_notable(self) -> bool:
        """True if the extremes of any value are notable."""
        return bool(self._notable)

    def get(self, value: int) -> Extremes | None:
        """Return the extremes of a value; None if they are not notable, or pending."""
        return self._notable.get(value)

    def measure(self, tensor: torch.Tensor, value: int, storage: StorageState) -> None:
        """Find the extremes of a tensor if it may hold NaN or Inf.

        Args:
            tensor: any strided tensor.
            value: its value's id.
            storage: its storage; values that cover it at the same version share them.
        """
        dtype, count = tensor.dtype, tensor.numel()
        if not (dtype.is_floating_point or dtype.is_complex) or not 0 < count <= self._most_elements:
            return
        if tensor._is_zerotensor():
            return  # it has no memory
        if count * dtype.itemsize == storage.nbytes and covers(tensor):
            known = self._whole.get((storage.id, dtype))
            if known is not None and known[0] == storage.version:
                self._share(value, known[1])
                return
            self._whole[storage.id, dtype] = storage.version, value
        with quiet():
            if tensor.device.type in READ_AT_ONCE or not self._measure_there(tensor, value):
                low, high = torch.aminmax(_comparable(tensor.cpu()))
                self._note(value, Extremes(low.item(), high.item()))

    def _measure_there(self, tensor: torch.Tensor, value: int) -> bool:
        """Find the extremes on the device; False where it has no memory left for that."""
        try:
            self._buffer_for(tensor).measure(tensor, value)
        except torch.OutOfMemoryError:
            return False
        if not self._pending:
            self._since = perf_counter()
        self._pending.add(value)
        return True

    def collect(self) -> None:
        """Bring the results over that are still on devices."""
        if not self._pending:
            return
        with quiet():
            for buffer in self._buffers.values():
                for value, found in buffer.collect():
                    self._note(value, found)
        self._pending.clear()
        self._since = math.inf
        for value, other in self._aliases:
            self._share(value, other)
        self._aliases.clear()

    def _share(self, value: int, other: int) -> None:
        if other in self._pending:
            self._aliases.append((value, other))
        elif other in self._notable:
            self._notable[value] = self._notable[other]

    def _note(self, value: int, found: Extremes) -> None:
        if self._is_notable(found):
            self._notable[value] = found

    def _buffer_for(self, tensor: torch.Tensor) -> _Buffer:
        stream = None if tensor.is_cpu else torch.accelerator.current_stream(tensor.device)
        dtype = torch.float32 if tensor.element_size() == 1 else tensor.dtype.to_real()
        key = (tensor.device, dtype, stream and stream.stream_id)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _Buffer(tensor.device, dtype, stream)
        if len(buffer.values) == MOST_PENDING:  # the caller asks `is_due` between calls, and one call has many values
            self.collect()
        return buffer


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return a tensor in pieces where finding its extremes takes a copy of its elements."""
    takes_copy = tensor.element_size() == 1 or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj())
    if takes_copy or not covers(tensor):
        return pieces(tensor, MOST_ELEMENTS)
    # `aminmax` copies what is not contiguous, in whatever order its elements lie.
    return [tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))]


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a floating or complex tensor in a dtype that has an order."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return tensor.float() if tensor.element_size() == 1 else tensor
