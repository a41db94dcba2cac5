"""Record a case beside its baseline, compare and replay it as a user would, and say what the tool made of it."""

from __future__ import annotations

import re
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from aten_dump import AtenDumpError, DumpConfig, DumpMode, RankDump, compare, open_dump, replay
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evidence.findings import Finding
from aten_dump.analysis.nonfinite.search import find_nonfinite
from aten_dump.analysis.replay import Replay
from tests.analysis.held_out.devices import PRECISE, SPLIT, Device

from .calls_in_forward import BEGIN, END, Rewriting
from .cases import Case
from .forms import ARRANGEMENTS, FORMS
from .kernels import WrongKernel
from .loop_slips import LOOP_SLIPS
from .programs import PROGRAMS
from .slips import SLIPS
from .training import STEPS, Training

Outcome = Literal[
    "call",
    "reader",
    "module",
    "agrees",
    "elsewhere",
    "missed",
    "alarm",
    "crash",
    "contradiction",
    "no effect",
    "incomparable",
]
RIGHT = ("call", "reader", "module", "agrees")
_NEAR: tuple[Outcome, ...] = ("call", "reader", "module", "elsewhere")
_EFFECT = 1e-5  # relative: what changes less may be rounding


@dataclass(frozen=True)
class Said:
    """What came of a case."""

    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Recording:
    path: Path
    ends: list[Tensor]


class Baselines:
    """Recordings of the unchanged programs; the last one is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: tuple[tuple[str, str], Recording] | None = None

    def of(self, case: Case) -> Recording:
        wanted = case.program, case.baseline
        if self._kept is None or self._kept[0] != wanted:
            path = self._folder / "baseline"
            shutil.rmtree(path, ignore_errors=True)
            self._kept = wanted, record(PROGRAMS[case.program].on(case.baseline), path)
        return self._kept[1]


def record(training: Training, path: Path, device: AbstractContextManager[Any] | None = None) -> Recording:
    torch.set_num_threads(training.threads)
    with device or nullcontext(), DumpMode(DumpConfig(path=str(path), data="tensor"), model=training.model) as dump:
        ends = training.run(dump.step)
    torch.set_num_threads(1)
    return Recording(path, ends + training.left())


def examine(case: Case, folder: Path, baselines: Baselines) -> Said:
    """Say what the tool makes of a case."""
    baseline = baselines.of(case)
    path = folder / "target"
    shutil.rmtree(path, ignore_errors=True)
    training = PROGRAMS[case.program].on(case.target)
    device, guilty = prepare(case, training)
    try:
        target = record(training, path, device)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return Said("no effect", f"the changed program ends in an error: {_short(error)}")
    wrong_kernel = isinstance(device, WrongKernel)
    if wrong_kernel and not device.changed:  # type: ignore[union-attr]
        return Said("no effect", "the kernel's result is what it was")
    if case.group == "bug" and not differs(target.ends, baseline.ends):
        return Said("no effect", "losses, gradients and weights are what they were")
    try:
        found = compare(path, baseline.path)
        dump = open_dump(path)
        ranks = [dump.step(step).rank(0) for step in dump.steps if step < STEPS]
        return judge(case, guilty, found, [replay(ranks[0])], ranks)
    except (AtenDumpError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        return Said("crash", _short(error))


def prepare(case: Case, training: Training) -> tuple[Any, str]:
    """Change a program as the case says; return the device it runs on, and who is guilty where that is known before."""
    if case.of == "call":
        training.forward = lambda: Rewriting(SLIPS[case.operator], case.number, marks=True)
    elif case.of == "form":
        training.forward = lambda: Rewriting(FORMS[case.operator], None, marks=False)
    elif case.of == "loop":
        guilty = LOOP_SLIPS[case.operator].change(training)
        assert guilty is not None, case
        return None, guilty
    elif case.of == "arrangement":
        assert ARRANGEMENTS[case.operator].change(training), case
    elif case.of == "device" and case.target == "cpu":
        return Device(SPLIT if case.operator.startswith("split") else PRECISE), ""
    elif case.of == "kernel":
        return WrongKernel(case.op, case.number, case.operator), rf"\|(Aten|NPU)\.{case.op}\.{case.number}\."
    return None, ""


def differs(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Return True if the ends of two runs differ by more than rounding."""
    if len(ours) != len(theirs):
        return True
    for one, two in zip(ours, theirs, strict=True):
        if one.shape != two.shape:
            return True
        off, size = (one.double() - two.double()).norm(), two.double().norm()
        if off.isnan() != size.isnan() or off > _EFFECT * size + 1e-12:
            return True
    return False


