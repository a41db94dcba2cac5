"""Calls and Values: sequences of handles, each of which is made when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from .call_filter import CallFilter, Wanted
from .dataframes.tables_of_calls import Rows, table_of
from .handles import Call, Recording, Value


class Calls(Sequence[Call]):
    """Calls in execution order; each handle is made when asked for.

    Example:
        >>> calls = open_dump("dump").step(0).rank(0).calls
        >>> calls.filter(op="aten::addmm", module="block.*")[0].name
        'Aten.addmm.0.forward'
    """

    __slots__ = ("_positions", "_rank")

    def __init__(self, rank: Recording, positions: Sequence[int]) -> None:
        self._rank = rank
        self._positions = positions

    @overload
    def __getitem__(self, at: int) -> Call: ...

    @overload
    def __getitem__(self, at: slice) -> Calls: ...

    def __getitem__(self, at: int | slice) -> Call | Calls:
        if isinstance(at, slice):
            return Calls(self._rank, self._positions[at])
        return self._rank.call_at(self._positions[at])

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, call: object) -> bool:
        if not isinstance(call, Call) or call.rank != self._rank:
            return False
        position = self._rank.tables.positions.get(call.id)
        return position is not None and position in self._positions

    def filter(
        self,
        op: str | None = None,
        kind: str | None = None,
        phase: str | None = None,
        module: str | None = None,
        name: str | None = None,
    ) -> Calls:
        """Return the calls that match all of what is given.

        Args:
            op: a full name (``"aten::addmm"``, ``"Functional.linear"``), a part of one in any case, or
                ``"regex:..."``, tried on the op and on prefix and api of the call's name; see `aten_dump.patterns`.
            kind: ``"aten"``, ``"api"``, ``"module"`` or ``"node"``.
            phase: ``"forward"``, ``"recompute"``, ``"backward"`` or ``"optimizer"``.
            module: glob on the module path; a match takes in everything inside the module.
            name: a part of the whole call name in any case, or ``"regex:..."``.

        Raises:
            ConfigError: an unknown kind or phase, or a regular expression that does not compile.
        """
        return self.matching(Wanted(op, kind, phase, module, name))

    def in_mode(self, mode: str) -> Calls:
        """Return the calls that ran in a mode.

        Args:
            mode: ``"training"`` or ``"evaluation"``, as the module was that it ran in; ``"grad"`` or ``"no_grad"``.

        Raises:
            ConfigError: an unknown mode.
        """
        return self.matching(Wanted(mode=mode))

    def in_scope(self, name: str) -> Calls:
        """Return the calls that ran in a scope of a name, and the scopes themselves; their backward too.

        Args:
            name: as ``DumpMode.scope`` was given it; a part of it where no scope has it, or ``"regex:..."``.
        """
        return self.matching(Wanted(scope=name))

    def matching(self, wanted: Wanted) -> Calls:
        """Return the calls that are wanted; see `filter` and `in_mode`."""
        return Calls(self._rank, CallFilter(self._rank.tables, wanted).select(self._positions))

    def to_pandas(self, rows: Rows = "calls") -> Any:
        """Return a ``pandas.DataFrame`` (extra ``pandas``).

        Args:
            rows: ``"calls"``: a row for each call; ``"values"``: one for each tensor of each call, with its
                statistics (those of complex tensors are missing).

        Raises:
            MissingDataError: pandas is not installed.
        """
        return table_of("pandas", self._rank, self, rows)

    def to_polars(self, rows: Rows = "calls") -> Any:
        """Return a ``polars.DataFrame`` (extra ``polars``); see `to_pandas`."""
        return table_of("polars", self._rank, self, rows)

    def to_arrow(self, rows: Rows = "calls") -> Any:
        """Return a ``pyarrow.Table`` (extra ``parquet``); see `to_pandas`."""
        return table_of("arrow", self._rank, self, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Calls, (self._rank, list(self._positions))

    def __repr__(self) -> str:
        return f"<{len(self)} calls of {self._rank.where}>"


class Values(Sequence[Value]):
    """All values of a step and rank, in order of id; each handle is made when asked for."""

    __slots__ = ("_ids", "_rank")

    def __init__(self, rank: Recording, ids: Sequence[int]) -> None:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Values, (self._rank, list(self._ids))

    def __repr__(self) -> str:
        return f"<{len(self)} values of {self._rank.where}>"
