"""Sections ``calls/K``: of the calls of the K-th chunk the arguments, results, and which values they are.

Theory of operation
    Arguments are kept as templates: texts of literals with a mark for each tensor, interned, as layers repeat
    them. What fills the marks are positions in the step's values, in the order of the template's slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ....dump import RankDump
from ....dump.argument_decoding import decode
from ....store import records
from ....store.argument_trees import items, output_slots, slots
from ...units import argument
from .call_tree import positions_of
from .chunks import chunk_range
from .columns import Integers, Interned, Section

MARK: Final = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a tensor in the text of an argument
_MOST_TEXT: Final = 2000


class Template(NamedTuple):
    """What calls of one op with the same literals have in common."""

    inputs: tuple[tuple[str, str], ...]  # number or keyword, text
    outputs: str
    written: tuple[str, ...]  # names of arguments that are written in place
    slots: tuple[str, ...]  # of the tensors, in order


def arguments_section(rank: RankDump, value_ids: Integers, chunk: int) -> bytes:
    """Return the section of a chunk of calls.

    Args:
        rank: the step and rank.
        value_ids: the ids of all its values, ascending.
        chunk: number of the chunk.
    """
    section = Section()
    templates: Interned[Template] = Interned()
    numbers: list[int] = []
    refs: list[int] = []
    sequence: list[int] = []
    errors: dict[int, str] = {}
    calls = rank.tables.calls
    for position in chunk_range(chunk, len(calls)):
        call = calls[position]
        numbers.append(templates.number(_template(call, refs)))
        sequence.append(-1 if call.sequence_nr is None else call.sequence_nr)
        if call.error is not None:
            errors[position] = call.error
    section.add_json("templates", templates.items)
    section.add_integers("template", numbers)
    section.add_integers("refs", positions_of(value_ids, np.array(refs, np.int64)), delta=True)
    section.add_integers("sequence_nr", sequence, delta=True)
    section.add_json("errors", errors)
    return section.pack()


def _template(call: records.Call, refs: list[int]) -> Template:
    """Return the template of a call, and append the ids of its values to `refs`."""
    named = [*((str(number), tree) for number, tree in enumerate(call.args)), *(call.kwargs or {}).items()]
    written = call.written or ()
    names, trees = written[::2], written[1::2]
    found = [pair for name, tree in named for pair in slots(tree, f"input.{name}")]
    found += output_slots(call.outputs)
    found += (pair for name, tree in zip(names, trees, strict=False) for pair in slots(tree, f"mutated.{name}"))
    refs += (value for _, value in found)
    return Template(
        tuple((name, tree_text(tree)) for name, tree in named),
        tree_text(call.outputs),
        tuple(names),
        tuple(slot for slot, _ in found),
    )


def tree_text(tree: records.Tree) -> str:
    """Return a tree as text with `MARK` for each tensor; long texts are cut."""
    if isinstance(tree, tuple) and tree[0] == records.TREE_VALUE:
        return MARK
    text = "".join(_pieces(tree))
    if len(text) <= _MOST_TEXT or MARK in text[_MOST_TEXT:]:
        return text
    return f"{text[:_MOST_TEXT]}..."


_BRACKETS: Final = {records.TREE_LIST: ("[", "]"), records.TREE_TUPLE: ("(", ")"), records.TREE_DICT: ("{", "}")}


def _pieces(tree: records.Tree) -> Iterator[str]:
    named = items(tree)
    if named is None:
        yield argument(decode(tree, lambda _: _Tensor()))
        return
    is_dict = tree[0] == records.TREE_DICT
    first, last = _BRACKETS[tree[0]]
    yield first
    for number, (key, item) in enumerate(named):
        yield ", " if number else ""
        yield f"{key}: " if is_dict else ""
        yield from _pieces(item)
    yield last


class _Tensor:
    """A tensor in a tree that becomes text."""

    def __str__(self) -> str:
        return MARK
