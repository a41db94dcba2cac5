"""The numbers of many tensors: moments that can be added up over micro-batches and ranks.

Theory of operation
    A tensor in the host's memory is read at once, by the recorder's own one pass. On a device it is reduced there and
    the results stay there; `collect` brings those of all tensors over in one copy for each dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ..capture.data.statistics.on_device import FLOATS, Array, finish, reduce_tensor
from ..capture.data.statistics.one_tensor import compute
from ..capture.torch_internals.quiet import quiet
from .number_formats import OWN, lost_in

_NAMES: Final = ("count", "min", "max", "mean", "l2norm", "std", "nan", "posinf", "neginf", "zero")


class Key(NamedTuple):
    """What was measured: ``parameter``, ``gradient``, ``update``, ``activation`` or ``loss``, and of which name."""

    kind: str
    name: str


@dataclass(slots=True)
class Tally:
    """What is known of elements; the sum of two is that of all elements of both."""

    count: float = 0.0
    zero: float = 0.0
    nan: float = 0.0
    infinite: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    spread: float = 0.0  # squares of the distances from the mean
    numel: float = 0.0  # elements of the whole tensor; fewer than `count` where ranks hold replicas of it
    dimensions: int = 0
    rate: float = 0.0  # of a gradient: the learning rate that it is applied with
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)  # how many, of how many
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)  # the smallest and the greatest
    least: dict[str, float] = field(default_factory=dict)  # of which the smallest of all ranks counts

    def add(self, other: Tally) -> None:
        """Take in other elements."""
        count = self.count + other.count
        if other.count:
            apart = other.mean - self.mean
            self.spread += other.spread + apart * apart * self.count * other.count / count
            self.mean += apart * other.count / count
        self.count = count
        self.zero += other.zero
        self.nan += other.nan
        self.infinite += other.infinite
        self.low, self.high = _least(self.low, other.low), -_least(-self.high, -other.high)
        self.squares += other.squares
        self.numel = max(self.numel, other.numel)
        self.dimensions = max(self.dimensions, other.dimensions)
        self.rate = max(self.rate, other.rate)
        for name, (some, of) in other.shares.items():
            before = self.shares.get(name, (0.0, 0.0))
            self.shares[name] = before[0] + some, before[1] + of
        for name, (low, high) in other.ends.items():
            ends = self.ends.get(name, (math.inf, -math.inf))
            self.ends[name] = min(low, ends[0]), max(high, ends[1])
        for name, number in other.least.items():
            self.least[name] = min(number, self.least.get(name, math.inf))

    @property
    def norm(self) -> float:
        """The l2 norm of the whole tensor, however many replicas of it were read."""
        return math.sqrt(self.squares / max(1.0, self.count / self.numel)) if self.numel else 0.0

    def numbers(self) -> dict[str, float]:
        """Return the numbers that are written; shares of NaN and infinities only where there are some."""
        found = {
            "norm": self.norm,
            "mean": self.mean,
            "std": math.sqrt(self.spread / self.count) if self.count else 0.0,
            "max": -_least(self.low, -self.high),
            "zeros": self.zero / self.count if self.count else 0.0,
        }
        found |= {name: some / self.count for name, some in (("nan", self.nan), ("inf", self.infinite)) if some}
        found |= {name: some / of for name, (some, of) in self.shares.items() if of}
        for name, (low, high) in self.ends.items():
            number, _, of = name.partition(".")
            if number == "scale":  # of a tensor: that of the rank with the greatest elements
                found[name] = low
            elif low <= high:
                found |= {f"scale_min.{of}": low, f"scale_max.{of}": high}
        return found | self.least


def update_ratio(tallies: Mapping[Key, Tally], name: str) -> float | None:
    """Return the norm of a parameter's update over that of the parameter; None where it was 0."""
    update, parameter = tallies.get(Key("update", name)), tallies.get(Key("parameter", name))
    return update.norm / parameter.norm if update is not None and parameter is not None and parameter.norm else None


