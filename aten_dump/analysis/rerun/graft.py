"""Graft: replace a recorded tensor and run the recorded forward on from there.

Theory of operation
    What changes is followed by memory: a storage at a version whose bytes are no longer the recorded ones is
    kept as a buffer. A forward aten call that reads such memory is run again, with these bytes for what changed
    and the recorded ones for the rest; what it returns and writes is laid into buffers of its own. Views need
    no care: they are geometry on a buffer. Calls that read nothing changed are not run. A buffer goes when no
    later call reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...dump import Call, RankDump, Value
from ...errors import FormatError, MissingDataError, ReplayError
from .run_op import Run, leaves, recorded_slots, result_slots, run_call
from .shared_memory import Moment, moment_of, storage_bytes, view_of


@dataclass(frozen=True, slots=True)
class Graft:
    """What would have come out."""

    tensors: dict[str, torch.Tensor]  # results that no later forward op read, and those asked for, by name
    reran: tuple[str, ...]  # names of the calls that ran again, in order
    skipped: tuple[tuple[str, str], ...]  # (name, reason) of calls that could not: their recorded results were taken

    @property
    def complete(self) -> bool:
        """True when every call that reads something changed ran again."""
        return not self.skipped


def graft(
    rank: RankDump,
    substitute: Mapping[str, torch.Tensor],
    *,
    keep: Iterable[str] = (),
    device: torch.device | None = None,
) -> Graft:
    """Run the recorded forward again with some tensors replaced; see `replay`."""
    run = _Graft(rank, device or torch.device("cpu"), list(keep))
    for name, tensor in substitute.items():
        run.substitute(name, tensor)
    return run.run()


@dataclass(slots=True)
class _Pending:
    value: Value
    tensor: torch.Tensor
    first: int  # id of the first call that may read it


@dataclass(slots=True)
class _Outcome:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    reran: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


class _Graft:
    def __init__(self, rank: RankDump, device: torch.device, keep: list[str]) -> None:
        self._rank = rank
        self._device = device
        self._keep = {name: rank.value(name) for name in keep}
        self._pending: list[_Pending] = []
        self._changed: dict[Moment, torch.Tensor] = {}
        self._calls = [call for call in rank.calls if call.kind == "aten" and call.phase == "forward"]
        self._last_read: dict[Moment, int] = {}
        for call in self._calls:
            for _, value in call.input_values():
                self._last_read[moment_of(value)] = call.id
        self._siblings: dict[Moment, list[int]] = {}
        for record in rank.tables.values.records():
            if record.storage:
                self._siblings.setdefault((record.storage, record.version), []).append(record.id)
        self._outcome = _Outcome()

    def substitute(self, name: str, tensor: torch.Tensor) -> None:
        """Note a replacement.

        Raises:
            ReplayError: it does not fit.
        """
        value = self._rank.value(name)
        if tuple(tensor.shape) != tuple(value.shape):
            raise ReplayError(f"{name} has shape {tuple(value.shape)}; the substitute has {tuple(tensor.shape)}")
        if value.storage == 0:
            raise ReplayError(f"{name} is {value!r}, which has no memory of its own to replace")
        call = next(c for c in _callers(self._rank, name) if c is not None)
        if call.phase != "forward":
            raise ReplayError(f"{name} is of phase {call.phase}; only the forward is run again from a substitute")
        producer = value.producer
        is_input = name[len(call.name) + 1 :].startswith("input")
        first = call.id if is_input or producer is None else producer[0].id + 1
        self._pending.append(_Pending(value, tensor.detach().cpu().to(value.dtype), first))

    def run(self) -> Graft:
        for call in self._calls:
            self._begin(call.id)
            read = [moment_of(value) for _, value in call.input_values()]
            if any(moment in self._changed for moment in read):
                self._rerun(call)
            for moment in read:
                if self._last_read[moment] <= call.id and moment not in {moment_of(v) for v in self._keep.values()}:
                    self._changed.pop(moment, None)
        self._begin(None)
        for name, value in self._keep.items():
            buffer = self._changed.get(moment_of(value))
            self._outcome.tensors[name] = value.tensor() if buffer is None else view_of(value, buffer).clone()
        done = self._outcome
        return Graft(done.tensors, tuple(done.reran), tuple(done.skipped))

    def _begin(self, call: int | None) -> None:
        """Put substitutes in place that the call of this id, or none at all, may read."""
        for pending in [p for p in self._pending if call is None or p.first <= call]:
            self._pending.remove(pending)
            self._put(pending.value, pending.tensor, None)

    def _rerun(self, call: Call) -> None:
        if call.outputs is not None and all(value.undefined for _, value in call.output_values()):
            return  # torch.empty_like and the like: they take the shape, not the elements
        try:
            run = run_call(call, device=self._device, known=self._changed)
        except (ReplayError, MissingDataError, FormatError) as error:
            self._outcome.skipped.append((call.name, str(error)))
            return
        self._outcome.reran.append(call.name)
        made: set[Moment] = set()
        finals: dict[int, str] = {}
        results = dict(result_slots(run))
        for slot, value in _written_first(call):
            tensor = results.get(slot)
            if not isinstance(value, Value) or not isinstance(tensor, torch.Tensor) or value.storage == 0:
                continue
            moment = moment_of(value)
            if moment not in self._changed or moment in made:
                made.add(moment)
                self._put(value, tensor.detach().cpu(), self._before(call, value))
            if self._last_read.get(moment, 0) <= call.id and moment in self._changed:
                self._outcome.tensors.pop(finals.get(value.id, ""), None)  # as an output rather than as written
                name = finals[value.id] = f"{call.name}.{slot}"
                self._outcome.tensors[name] = view_of(value, self._changed[moment]).clone()

    def _before(self, call: Call, value: Value) -> torch.Tensor | None:
        """Return the changed bytes of the storage before the call wrote to it."""
        moments = {moment_of(v) for _, v in call.input_values() if v.storage == value.storage}
        return next((self._changed[moment] for moment in moments if moment in self._changed), None)

    def _put(self, value: Value, tensor: torch.Tensor, before: torch.Tensor | None) -> None:
        """Lay a tensor into the bytes of its storage at its version."""
        moment = moment_of(value)
        buffer = self._changed.get(moment)
        if buffer is None and before is not None:
            buffer = before.clone()
        if buffer is None:
            whole = value.numel * value.dtype.itemsize >= value.storage_nbytes
            group = [value] if whole else [self._rank.value_by_id(i) for i in self._siblings[moment]]
            buffer = _blank(value) if whole else storage_bytes(group)
        target = view_of(value, buffer)
        kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride)
        target[kept].copy_(tensor[kept])
        self._changed[moment] = buffer


def _blank(value: Value) -> torch.Tensor:
    return torch.zeros(-(-value.storage_nbytes // 16) * 16, dtype=torch.uint8)


def _written_first(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the results of a call, those that it wrote in place first: they bring the bytes around them along."""
    for name, item in call.mutated_values.items():
        yield from leaves(item, f"mutated.{name}")
    yield from ((slot, item) for slot, item in recorded_slots(call) if slot.startswith("output"))


def _callers(rank: RankDump, name: str) -> Iterator[Call | None]:
    """Yield the call of the longest name that begins `name`."""
    head, dot, _ = name.rpartition(".")
    while dot:
        if head in rank:
            yield rank[head]
        head, dot, _ = head.rpartition(".")


__all__ = ["Graft", "Run", "graft"]
