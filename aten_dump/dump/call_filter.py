"""Selection of calls: text patterns on op names and globs on module paths, decided once per op and module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..patterns import module_test, op_test, text_test
from ..store import records

if TYPE_CHECKING:
    from .index.tables import Tables

SCOPE_OP: Final = "aten_dump.scope"  # op of the calls that DumpMode.scope makes
_SHOWN: Final = 100  # characters of a text, in an error


@dataclass(frozen=True, slots=True)
class Wanted:
    """What calls must match; None is anything. See ``Calls.filter``."""

    op: str | None = None
    kind: str | None = None
    phase: str | None = None
    module: str | None = None
    name: str | None = None
    mode: str | None = None
    scope: str | None = None


class CallFilter:
    """The calls of one index that match all of what is wanted."""

    def __init__(self, tables: Tables, wanted: Wanted) -> None:
        self._tables = tables
        self._name = None if wanted.name is None else text_test(wanted.name, _what("name", wanted.name))
        self._phase = None if wanted.phase is None else _code("phase", wanted.phase, records.PHASES)
        self._ops = self._matching_ops(wanted.op, wanted.kind)
        self._mode = None if wanted.mode is None else tables.modes.are(wanted.mode)
        self._modules = None if wanted.module is None else module_test(wanted.module, "filter module")
        self._scopes = None if wanted.scope is None else self._in_scopes(wanted.scope)
        self._module_facts: dict[int, bool] = {}

    def _matching_ops(self, op: str | None, kind: str | None) -> set[int] | None:
        if op is None and kind is None:
            return None
        found = list(self._tables.ops.records())
        if kind is not None:
            code = _code("kind", kind, records.CALL_KINDS)
            found = [record for record in found if record.call_kind == code]
        if op is not None:
            matches = op_test(op, _what("op", op))
            found = [record for record in found if matches(record.op, f"{record.prefix}.{record.api}")]
        return {record.id for record in found}

    def _in_scopes(self, scope: str) -> npt.NDArray[np.bool_]:
        """Return of each call whether it is in a scope of a name, or is one; a part of a name where none is it."""
        ops = [record for record in self._tables.ops.records() if record.op == SCOPE_OP]
        named = {record.id for record in ops if record.api == scope}
        if not named:
            matches = text_test(scope, _what("scope", scope))
            named = {record.id for record in ops if matches(record.api)}
        calls = self._tables.calls
        ids, parents, of_op = (calls.column(name) for name in ("id", "parent", "op"))
        within = {0: False}
        starts = np.isin(of_op, list(named))
        for place in np.argsort(ids, kind="stable").tolist():
            within[int(ids[place])] = bool(starts[place]) or within.get(int(parents[place]), False)
        return np.array([within[number] for number in ids.tolist()], dtype=bool)

    def select(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of `positions` whose call matches."""
        calls = self._tables.calls
        found = np.asarray(positions, np.int64)
        if self._ops is not None:
            found = found[np.isin(calls.column("op")[found], list(self._ops))]
        if self._phase is not None:
            found = found[calls.column("phase")[found] == self._phase]
        if self._mode is not None:
            found = found[self._mode[found]]
        if self._scopes is not None:
            found = found[self._scopes[found]]
        if self._modules is not None:
            modules, ops = (calls.column(name)[found].tolist() for name in ("module", "op"))
            found = found[[self._in_module(module, op) for module, op in zip(modules, ops, strict=True)]]
        if self._name is not None:
            parts = (calls.column(name)[found].tolist() for name in ("op", "n", "phase", "repeat"))
            found = found[[self._name(name) for name in map(self._tables.render, *parts)]]
        return found.data

    def _in_module(self, module: int, op_id: int) -> bool:
        if self._matches_text(module):
            return True
        op = self._tables.op(op_id)
        is_module = records.CALL_KINDS[op.call_kind] == "module"
        return is_module and self._modules is not None and self._modules(op.api)

    def _matches_text(self, module: int) -> bool:
        known = self._module_facts.get(module)
        if known is None:
            known = self._modules is not None and self._modules(self._tables.text(module))
            self._module_facts[module] = known
        return known


def _what(field: str, text: str) -> str:
    return f"filter {field}={text!r:.{_SHOWN}}"


def _code(field: str, value: str, allowed: tuple[str, ...]) -> int:
    if value not in allowed:
        raise ConfigError(f"filter {field} is {value!r}; allowed: {', '.join(allowed)}")
    return allowed.index(value)
