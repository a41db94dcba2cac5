"""Value: one tensor at one moment, as a light handle over its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch

from ..errors import MissingDataError
from ..store import records
from .argument_decoding import Device, read_device

if TYPE_CHECKING:
    from .calls import Call
    from .rank import RankDump

Number = int | float | complex | None


class Stats(Mapping[str, Number]):
    """The statistics of a value, by name and as attributes: ``stats["min"]``, ``stats.min``.

    None stands where a statistic is not defined (the mean of no elements).
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: dict[str, Number]) -> None:
        self._numbers = numbers

    def __getitem__(self, name: str) -> Number:
        try:
            return self._numbers[name]
        except KeyError:
            raise MissingDataError(_no_statistic(name, self._numbers)) from None

    def __getattr__(self, name: str) -> Number:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._numbers[name]
        except KeyError:
            raise AttributeError(_no_statistic(name, self._numbers)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return "Stats(" + ", ".join(f"{name}={number!r}" for name, number in self._numbers.items()) + ")"


def _no_statistic(name: str, recorded: Mapping[str, Number]) -> str:
    return f"statistic {name!r} was not recorded; recorded are {', '.join(recorded)}: add it to DumpConfig.statistics"


class Value:
    """One tensor at one moment: a storage, its write version and a geometry on it."""

    __slots__ = ("_rank", "_record")

    def __init__(self, rank: RankDump, record: records.Value) -> None:
        self._rank = rank
        self._record = record

    @property
    def id(self) -> int:
        return self._record.id

    @property
    def where(self) -> str:
        """Path, step and rank of the dump it is in."""
        return self._rank.where

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._record.shape)

    @property
    def stride(self) -> tuple[int, ...]:
        """In elements; empty for sparse layouts."""
        return tuple(self._record.stride)

    @property
    def dtype_name(self) -> str:
        """The dtype's name, known also where this torch lacks the dtype: ``"float32"``."""
        return self._rank.tables.text(self._record.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype.

        Raises:
            MissingDataError: this torch does not have it.
        """
        found = getattr(torch, self.dtype_name, None)
        if not isinstance(found, torch.dtype):
            raise MissingDataError(
                f"value {self.id} of {self._rank.where} has dtype {self.dtype_name!r}, which torch {torch.__version__} "
                "does not have; read the dump with the torch that wrote it (run.json names it)"
            )
        return found

    @property
    def device(self) -> Device:
        """The device it was on; the plain name where this torch does not know the device."""
        return read_device(self.device_name)

    @property
    def device_name(self) -> str:
        storage = self._rank.tables.storages.get(self._record.storage)
        if storage is not None:
            return self._rank.tables.text(storage.device)
        return str((self._record.extra or {}).get("device", "cpu"))

    @property
    def layout(self) -> torch.layout:
        found = getattr(torch, self.layout_name, torch.strided)
        return found if isinstance(found, torch.layout) else torch.strided

    @property
    def layout_name(self) -> str:
        return str((self._record.extra or {}).get("layout", "strided"))

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of its elements: more than its storage has when it is expanded, those of its parts when sparse."""
        parts = self.parts
        if parts and self._record.storage == 0:
            return sum(part.nbytes for part in parts.values())
        dtype = getattr(torch, self.dtype_name, None)
        return self.numel * (dtype.itemsize if isinstance(dtype, torch.dtype) else 1)

    @property
    def parts(self) -> dict[str, Value]:
        """The tensors it is made of, by name: ``indices`` and ``values`` of a sparse one; empty for most."""
        parts = (self._record.extra or {}).get("parts") or {}
        return {name: self._rank.value_by_id(number) for name, number in parts.items() if isinstance(number, int)}

    @property
    def storage(self) -> int:
        """Id of its storage, 0 where it has none (sparse, opaque)."""
        return self._record.storage

    @property
    def storage_nbytes(self) -> int:
        """Bytes of its storage when first seen, 0 where it has none."""
        storage = self._rank.tables.storages.get(self._record.storage)
        return 0 if storage is None else storage.nbytes

    @property
    def version(self) -> int:
        """Writes to its storage seen before this moment."""
        return self._record.version

    @property
    def storage_offset(self) -> int:
        """In elements."""
        return self._record.offset

    @property
    def undefined(self) -> bool:
        """True for memory that nothing has written yet: it has no contents to record."""
        return bool(self._record.flags & records.UNDEFINED)

    @property
    def opaque(self) -> bool:
        """True for a tensor without bytes of its own: meta, fake, a subclass with its own dispatch."""
        return bool(self._record.flags & records.OPAQUE)

    @property
    def unsettled(self) -> bool:
        """True for a tensor of several ranks when it is not known how their parts fit together."""
        return False

    @property
    def composed(self) -> bool:
        """True for a tensor put together of unlike parts: its statistics follow from theirs, but for rounding."""
        return False

    @property
    def absence(self) -> str:
        """What keeps it from being compared, as the end of a sentence about it; ``""`` for nothing."""
        if self.undefined:
            return "is undefined memory"
        return "has no bytes of its own" if self.opaque else ""

    @property
    def conjugate(self) -> bool:
        return bool(self._record.flags & records.CONJUGATE)

    @property
    def negative(self) -> bool:
        """True when the neg bit is set."""
        return bool(self._record.flags & records.NEGATIVE)

    @property
    def requires_grad(self) -> bool:
        return bool(self._record.flags & records.REQUIRES_GRAD)

    @property
    def extra(self) -> dict[str, Any]:
        """What a strided tensor of a plain class does not need: layout, parts, quantization, class."""
        return dict(self._record.extra or {})

    @property
    def stats(self) -> Stats | None:
        """Its statistics, or None when none were recorded."""
        tables = self._rank.tables
        numbers = tables.statistics.get(tables.same_as(self.id, records.SAME_STATISTICS, tables.statistics))
        if numbers is None:
            return None
        names = tables.header.config.get("statistics", ())
        return Stats(
            {name: complex(*n) if isinstance(n, (list, tuple)) else n for name, n in zip(names, numbers, strict=False)}
        )

    @property
    def hash(self) -> str | None:
        """Digest of its elements in row-major order, in hex, or None when none was recorded."""
        tables = self._rank.tables
        digest = tables.hashes.get(tables.same_as(self.id, records.SAME_HASH, tables.hashes))
        return None if digest is None else digest.hex()

    @property
    def data(self) -> records.Data | None:
        """Where its bytes are, or None, for tools that read shards themselves."""
        return self._rank.tables.data.get(self._record.id)

    @property
    def rank(self) -> RankDump:
        """The step and rank it was recorded in."""
        return self._rank

    @property
    def has_data(self) -> bool:
        """True when its bytes, or those of its parts, were recorded."""
        if self._record.id in self._rank.tables.data:
            return True
        parts = self.parts
        return bool(parts) and all(part.has_data for part in parts.values())

    @property
    def from_outside(self) -> bool:
        """True when no recorded call made its storage: a parameter, a buffer, an input of the step."""
        first = self._rank.links.first_value(self._record.storage, self._record.id)
        return self._rank.links.producers.get(first) is None

    @property
    def producer(self) -> tuple[Call, str] | None:
        """The innermost call that made it and its slot there; None for what came from outside the step."""
        return self._rank.producer_of(self.id)

    @property
    def consumers(self) -> list[tuple[Call, str]]:
        """The calls of every kind that read it, with the slot, in execution order."""
        return self._rank.consumers_of(self.id)

    def tensor(self) -> torch.Tensor:
        """Read the recorded bytes.

        Returns:
            A tensor on the CPU, in memory of its own, with the recorded shape, dtype and stride; with
            ``DumpConfig.sample`` a 1-D tensor of the first elements.

        Raises:
            MissingDataError: there are no bytes; the message says why and what to do.
            FormatError: the shard is damaged.
        """
        from .tensor_reading import load

        return load(self._rank, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._record.id == other._record.id and self._rank == other._rank

    def __hash__(self) -> int:
        return hash((self._rank, self._record.id))

    def __repr__(self) -> str:
        state = " undefined" if self.undefined else ""
        return f"<Value {self.id} {self.dtype_name}{list(self._record.shape)} {self.device_name}{state}>"


class Values(Sequence[Value]):
    """All values of a step and rank, in order of id; each handle is made when asked for."""

    __slots__ = ("_ids", "_rank")

    def __init__(self, rank: RankDump, ids: Sequence[int]) -> None:
        self._rank = rank
        self._ids = ids

    @overload
    def __getitem__(self, at: int) -> Value: ...

    @overload
    def __getitem__(self, at: slice) -> Values: ...

    def __getitem__(self, at: int | slice) -> Value | Values:
        if isinstance(at, slice):
            return Values(self._rank, self._ids[at])
        return self._rank.value_by_id(self._ids[at])

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"<{len(self)} values of {self._rank.where}>"
