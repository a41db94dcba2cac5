"""Keys of the calls of a recording, as alignment sees them; module paths without what wrappers put into them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ...dump import Call, RankDump
from ...store import records
from ...store.argument_trees import collect
from ...store.index_reader import paused_gc
from .alignment import CallKey
from .user_mapping import Mapping

WRAPPERS: Final = ("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "_flat_param")
_WRAPPER: Final = re.compile(rf"(?:^|(?<=\.))(?:{'|'.join(WRAPPERS)})(?:\.|$)")


ProgramPlace = tuple[str, str, str]


def place_of(call: Call) -> ProgramPlace:
    """Return what two calls share that a program makes at the same place: op, phase and line."""
    return call.op, call.phase, line_of(call)


def line_of(call: Call) -> str:
    """Return the line of a call. Of two versions of a program, it has the name that it has in the baseline."""
    where = call.where
    return call.rank.line_names.get(where, where)


def normal_module(fqn: str) -> str:
    """Return a module path without wrapper names: ``module.h.0._orig_mod.mlp`` is ``h.0.mlp``."""
    return _WRAPPER.sub("", fqn).removesuffix(".")


def call_keys(rank: RankDump, positions: Sequence[int], mapping: Mapping | None = None) -> list[CallKey]:
    """Return the keys of some calls; the shapes are those of results and positional inputs.

    Args:
        rank: where they were recorded.
        positions: of the calls in ``rank.calls``.
        mapping: renames that turn the target's modules and ops into the baseline's; None for the baseline.
    """
    tables = rank.tables
    modules = {number: _module(text, mapping) for number, text in tables.texts.items()} | {0: _module("", mapping)}
    ops = {op.id: _op(op, mapping) for op in tables.ops.records()}
    shapes = {value.id: tuple(value.shape) for value in tables.values.records()}
    with paused_gc():
        return [_key(tables.calls[position], modules, ops, shapes) for position in positions]


def _key(
    call: records.Call, modules: dict[int, str], ops: dict[int, str], shapes: dict[int, tuple[int, ...]]
) -> CallKey:
    found: list[int] = []
    collect(call.outputs, found)
    for tree in (call.written or ())[1::2]:
        collect(tree, found)
    for tree in call.args:
        collect(tree, found)
    shape = tuple(shapes.get(value, ()) for value in found)
    return CallKey(records.PHASES[call.phase], modules.get(call.module, ""), ops.get(call.op, ""), shape)


def _module(text: str, mapping: Mapping | None) -> str:
    fqn = normal_module(text)
    return fqn if mapping is None else mapping.module(fqn)


def _op(op: records.Op, mapping: Mapping | None) -> str:
    """Return the op with its kind; a module counts by its path, a node by its name."""
    if records.CALL_KINDS[op.call_kind] == "module":
        if op.op.rpartition(".")[2] == op.api:  # the model itself, known by its class: wrappers are other classes
            return "module "
        return f"module {_module(op.api, mapping)}"
    text = op.op if mapping is None else mapping.op(op.op)
    return f"{records.CALL_KINDS[op.call_kind]} {text}"
