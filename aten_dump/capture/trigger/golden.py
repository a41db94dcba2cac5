"""A dump made before, read step by step while a run is held against it: its calls, its values and their hashes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

from ...config import DumpConfig
from ...errors import ConfigError, FormatError, MissingDataError
from ...store import records as r
from ...store.index_reader import read_index
from ...store.run_json import read_run
from .held_values import digest_of

# What decides which calls and values there are, and what their hashes are: both runs must have it alike.
_ALIKE: Final = ("level", "io", "ops", "exclude_ops", "modules", "hash", "dedup", "compile", "saved_tensors")
_WITH_HASHES: Final = ("hash", "full")


def recorded_alike(config: DumpConfig) -> DumpConfig:
    """Return a config with `against` as it records: like the dump that it names, hashes of all, bytes in the ring.

    Raises:
        ConfigError: there is no such dump, it has no hashes, or it is what the config writes.
    """
    if config.against is None:
        return config
    root = Path(config.against)
    if os.path.realpath(root) == os.path.realpath(config.path):
        raise ConfigError(f"DumpConfig.against and path are both {str(root)!r}; record to another folder")
    try:
        fields = read_run(root).get("config")
    except (MissingDataError, FormatError) as error:
        raise ConfigError(f"DumpConfig.against={str(root)!r} cannot be read: {error}") from error
    if not isinstance(fields, dict) or fields.get("data") not in _WITH_HASHES:
        found = fields.get("data") if isinstance(fields, dict) else None
        raise ConfigError(
            f"DumpConfig.against={str(root)!r} was recorded with data={found!r}; it must have hashes: record it with "
            'DumpConfig(data="hash")'
        )
    alike = {name: fields[name] for name in _ALIKE if name in fields}
    return dataclasses.replace(config, data="hash", **alike)


def golden_step(root: Path, step: int, rank: int, config: DumpConfig) -> GoldenStep | str:
    """Read a step and rank of a golden; return why a run cannot be held against it."""
    path = root / f"step{step}" / f"rank{rank}"
    if not path.is_dir():
        return f"{root} has no step {step} of rank {rank}: this step was held against nothing"
    found = GoldenStep(path)
    for name in _ALIKE:
        theirs, ours = _plain(found.config.get(name)), _plain(getattr(config, name))
        if name in found.config and theirs != ours:
            return f"step {step} of {root} has {name}={theirs!r}, this run {ours!r}: it was held against nothing"
    if not found.is_whole:
        return f"step {step} of rank {rank} of {root} is not whole: this step was held against nothing"
    return found


class GoldenStep:
    """One step and rank of a golden. Rows are decoded when they are asked for."""

    def __init__(self, path: Path) -> None:
        index = read_index(path)
        self.config: dict[str, Any] = {} if index.header is None else index.header.config
        self.is_whole = index.committed and not index.dropped_bytes
        self._rows = index.rows
        self._places = {kind: _places(index.rows[kind]) for kind in (r.CALL, r.OP, r.TEXT, r.VALUE)}
        same = index.rows[r.SAME].columns(1, 2, 3) if len(index.rows[r.SAME]) else ([], [], [])
        self._same = {int(v): int(o) for v, o, facts in zip(*same, strict=True) if int(facts) & r.SAME_HASH}
        self._digests = {int(row[1]): bytes(row[2]) for row in index.rows[r.HASH]}

    def call(self, number: int) -> r.Call | None:
        """Return a call by id."""
        row = self._row(r.CALL, number)
        return None if row is None else r.Call._make(row[: len(r.Call._fields)])

    def calls_after(self, number: int) -> tuple[int, r.Call | None]:
        """Return how many calls have a greater id, and the first of them."""
        found = [one for one in self._places[r.CALL] if one > number]
        return len(found), self.call(min(found)) if found else None

    def op(self, number: int) -> r.Op:
        """Return an op by id.

        Raises:
            FormatError: there is none.
        """
        row = self._row(r.OP, number)
        if row is None:
            raise FormatError(f"a call of the golden names op {number}, which it does not hold; run `aten-dump verify`")
        return r.Op._make(row[: len(r.Op._fields)])

    def text(self, number: int) -> str:
        """Return an interned text; empty for none."""
        row = self._row(r.TEXT, number)
        return "" if row is None else str(row[2])

    def value(self, number: int) -> r.Value | None:
        """Return a value by id."""
        row = self._row(r.VALUE, number)
        return None if row is None else r.Value._make(row[: len(r.Value._fields)])

    def digest(self, value: int) -> bytes | None:
        """Return the hash of a value."""
        return digest_of(value, self._digests, self._same)

    def _row(self, kind: int, number: int) -> tuple[Any, ...] | None:
        place = self._places[kind].get(number)
        return None if place is None else self._rows[kind][place]


def _plain(field: object) -> object:
    return list(field) if isinstance(field, tuple) else field


def _places(rows: Any) -> dict[int, int]:
    """Return where the row of each id is."""
    return dict(zip(map(int, rows.column(1)), range(len(rows)), strict=True)) if len(rows) else {}