# -- what is right ------------------------------------------------------------------------------------------------------


def judge(case: Case, guilty: str, found: Comparison, replays: list[Replay], ranks: list[RankDump]) -> Said:
    """Hold what compare, replay and nonfinite say against who is guilty."""
    cause = found.cause
    suspects = [suspect for replayed in replays for suspect in replayed.suspects]
    odd = [event for rank in ranks for event in find_nonfinite(rank).producers]
    text = f"{found.verdict}: {'-' if cause is None else _told(cause)}"
    text += f"; replay: {suspects[0].name} x{suspects[0].ratio:.3g}" if suspects else ""
    text += f"; nonfinite: {odd[0].name}" if odd else ""
    if _contradict(case, guilty, found, replays, [event.name for event in odd]):
        return Said("contradiction", text)
    if case.group == "honest":
        return Said("agrees" if found.exit_code == 0 and not suspects else "alarm", text)
    if found.exit_code == 0 or (cause is None and found.exit_code != 1):
        return Said("missed", text)
    if cause is None:
        return Said("elsewhere", text)
    if guilty:
        return Said("call" if re.search(guilty, _told(cause)) else "elsewhere", text)
    step = next((rank for rank in ranks if rank.step == cause.row.place.step), ranks[0])
    near = _nearness(cause, step)
    return Said("call" if near == "elsewhere" and _stands_there(found, step) else near, text)


def _contradict(case: Case, guilty: str, found: Comparison, replays: list[Replay], odd: list[str]) -> bool:
    """Return True if one of compare, replay and nonfinite passes what another one flags."""
    suspects = [suspect.name for replayed in replays for suspect in replayed.suspects]
    if case.group == "bug":
        return bool(suspects)  # each op does what it is to do
    if case.group == "honest":
        return found.exit_code == 0 and bool(suspects or set(odd) - set(_odd_in(found.baseline)))
    if found.cause is None:
        return False
    skipped = [f"|{call.name}" for replayed in replays for call in replayed.skipped]
    unseen = not suspects and any(re.search(guilty, call) for call in skipped)
    if not unseen and not (suspects and re.search(guilty, f"|{suspects[0]}")):
        return True
    return found.cause.kind == "nonfinite" and not (odd and re.search(guilty, f"|{odd[0]}"))


def _odd_in(path: str) -> list[str]:
    dump = open_dump(path)
    return [event.name for step in dump.steps for event in find_nonfinite(dump.rank(step, 0)).producers]


def _told(cause: Finding) -> str:
    place = cause.row.place
    return f"{place.step}|{cause.kind}|{place.call}|{place.module}|{place.phase}"


def _nearness(cause: Finding, rank: RankDump) -> Outcome:
    """Return how near to a slip, which is between two marks, the named call is."""
    ids = [mark.call.id for mark in rank.marks if mark.text in (BEGIN, END)]
    found = [_near(cause, rank, begun, ended) for begun, ended in zip(ids[::2], ids[1::2], strict=False)]
    return min(found, key=_NEAR.index, default="elsewhere")


def _near(cause: Finding, rank: RankDump, begun: int, ended: int) -> Outcome:
    place = cause.row.place
    call = None if cause.row.target is None else rank.find(cause.row.target.id)
    if call is not None:
        calls = [call] if call.forward is None else [call, call.forward]
        if any(begun < one.id < ended for one in calls):
            return "call"
        made = {value.id for c in rank.calls if begun < c.id < ended for _, value in c.result_values()}
        read = {value.id for _, value in call.input_values()}
        if call.forward is not None:
            read |= {value.id for _, value in (*call.forward.input_values(), *call.forward.result_values())}
        if made & read:
            return "reader"
    mark = rank.find(begun)
    assert mark is not None
    return "module" if place.module == mark.module != "" else "elsewhere"


def _stands_there(found: Comparison, rank: RankDump) -> bool:
    """Return True if a call that the target lacks stood in the baseline where the slip is in the target."""
    first = found.first
    if first is None or first[1].row.target is not None:
        return False
    missing = first[1].row.place.id
    names = {baseline: target for target, baseline in first[0].paired.items()}
    theirs = open_dump(found.baseline).step(rank.step).rank(0)
    pairs = [(call.id, names[call.name]) for call in theirs.calls if call.name in names]
    before = [name for number, name in pairs if number < missing][-1:]
    after = [name for number, name in pairs if number > missing][:1]
    begun, ended = [mark.call.id for mark in rank.marks if mark.text in (BEGIN, END)][:2]
    low = rank[before[0]].id if before else 0
    high = rank[after[0]].id if after else rank.calls[-1].id
    return low < ended and begun < high and high - low < 40


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
