"""The cases of the trial: operators combined with programs, by a seed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from .calls_in_forward import Rewriting, Slip
from .forms import ARRANGEMENTS, FORMS
from .kernels import KERNEL_SLIPS, WrongKernel
from .loop_slips import LOOP_SLIPS
from .programs import PROGRAMS
from .slips import SLIPS
from .training import Program

Group = Literal["bug", "kernel", "honest"]
CALL_SLIPS, LOOPS, KERNELS, HONEST = 6, 3, 4, 6  # cases for each program
DRAW_THERE = frozenset(  # draw random numbers on their device, other ones than the CPU
    ("bart", "diffusion unet", "mixer", "two towers", "graph attention", "vae")
)


@dataclass(frozen=True)
class Case:
    """One operator on one program. `number` says which of the places where it applies."""

    program: str
    group: Group
    operator: str
    of: Literal["call", "loop", "kernel", "form", "arrangement", "device"]
    number: int = 0
    op: str = ""  # of a kernel
    target: str = "cpu"  # the devices of the two sides
    baseline: str = "cpu"

    @property
    def half(self) -> int:
        return PROGRAMS[self.program].half

    def __str__(self) -> str:
        at = (
            f" in {self.op}.{self.number}" if self.of == "kernel" else f" at {self.number}" if self.of == "call" else ""
        )
        where = "" if self.target == "cpu" else f", {self.target} against {self.baseline}"
        return f"{self.program}: {self.operator}{at}{where}"


def _lot(*words: object) -> random.Random:
    """Return a lot of its own for some words, so that other cases leave it as it is."""
    return random.Random(zlib.crc32(" ".join(map(str, words)).encode()))


@cache
def _places(program: str, table: Literal["slips", "forms"]) -> dict[str, int]:
    """Return how many calls of the forward pass each operator applies to."""
    found = {}
    for name, slip in (SLIPS if table == "slips" else FORMS).items():
        found[name] = _count(PROGRAMS[program], slip)
    return found


def _count(program: Program, slip: Slip) -> int:
    counting = Rewriting(slip, -1, marks=False)
    training = program.build()
    with counting:
        training.loss(training.model, training.batches[0])
    return counting.seen


@cache
def _kernels(program: str, device: str) -> list[tuple[str, int]]:
    """Return the calls of one step that compute, one of each kind of op first."""
    counting = WrongKernel()
    training = PROGRAMS[program].on(device)
    training.batches = training.batches[:1]
    with counting:
        training.run(lambda: None)
    return counting.sites


def of_program(name: str) -> Iterator[Case]:
    """Yield the cases of one program."""
    lot = _lot(name, "slips")
    places = {slip: count for slip, count in _places(name, "slips").items() if count}
    for slip in lot.sample(sorted(places), min(CALL_SLIPS, len(places))):
        yield Case(name, "bug", slip, "call", lot.randrange(places[slip]))
    lot = _lot(name, "loop")
    loops = [slip for slip, loop in LOOP_SLIPS.items() if loop.change(PROGRAMS[name].build()) is not None]
    for slip in lot.sample(loops, min(LOOPS, len(loops))):
        yield Case(name, "bug", slip, "loop")
    yield from _wrong_kernels(name, "cpu")
    yield from _honest(name)


def _wrong_kernels(name: str, device: str) -> Iterator[Case]:
    lot = _lot(name, "kernels")
    sites = _kernels(name, device)
    ops = sorted({op for op, _ in sites})
    for op in lot.sample(ops, min(KERNELS, len(ops))):
        number = lot.choice([n for other, n in sites if other == op])
        slip = lot.choice(sorted(KERNEL_SLIPS))
        yield Case(name, "kernel", slip, "kernel", number, op, target=device, baseline=device)


def _honest(name: str) -> Iterator[Case]:
    lot = _lot(name, "honest")
    yield Case(name, "honest", lot.choice(["split kernels", "precise kernels"]), "device")
    forms = [form for form, count in _places(name, "forms").items() if count]
    others = [n for n, other in ARRANGEMENTS.items() if other.change(PROGRAMS[name].build())]
    chosen = lot.sample(forms, min(2, len(forms)))
    yield from (Case(name, "honest", form, "form") for form in chosen)
    for other in lot.sample(others, min(HONEST - 1 - len(chosen), len(others))):
        yield Case(name, "honest", other, "arrangement")


def on_device(name: str, device: str) -> Iterator[Case]:
    """Yield the cases of one program on a device: wrong kernels, the first against the CPU, and the CPU as a baseline."""
    other = device if name in DRAW_THERE else "cpu"
    for number, case in enumerate(_wrong_kernels(name, device)):
        yield replace(case, baseline=device if number else other)
    if other != device:
        yield Case(name, "honest", "other device", "device", target=device)
    yield Case(name, "honest", "itself", "arrangement", target=device, baseline=device)


def cases(
    words: Sequence[str] = (), programs: Sequence[str] = (), sample: int = 1, seed: int = 0, device: str = "cpu"
) -> Iterator[Case]:
    """Yield the cases of some programs, or all, whose text has all of the words; with `sample` one in so many, drawn by a seed."""
    for name in programs or PROGRAMS:
        lot = _lot(name, seed)
        for case in of_program(name) if device == "cpu" else on_device(name, device):
            drawn = lot.randrange(sample) == 0
            if drawn and all(word in f"{case.group} {case.of} {case}" for word in words):
                yield case


def drawn_of(program: str) -> Case:
    """Return one of the cases of a program, drawn by a seed."""
    return _lot(program, "ci", 8).choice(list(of_program(program)))