def _least(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else min(one, other)


class _Reduced(NamedTuple):
    """A tensor whose results are on a device: where they lie among what is brought over."""

    rows: list[int]
    places: dict[str, int]


class Measurements:
    """Measures tensors, each under a key; of the same key it adds them up.

    Args:
        formats: names of `number_formats.FORMATS` that all tensors are held against.
    """

    def __init__(self, formats: tuple[str, ...] = ()) -> None:
        self._formats = formats
        self._tallies: dict[Key, Tally] = {}
        self._kept: list[torch.Tensor] = []  # results, in one dimension each, where they were computed
        self._reduced: list[tuple[Key, int, _Reduced]] = []
        self._shares: list[tuple[Key, str, int, int]] = []
        self._ends: list[tuple[Key, str, int]] = []

    def add(self, key: Key, tensor: torch.Tensor, numel: int | None = None, rate: float = 0.0) -> None:
        """Measure the elements of a floating tensor of any strides; others, and empty ones, are left out.

        Args:
            key: what it is.
            tensor: without a dispatch of its own. It is read now: it may be changed afterwards.
            numel: how many elements the whole has that this is a part of; None: it is no part.
            rate: of a gradient, the learning rate.
        """
        if not tensor.is_floating_point() or not tensor.numel():
            return
        with quiet():
            tensor = tensor.detach()
            self._tallies.setdefault(key, Tally()).add(Tally(dimensions=tensor.dim(), rate=rate))
            if tensor.is_cpu:
                self._take(key, compute(tensor, _NAMES), numel or tensor.numel())
            else:
                wide = tensor if tensor.dtype in FLOATS else tensor.float()
                rows, reduced = reduce_tensor(wide, _NAMES)
                places = {name: self._keep(part) for name, part in reduced.items()}
                self._reduced.append((key, numel or tensor.numel(), _Reduced(rows, places)))
            own = OWN.get(tensor.dtype)
            for name in self._formats if own is None or own in self._formats else (own, *self._formats):
                self._hold_against(key, tensor, name)

    def _hold_against(self, key: Key, tensor: torch.Tensor, name: str) -> None:
        lost = lost_in(tensor, name)
        self._shares += [(key, share, self._keep(some), of) for share, (some, of) in lost.shares.items()]
        self._ends += [(key, end, self._keep(torch.stack(pair))) for end, pair in lost.ends.items()]

    def add_number(self, key: Key, name: str, number: torch.Tensor) -> None:
        """Add a number of its own to a key, f32[] on any device; of ranks the smallest counts."""
        self._ends.append((key, f"least {name}", self._keep(number)))

    def _keep(self, result: torch.Tensor) -> int:
        self._kept.append(result.reshape(-1))
        return len(self._kept) - 1

    def _take(self, key: Key, found: list[Any], numel: int) -> None:
        count, low, high, mean, norm, std, nan, posinf, neginf, zero = found
        spread = (std or 0.0) ** 2 * (count - 1)
        tally = Tally(count, zero, nan, posinf + neginf, low, high, mean, norm * norm, spread, numel)
        self._tallies.setdefault(key, Tally()).add(tally)

    def collect(self) -> dict[Key, Tally]:
        """Return what was measured so far, and forget it."""
        with quiet():
            results = _brought_over(self._kept)
        for key, numel, (rows, places) in self._reduced:
            self._take(key, finish(rows, {name: results[place] for name, place in places.items()}, _NAMES), numel)
        for key, share, place, of in self._shares:
            self._tallies.setdefault(key, Tally()).add(Tally(shares={share: (results[place].item(), of)}))
        for key, end, place in self._ends:
            tally = Tally()
            if end.startswith("least "):
                tally.least[end.removeprefix("least ")] = results[place].item()
            else:
                tally.ends[end] = results[place][0].item(), results[place][1].item()
            self._tallies.setdefault(key, Tally()).add(tally)
        tallies, self._tallies = self._tallies, {}
        self._kept, self._reduced, self._shares, self._ends = [], [], [], []
        return tallies


def _brought_over(kept: list[torch.Tensor]) -> list[Array]:
    """Return results as arrays of the host, with one copy for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, result in enumerate(kept):
        groups.setdefault((result.device, result.dtype), []).append(at)
    found: list[Array] = [np.empty(0)] * len(kept)
    for places in groups.values():
        together = torch.cat([kept[at] for at in places]).cpu().numpy()
        ends = np.cumsum([kept[at].numel() for at in places])[:-1]
        for at, part in zip(places, np.split(together, ends), strict=True):
            found[at] = part
    return found
