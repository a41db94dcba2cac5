"""What is held of one recorded step and rank against other ranks: a few digests, so that the rank is let go of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from ...dump import Call, Value
from ...store.op_names import is_collective
from .step_facts import StepFacts

Bits = tuple[str, tuple[int, ...], str | bytes]  # dtype, shape, hash or digest: equal ones are the same numbers


class Copy(NamedTuple):
    """A parameter as one rank holds it."""

    shape: tuple[int, ...]
    leaf: Bits | None  # None where nobody knows
    applied: Bits | None  # the gradient as the optimizer reads it
    is_telling: bool  # the gradient has several elements, and not all are zero: two equal ones are no accident
    reader: int  # id of the first call that reads it in the forward, or `accumulated`
    accumulated: int  # id of the last call that accumulates its gradient


@dataclass(frozen=True, slots=True, eq=False)
class RankFacts:
    """One rank of a step, as rules about ranks ask for it; calls are ids."""

    rank: int
    parameters: dict[str, Copy]
    batch: tuple[Bits, ...]  # what outermost modules are given; empty where nobody knows
    reduces: bool
    meets_in_forward: bool
    is_sharded: bool
    module: int  # the first module's call, 0 where there is none
    optimizer: int  # where the first optimizer's step begins, 0 where there is none
    drawn: tuple[tuple[str, bytes, int], ...]  # op, digest of the random state before it, id, of each call in a module


def facts_of(step: StepFacts) -> RankFacts:
    """Return what rules about ranks ask of a step and rank."""
    calls = list(step.flow.calls())
    return RankFacts(
        step.rank.rank,
        {name: _copy(step, name) for name in step.named},
        batch_of(step),
        step.reduces,
        step.meets_in_forward,
        any(is_collective(call.op) and ("gather" in call.op or "scatter" in call.op) for call in calls),
        next((call.id for call in step.rank.calls.filter(kind="module", phase="forward")), 0),
        next((one.begins.id for one in step.optimizer_steps if one.calls), 0),
        tuple(_drawn(step, calls)),
    )


def batch_of(step: StepFacts) -> tuple[Bits, ...]:
    """Return what outermost modules are given; () where nobody knows."""
    batch = [_bits(step, value) for value in step.batch]
    return () if None in batch else tuple(bits for bits in batch if bits is not None)


def _copy(step: StepFacts, name: str) -> Copy:
    leaf, accumulated = step.named[name]
    applied = step.applied_gradients.get(name) or step.rank.gradients[name]
    read = step.leaves.get(leaf.record.place)
    return Copy(
        tuple(leaf.shape),
        _bits(step, leaf),
        _bits(step, applied),
        applied.numel > 1 and not step.is_zero(applied),
        accumulated if read is None else read[1].id,
        accumulated,
    )


def _bits(step: StepFacts, value: Value) -> Bits | None:
    bits = step.bits(value)
    return None if bits is None else (value.dtype_name, tuple(value.shape), bits)


def _drawn(step: StepFacts, calls: list[Call]) -> list[tuple[str, bytes, int]]:
    states = [(call, call.random_state) for call in calls if call.module and call.id in step.rank.tables.random]
    return [(c.op, xxhash.xxh3_128_digest(state[0].encode() + state[1]), c.id) for c, state in states if state]
