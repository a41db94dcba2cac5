"""A sequence read in parts, with what was read kept, against the whole sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..parts import KEYS, SIZE
from ..tasks import Run, Task

WINDOW, ROOM, PAGE, ROWS = 3, 12, 3, 4
Kept = tuple[Tensor, Tensor, Tensor]  # keys, values, and who sees whom


def seen(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries[:, :, None] >= keys[:, None])[:, None]  # at the mask


class Growing:
    """Keys and values are joined to those before."""

    def __init__(self, on: Run) -> None:
        self.on = on
        self.k = self.v = self.positions = torch.empty(0)

    def add(self, k: Tensor, v: Tensor, positions: Tensor) -> Kept:
        queries = positions
        if self.k.numel():
            if self.on.bug("values joined before"):
                v = torch.cat([v, self.v], 2)
            else:
                v = torch.cat([self.v, v], 2)  # at values joined before
            k, positions = (
                torch.cat([self.k, k], 2),
                torch.cat([self.positions, positions], 1),
            )  # at one cache for both layers, the positions
            if self.on.bug("last word kept twice"):
                k, v = torch.cat([k, k[:, :, -1:]], 2), torch.cat([v, v[:, :, -1:]], 2)
                positions = torch.cat([positions, positions[:, -1:]], 1)
            if self.on.bug("first word dropped"):
                k, v, positions = k[:, :, 1:], v[:, :, 1:], positions[:, 1:]
            if self.on.bug("rows of the cache swapped"):
                k, v = k[[1, 0, 2, 3]], v[[1, 0, 2, 3]]
        self.k, self.v, self.positions = k, v, positions
        return k, v, seen(queries, positions)


class Static:
    """Room for all is made first; what is not written yet is masked."""

    def __init__(self, on: Run) -> None:
        self.on = on
        self.k, self.v = (torch.zeros(ROWS, KEYS, ROOM, SIZE // 4) for _ in range(2))

    def add(self, k: Tensor, v: Tensor, positions: Tensor) -> Kept:
        slots = positions[0]
        if self.on.bug("written one slot early") and k.shape[2] == 1:
            slots = slots - 1
        self.k[:, :, slots] = k  # at one cache for both layers, the positions
        self.v.index_copy_(2, slots - 1 if self.on.bug("values one slot early") and k.shape[2] == 1 else slots, v)
        keys = torch.arange(ROOM)[None]
        if self.on.bug("an empty slot is seen"):
            keys = keys - 1
        if self.on.bug("newest word not seen") and k.shape[2] == 1:
            keys = keys + 1
        return self.k, self.v, seen(positions, keys)


class Paged:
    """Pages of three words in one pool; a table says which pages a row has."""

    def __init__(self, on: Run) -> None:
        self.on = on
        self.table = torch.tensor([[5, 9, 1], [0, 7, 11], [4, 2, 8], [3, 10, 6]])
        self.pool = torch.zeros(12, PAGE, 2, KEYS, SIZE // 4)

    def add(self, k: Tensor, v: Tensor, positions: Tensor) -> Kept:
        at = positions[0]
        table = self.table
        late = bool(at[0] >= PAGE * 2)
        if self.on.bug("two rows share a page") and late:
            table = table.clone()
            table[1, 2] = table[0, 2]
        pages, slots = table[:, at // PAGE], at % PAGE
        if self.on.bug("slot in the page one late") and k.shape[2] == 1:
            slots = (slots + 1) % PAGE
        self.pool[pages, slots] = torch.stack([k, v], 2).permute(
            0, 3, 2, 1, 4
        )  # at two rows share a page, slot in the page one late
        reading = self.table
        if self.on.bug("a stale page") and late:
            reading = torch.cat([self.table[:, :2], self.table[:, :1]], 1)
        if self.on.bug("pages in another order"):
            reading = reading[:, [1, 0, 2]]
        k, v = (
            self.pool[reading].flatten(1, 2).permute(2, 0, 3, 1, 4)
        )  # at a stale page, pages in another order, two rows share a page, slot in the page one late
        ends = positions + 1 if self.on.bug("rest of the page is seen") else positions
        return k, v, seen(ends, torch.arange(k.shape[2])[None])


class Sliding:
    """Room for as many words as are seen; the newest takes the place of the oldest."""

    def __init__(self, on: Run) -> None:
        self.on = on
        self.k, self.v = (torch.zeros(ROWS, KEYS, WINDOW, SIZE // 4) for _ in range(2))
        self.positions = torch.full((1, WINDOW), 1000)

    def add(self, k: Tensor, v: Tensor, positions: Tensor) -> Kept:
        if k.shape[2] > 1:
            self.write(k[:, :, -WINDOW:], v[:, :, -WINDOW:], positions[:, -WINDOW:])
            apart = positions[:, :, None] - positions[:, None]
            near = apart <= WINDOW if self.on.bug("prompt sees one more") else apart < WINDOW
            return k, v, ((apart >= 0) & near)[:, None]
        self.write(k, v, positions)
        apart = positions[:, :, None] - self.positions[:, None]
        if self.on.bug("window one short"):
            return self.k, self.v, ((apart >= 0) & (apart < WINDOW - 1))[:, None]
        return self.k, self.v, (apart >= 0)[:, None]

    def write(self, k: Tensor, v: Tensor, positions: Tensor) -> None:
        slots = positions[0] % WINDOW
        if self.on.bug("takes the place of the next oldest") and k.shape[2] == 1:
            slots = (slots + 1) % WINDOW
        self.k[:, :, slots] = k  # at one cache for both layers, the positions
        self.v[:, :, (slots + 1) % WINDOW if self.on.bug("values in another slot") and len(slots) == 1 else slots] = v
        if not (self.on.bug("places not noted") and k.shape[2] == 1):
            self.positions[:, slots] = positions


class State:
    """What a recurrent layer hands on, and the tail of what its convolution saw."""

    def __init__(self, on: Run) -> None:
        self.on, self.state, self.tail = on, None, None

    def before(self, like: Tensor) -> Tensor:
        """Return the state before, f[..., rows, size]."""
        if self.state is None or self.on.bug("state begins anew"):
            return torch.zeros_like(like)
        return self.state.roll(1, 1) if self.on.bug("state of the next row") else self.state

    def left(self, state: Tensor) -> None:
        if self.on.bug("state of the prompt kept") and self.state is not None:
            return
        self.state = state

    def widened(self, u: Tensor, many: int) -> Tensor:
        tail = u.new_zeros(*u.shape[:2], many) if self.tail is None else self.tail
        if self.on.bug("tail begins anew"):
            tail = torch.zeros_like(tail)
        if self.on.bug("tail of the prompt kept") and self.tail is not None:
            return torch.cat([self.tail, u], 2)
        u = torch.cat([tail, u], 2)
        self.tail = u[:, :, -many:]
        return u


def sequence(on: Run, task: Task) -> None:
    """Read the whole sequence at once."""
    inputs = dict(task.equal[0].inputs)
    with on.steps(task.model) as end_step, torch.no_grad():
        logits = task.model(**inputs)
        end_step()
    on.keep(logits)


def windowed(on: Run, task: Task) -> None:
    task.model.window = WINDOW
    sequence(on, task)


def reading(on: Run, task: Task, make: Callable[[Run], Any], sizes: tuple[int, ...]) -> None:
    """Read parts of a sequence, one after the other."""
    inputs, model = dict(task.equal[0].inputs), task.model
    tokens = inputs["tokens"]
    caches = [make(on), make(on)]
    with on.steps(model) as end_step, torch.no_grad():
        context = model.context(**inputs)
        start, found = 0, []
        for size in sizes:
            part = tokens[:, start : start + size]
            if start and on.bug("the word before is read again"):
                part = tokens[:, start - 1 : start - 1 + size]
            positions = torch.arange(start, start + size)[None]
            if start and on.bug("positions begin anew"):
                positions = positions - start
            if start and on.bug("positions one late"):
                positions = positions + 1
            if start > 4 and on.bug("one cache for both layers"):
                caches = [caches[0], caches[0]]
            logits = model.decode(
                part, positions, caches, **context
            )  # at the word before is read again, positions begin anew, positions one late, one cache for both layers
            found.append(logits)
            start += size
        end_step()
    on.keep(torch.cat(found, 1))


def growing_cache(on: Run, task: Task) -> None:
    reading(on, task, Growing, (4, 1, 1, 1, 1))


def static_cache(on: Run, task: Task) -> None:
    reading(on, task, Static, (4, 1, 1, 1, 1))


def paged_cache(on: Run, task: Task) -> None:
    reading(on, task, Paged, (4, 1, 1, 1, 1))


def sliding_window(on: Run, task: Task) -> None:
    reading(on, task, Sliding, (4, 1, 1, 1, 1))


def states(on: Run, task: Task) -> None:
    reading(on, task, State, (4, 1, 1, 1, 1))


def chunks(on: Run, task: Task) -> None:
    """Read a long prompt in chunks of three."""
    reading(on, task, State if "state" in task.can else Chunked, (3, 3, 2))


class Chunked(Growing):
    def add(self, k: Tensor, v: Tensor, positions: Tensor) -> Kept:
        before = 0 if not self.k.numel() else self.k.shape[2]
        k, v, mask = super().add(k, v, positions)
        if self.on.bug("chunk not causal"):
            mask = torch.ones_like(mask)
        if self.on.bug("earlier chunks hidden") and before:
            mask = mask & (torch.arange(mask.shape[-1]) >= before)
        if self.on.bug("mask of the first chunk") and before:
            mask = torch.ones_like(mask).tril()
        return k, v, mask


KINDS = {
    "a growing cache": (growing_cache, sequence, "cache"),
    "a static cache": (static_cache, sequence, "cache"),
    "a paged cache": (paged_cache, sequence, "cache"),
    "a sliding window": (sliding_window, windowed, "cache window"),
    "states handed on": (states, sequence, "state"),
    "a prompt in chunks": (chunks, sequence, "decode"),
    "a static against a growing cache": (static_cache, growing_cache, "cache"),
}
