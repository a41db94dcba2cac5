"""What comes from outside the step: parameters, buffers, data. Both sides must have the same.

Theory of operation
    At the first step it must be bitwise equal, or differ as the precision does: a value that both cast to the coarser
    dtype are equal. At a later step it may also be what the step before left behind: then its difference is the affair
    of that step. That is told by contents: each side's value must be among what its own step before held at its end.
    Another batch is not, and is found. Nor may it be another tensor that the step left, an older copy or the other of
    two buffers: it is far from its counterpart then, and among what was left there is something near that. Memory that
    was written in pieces (FSDP1's flat parameter, through its views) is put together of them. What several ranks hold
    is asked of each of them. Where no step before was compared, noise of as many steps is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Final, Protocol

import torch
import xxhash

from ...dump import RankDump, Value
from ...dump.across_ranks.assembled_value import AssembledValue
from ...errors import AtenDumpError
from ...store import records
from ..distance.element_chunks import plain
from ..distance.value_distance import Closeness, equal_but_for_dtype, equal_but_for_order, stride_class
from ..evidence.judgement import Judgement
from ..evidence.noise_floors import limits_of

_OF_STEPS: Final = 8.0  # times the root of the number of steps
_FAR_NEARER: Final = 0.1  # times as far as what is read
_SAMPLED: Final = 64  # elements of a tensor that tell it from others
_TELLING: Final = 6  # different numbers among them, at least, to three digits of the greatest
_TELLING_STATISTICS: Final = ("min", "max", "mean", "l2norm")
_SOURCE: Final = "it came from outside the step (a parameter, a buffer, data, numbers of Python) and differs already"
_OTHER: Final = "the step before left it, but it is another tensor than in the baseline: the {} has what the {} reads"


def records_all_ops(rank: RankDump) -> bool:
    """Tell whether a recording has every op of its step: what none of them made is from outside."""
    config = rank.config
    if config.get("level", "mix") not in ("mix", "aten"):
        return False
    return not any(config.get(name) for name in ("ops", "exclude_ops", "modules"))


class Left(Protocol):
    """What a step left in memory."""

    def has(self, value: Value) -> bool:
        """Tell whether the step left a tensor with the contents of a value."""
        ...

    def made(self, value: Value) -> bool:
        """Tell whether the step made a tensor with the contents of a value, and left it."""
        ...

    def has_nearer(self, value: Value, than: Value) -> bool:
        """Tell whether the step left something that is far nearer to a value than another one that it left."""
        ...


class Sources:
    """Judges pairs of values from outside; `precisions` has the dtypes in which they differ."""

    def __init__(
        self,
        steps: tuple[int, int],
        *,
        exact: bool,
        before: tuple[Left, Left] | None = None,
        after: Callable[[], tuple[Contents, Contents] | None] = lambda: None,
        summed_otherwise: bool = False,
    ) -> None:
        """Prepare to judge.

        Args:
            steps: the target's and the baseline's.
            exact: whether all that differs counts, as at the first step.
            before: what the step before of both sides left, where that is compared too.
            after: returns what the step after of both sides reads, where that is compared too.
            summed_otherwise: the runs may have added up the statistics of one tensor in another order.
        """
        self._summed_otherwise = summed_otherwise
        self.precisions: set[tuple[str, str]] = set()
        self._steps = steps
        self._exact = exact
        self._before = before
        self._after = cache(after)

    def judge(self, target: Value, baseline: Value, close: Closeness) -> tuple[Judgement, str]:
        """Return what is to be said of two values from outside, and the sentence if it is a finding."""
        if close.shape is not None:
            return Judgement("different", True, floor_from="exact"), _SOURCE
        if not close.known:
            return Judgement("unknown", note=close.reason), _SOURCE
        if close.bitwise:
            return Judgement("same", floor_from="exact"), _SOURCE
        if self._before is not None and self._before[0].has(target) and self._before[1].has(baseline):
            if self._after_steps(target, baseline, close).guilty:
                if self._before[0].has_nearer(baseline, target):
                    return Judgement("different", True, floor_from="exact"), _OTHER.format("target", "baseline")
                if self._before[1].has_nearer(target, baseline):
                    return Judgement("different", True, floor_from="exact"), _OTHER.format("baseline", "target")
            return Judgement("within", floor_from="exact", note="inherited from the step before"), _SOURCE
        if self._exact and not self._has_equal_statistics(target, baseline, close):
            return Judgement("different", True, 0.0, "exact", math.inf), _SOURCE
        return self._after_steps(target, baseline, close), _SOURCE

    def keeps(self, side: int, made: Value, old: Value) -> bool | None:
        """Tell whether one side's program goes on with what it made anew in place of what memory held; None: not known.

        The step after reads the one or the other; where there is none, the program does as it did in the step before.

        Args:
            side: whose program.
            made: what it made.
            old: what the memory still holds.
        """
        after = self._after()
        if after is not None and _is_telling(made) and after[side].has(made):
            return True
        if not _is_telling(old):
            return None
        if after is not None and after[side].has(old):
            return False
        return True if self._before is not None and self._before[side].made(old) else None

    def _has_equal_statistics(self, target: Value, baseline: Value, close: Closeness) -> bool:
        if close.level != "statistic" or not close.error:
            return close.level == "statistic"
        if close.dtype is not None:
            return equal_but_for_dtype(target, baseline, close)
        may_differ = self._summed_otherwise or close.layout is not None
        return may_differ and equal_but_for_order(target, baseline, close)

    def _after_steps(self, target: Value, baseline: Value, close: Closeness) -> Judgement:
        """Judge what differs after steps that were not compared."""
        limits = limits_of(target, baseline).times(_OF_STEPS * math.sqrt(1 + max(self._steps)))
        ratio = (close.error or 0.0) / limits.rel_l2 if limits.rel_l2 else math.inf if close.error else 0.0
        wrong = ratio > 1 or close.nonfinite
        return Judgement("different" if wrong else "within", wrong, limits.rel_l2, "depth", ratio)


class Contents:
    """What some values hold; each is read once."""

    def __init__(self, values: Callable[[], Iterable[Value]]) -> None:
        """Take what returns them, which is called when they are asked for."""
        self._values = values
        self._digests: dict[int, str | None] = {}

    def has(self, value: Value) -> bool:
        """Tell whether one of them holds what another value does."""
        wanted = digest_of(value)
        return wanted is not None and any(self.digest(other) == wanted for other in self.alike(value))

    def alike(self, value: Value) -> list[Value]:
        """Return those of the dtype and size of a value."""
        return self._by_kind.get(_kind(value), [])

    def digest(self, value: Value) -> str | None:
        """Return the digest of one of them."""
        if value.id not in self._digests:
            self._digests[value.id] = digest_of(value)
        return self._digests[value.id]

    @cached_property
    def _by_kind(self) -> dict[tuple[object, ...], list[Value]]:
        found: dict[tuple[object, ...], list[Value]] = {}
        for value in self._values():
            found.setdefault(_kind(value), []).append(value)
        return found


class LeftContents:
    """The contents that memory had when a step of one rank ended."""

    def __init__(self, rank: RankDump) -> None:
        self._rank = rank
        self._contents = Contents(lambda: last_values(rank))
        self._by_storage: dict[int, list[records.Value]] | None = None
        self._samples: dict[int, torch.Tensor | None] = {}

    def has(self, value: Value) -> bool:
        """Tell whether the step left a tensor with the contents of a value."""
        wanted = digest_of(value)
        if wanted is None:
            return False
        alike = self._contents.alike(value)
        if any(self._contents.digest(other) == wanted for other in alike):
            return True
        nameless = [other for other in alike if other.hash is None] if value.hash is not None else []
        of_bytes = digest_of_bytes(value) if nameless else None  # parts of what was recorded have no hash of their own
        if of_bytes is not None and any(self._contents.digest(other) == of_bytes for other in nameless):
            return True
        return any(self._became(other, value) for other in alike)

    def made(self, value: Value) -> bool:
        """Tell whether the step made a tensor with the contents of a value, and left it."""
        wanted = digest_of(value)
        alike = (other for other in self._contents.alike(value) if other.producer is not None)
        return wanted is not None and any(self._contents.digest(other) == wanted for other in alike)

    def has_nearer(self, value: Value, than: Value) -> bool:
        """Tell whether the step left something that is far nearer to a value than another one that it left.

        Zeros and ones and what holds few numbers may be like anything, and tell nothing. Beside a gradient that is
        rounding in one precision all that is as good as zero is near to it in a finer one: it has to be near in itself.
        """
        wanted, other = _sample(value), _sample(than)
        if wanted is None or other is None or wanted.shape != other.shape or not _tells(wanted):
            return False
        most = _FAR_NEARER * float(min(torch.dist(wanted, other), wanted.norm()))
        left = (self._sample(one) for one in self._contents.alike(value))
        return any(one is not None and bool(torch.dist(one, wanted) < most) for one in left)

    def _sample(self, value: Value) -> torch.Tensor | None:
        if value.id not in self._samples:
            self._samples[value.id] = _sample(value)
        return self._samples[value.id]

    def _became(self, earlier: Value, value: Value) -> bool:
        """Tell whether memory holds what `value` does, once what was written into pieces of it later is put there."""
        begin = earlier.record
        later = [record for record in self._in_memory(begin.storage) if record.version > begin.version]
        if not later or not all(one.has_data and _is_dense(one) for one in (earlier, value)):
            return False
        whole = earlier.tensor().reshape(-1).clone()
        for record in later:
            part, start = self._rank.value_by_id(record.id), record.offset - begin.offset
            end = start + part.numel
            if part.dtype != whole.dtype or not _is_dense(part):
                return False
            if end <= 0 or start >= whole.numel():
                continue
            if start < 0 or end > whole.numel() or part.undefined or not part.has_data:
                return False
            whole[start:end] = part.tensor().reshape(-1)
        return torch.equal(whole.view(torch.uint8), value.tensor().reshape(-1).view(torch.uint8))

    def _in_memory(self, storage: int) -> list[records.Value]:
        """Return what was seen of a storage, in the order of writes."""
        if self._by_storage is None:
            self._by_storage = {}
            for record in self._rank.tables.values.records():
                self._by_storage.setdefault(record.storage, []).append(record)
        return sorted(self._by_storage.get(storage, ()) if storage else (), key=lambda record: record.version)


class LeftOnRanks:
    """The contents that memory had when a step of several ranks ended."""

    def __init__(self, ranks: Mapping[int, RankDump]) -> None:
        self._left = {number: LeftContents(rank) for number, rank in ranks.items()}

    def has(self, value: Value) -> bool:
        """Tell whether the step left on each rank what that rank holds of a value."""
        if not isinstance(value, AssembledValue):
            return False
        parts = value.assembly.parts
        return self._left.keys() >= parts.keys() and all(self._left[rank].has(part) for rank, part in parts.items())

    def made(self, value: Value) -> bool:
        """Tell nothing: who made the parts is not asked."""
        return False

    def has_nearer(self, value: Value, than: Value) -> bool:
        """Tell nothing: parts of it are left on each rank, and may be anything near."""
        return False


def read_contents(rank: RankDump) -> Contents:
    """Return the contents that memory had when a step of one rank began, as far as it was read."""
    return Contents(lambda: (v for v in rank.values if not v.record.version and v.from_outside))


def last_values(rank: RankDump) -> list[Value]:
    """Return the last value of each place: a storage seen with a geometry."""
    newest: dict[tuple[object, ...], tuple[int, int]] = {}
    for record in rank.tables.values.records():
        place = record.place if record.storage else (-record.id,)
        newest[place] = max(newest.get(place, (-1, -1)), (record.version, record.id))
    return [rank.value_by_id(id) for _, id in newest.values()]


def digest_of(value: Value) -> str | None:
    """Return a digest of the elements, else of their statistics; None where nothing is known of them."""
    if value.hash is not None:
        return value.hash
    return digest_of_statistics(value) if not value.has_data else digest_of_bytes(value)


def digest_of_statistics(value: Value) -> str | None:
    """Return the recorded statistics as a text, which within one run is another for other elements; None if too few."""
    stats = value.stats
    if stats is None or value.undefined or any(stats.get(name) is None for name in _TELLING_STATISTICS):
        return None
    return repr([(name, stats[name]) for name in sorted(stats)])


def digest_of_bytes(value: Value) -> str | None:
    """Return a digest of the recorded elements; None where there are none."""
    elements = _in_a_row(value)
    if elements is None:
        return None
    flat = torch.view_as_real(elements).reshape(-1) if elements.is_complex() else elements
    return xxhash.xxh3_128_hexdigest(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else ""


def _sample(value: Value) -> torch.Tensor | None:
    """Return some elements of a tensor, by which it is told from others; None where there are none."""
    flat = _in_a_row(value)
    if flat is None or not flat.numel():
        return None
    taken = flat[torch.linspace(0, flat.numel() - 1, min(_SAMPLED, flat.numel())).long()]
    return (torch.view_as_real(taken).reshape(-1) if taken.is_complex() else taken).double()


def _in_a_row(value: Value) -> torch.Tensor | None:
    """Return the recorded elements as a 1-D tensor in row-major order; None where they are not known."""
    if not value.has_data or value.undefined:
        return None
    try:
        return plain(value.tensor()).contiguous().reshape(-1)
    except (AtenDumpError, RuntimeError):
        return None


def _tells(sample: torch.Tensor) -> bool:
    """Tell whether elements hold enough numbers to tell a tensor from others."""
    most = sample.abs().max()
    return bool(0 < most < math.inf) and (sample / most).round(decimals=3).unique().numel() >= _TELLING


def _is_telling(value: Value) -> bool:
    """Tell whether a tensor may be known again by all it holds; of statistics alone that is taken for granted."""
    sample = _sample(value) if value.has_data else None
    return value.is_floating and (sample is None or sample.unique().numel() > 1)


def _is_dense(value: Value) -> bool:
    return value.layout_name == "strided" and stride_class(value) == "contiguous"


def _kind(value: Value) -> tuple[object, ...]:
    return value.dtype_name, value.numel  # a flat view of a parameter holds what the parameter holds
