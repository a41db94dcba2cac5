"""What an index says of one value: its record, and the records about it."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import MissingDataError
from ..store import records
from ..torch_names import DTYPES, DTYPES_WITHOUT_NUMBERS, LAYOUTS
from .argument_decoding import Device, read_device
from .index.tables import Tables
from .value_statistics import Stats


class ValueFacts:
    """The facts of one value, without its relations to calls and other values.

    It has a property for each fact, more than twenty, as it is the base of the public `Value`.
    """

    __slots__ = ("_record", "_tables")

    def __init__(self, tables: Tables, record: records.Value) -> None:
        self._tables = tables
        self._record = record

    @property
    def where(self) -> str:
        """Path, step and rank of the dump it is in."""
        return self._tables.where

    @property
    def record(self) -> records.Value:
        """The record as it is in the index, for tools that work on ids."""
        return self._record

    @property
    def id(self) -> int:
        return self._record.id

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
        return self._tables.text(self._record.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype.

        Raises:
            MissingDataError: this torch does not have it, or it was not recorded.
        """
        if not self.dtype_name:
            raise MissingDataError(
                f"value {self.id} of {self.where} has no dtype: of a tensor whose sizes are no numbers "
                "(nested, symbolic, or of a lazy module) the class is all that is recorded"
            )
        found = DTYPES.get(self.dtype_name)
        if found is None:
            raise MissingDataError(
                f"value {self.id} of {self.where} has dtype {self.dtype_name!r}, which torch {torch.__version__} "
                "does not have; read the dump with the torch that wrote it (run.json names it)"
            )
        return found

    @property
    def device(self) -> Device:
        """The device it was on; the plain name where this torch does not know the device."""
        return read_device(self.device_name)

    @property
    def device_name(self) -> str:
        storage = self._tables.storages.find(self._record.storage)
        if storage is not None:
            return self._tables.text(storage.device)
        return str((self._record.extra or {}).get("device", "cpu"))

    @property
    def layout(self) -> torch.layout:
        return LAYOUTS.get(self.layout_name, torch.strided)

    @property
    def layout_name(self) -> str:
        return str((self._record.extra or {}).get("layout", "strided"))

    @property
    def private_format(self) -> str | None:
        """The order of the device's own in which its memory held the elements: ``"FRACTAL_NZ"``; None for strides."""
        found = (self._record.extra or {}).get("format")
        return None if found is None else str(found)

    @property
    def is_floating(self) -> bool:
        """True for a float or complex dtype that torch computes with; False where this torch lacks the dtype."""
        found = DTYPES.get(self.dtype_name)
        if found is None or found in DTYPES_WITHOUT_NUMBERS:
            return False
        return found.is_floating_point or found.is_complex

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def storage(self) -> int:
        """Id of its storage, 0 where it has none (sparse, opaque)."""
        return self._record.storage

    @property
    def storage_nbytes(self) -> int:
        """Bytes of its storage when first seen, 0 where it has none."""
        storage = self._tables.storages.find(self._record.storage)
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
        tables = self._tables
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
        tables = self._tables
        digest = tables.hashes.get(tables.same_as(self.id, records.SAME_HASH, tables.hashes))
        return None if digest is None else digest.hex()

    @property
    def data(self) -> records.Data | None:
        """Where its bytes are, or None, for tools that read shards themselves."""
        found = self._tables.data.find(self._record.id)
        return found if found is not None and found.blob in self._tables.blobs else None
