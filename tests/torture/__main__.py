"""Runs it all and prints the counts: ``python -m tests.torture [--scale 0.05] [--seed 0]``."""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from aten_dump import AtenDumpError, compare, stop_all
from tests.torture import failing
from tests.torture.changing import copied, corrupted, mutated
from tests.torture.flipping import COMMANDS, spoil_and_ask
from tests.torture.foreign import FOREIGN_HARMS, ORIGINALS, spoiled_foreign
from tests.torture.full_disks import MOST_PAGES, PLACES, fill_one, small_disk
from tests.torture.hostile import HARMS
from tests.torture.interrupting import interrupt_one
from tests.torture.killing import kill_one
from tests.torture.looking import look_at, mend, wrong_tensors
from tests.torture.outside import make_outside, nothing_done, state_of

DUMPS = [
    Path(__file__).parents[1] / "golden" / "v1" / name for name in ("full", "killed", "hash", "sample", "statistic")
]
SECONDS = 10
MOST_BYTES = 500_000_000  # of memory that a case may take
KINDS = {
    "killed": 1000,
    "corrupted": 20_000,
    "mutated": 5000,
    "hostile": 300,
    "foreign": 200,
    "interrupted": 5000,
    "failing": 6000,
    "full": 66,
    "flipped": 1500,
}


class Hang(BaseException):
    """Something took longer than it may; no Exception, so that nothing catches it."""


@dataclass(slots=True)
class Counts:
    """What became of the cases of a kind."""

    cases: int = 0
    number: int = 0  # of the case that runs, from the seed on
    tensors: int = 0  # that were read
    wrong: int = 0
    reported: int = 0  # cases in which some reader gave an error of aten_dump, or `verify` named a problem
    untouched: int = 0  # cases after which all beside the dump was as before, and nothing had been run
    bad: list[str] = field(default_factory=list)  # cases with a hang, a traceback, a wrong tensor or too much memory
    most_bytes: int = 0  # of memory that the process had during a case
    seconds: float = 0.0


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise Hang in a block that takes too long: of the processor's time, or, where it waits for something, ten times that."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Hang

    timers = (signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds)
    before = [signal.signal(number, late) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def run(kind: str, count: int, seed: int, folder: Path, seconds: int = SECONDS) -> Counts:
    """Run some cases of a kind; each has a random generator of its own, so that it can be run alone."""
    counts = Counts()
    begun = time.monotonic()
    for number in range(seed, seed + count):
        chance = random.Random(f"{kind} {number}")
        counts.cases += 1
        counts.number = number
        before = peak_bytes(forget=True)
        try:
            _CASES[kind](folder / kind, chance, counts, seconds)
            assert (took := peak_bytes() - before) <= MOST_BYTES, f"took {took} bytes of memory"
        except (Hang, Exception) as error:
            counts.bad.append(f"{kind} {number}: {type(error).__name__}: {error}")
        counts.most_bytes = max(counts.most_bytes, peak_bytes())
        shutil.rmtree(folder / kind, ignore_errors=True)
    counts.seconds = time.monotonic() - begun
    return counts


def peak_bytes(*, forget: bool = False) -> int:
    """Return the most bytes of memory that the process had, since it was last asked to forget where the system can."""
    if forget:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _kill(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    with limited(6 * seconds):
        read, wrong = kill_one(folder, chance)
    counts.tensors += read
    counts.wrong += wrong
    assert not wrong, f"{wrong} of {read} tensors are wrong"


def _interrupt(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with limited(6 * seconds):  # the first of a kind counts its instructions, and torch imports what it needs
            interrupt_one(folder, chance)
    finally:
        stop_all()
        signal.signal(signal.SIGINT, before)


def _fail(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    cases = failing.every_case()
    with limited(6 * seconds):
        counts.reported += failing.fail_one(folder, cases[counts.number % len(cases)])


def _fill(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    place, pages = list(PLACES)[counts.number % 2], counts.number // 2 % (MOST_PAGES + 1)
    with small_disk(folder) as disk, limited(seconds):
        assert disk is not None, "cannot mount a small file system here"
        counts.reported += fill_one(disk, place, pages)


def _flip(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    with warnings.catch_warnings(), limited(3 * len(COMMANDS) * seconds):
        warnings.simplefilter("ignore")
        spoil_and_ask(folder.parent / "flipping", chance)  # beside the case's folder: recorded once for all cases
    counts.reported += 1


def _spoil(how: Callable[[Path, random.Random], object], compared: bool) -> Callable[..., None]:
    def case(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
        original = chance.choice(DUMPS)
        spoiled = copied(original, folder)
        outside = make_outside(folder.parent, DUMPS[1])
        before = state_of(outside)
        said = how(spoiled, chance)
        with warnings.catch_warnings(), limited(seconds):
            warnings.simplefilter("ignore")
            try:
                with nothing_done() as acts:
                    reports = look_at(spoiled, chance)
                counts.reported += bool(reports)
                assert acts == [], f"looking did {acts[:3]}"
                if compared:
                    assert reports or not _other_bytes(original, spoiled), "nothing reports the damage"
                    read, wrong = wrong_tensors(original, spoiled)
                    counts.tensors += read
                    counts.wrong += len(wrong)
                    assert not wrong, f"wrong tensors: {wrong[:3]}"
                with nothing_done(files=False) as acts:
                    mend(spoiled)
                assert acts == [], f"recovering did {acts[:3]}"
                assert state_of(outside) == before, "something beside the dump was changed"
                counts.untouched += 1
            except BaseException as error:
                error.args = (f"{said}: {error}",)
                raise

    return case


def _other_bytes(original: Path, spoiled: Path) -> list[Path]:
    """Return the files of a spoiled dump that differ; of `run.json`, which had no checksum then, what json cannot read."""
    differ = []
    for file in original.rglob("*"):
        other = spoiled / file.relative_to(original)
        if file.is_file() and other.read_bytes() != file.read_bytes() and not _is_json(other):
            differ.append(other)
    return differ


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return file.name == "run.json"


def spoil_foreign(folder: Path, chance: random.Random, counts: Counts, seconds: int, name: str = "") -> None:
    """Spoil a dump of another tool's, by the harm of a name or by chance, and look at it and compare it."""
    original, harm = FOREIGN_HARMS[name] if name else (chance.choice(ORIGINALS), None)
    spoiled = copied(original, folder)
    said = harm(spoiled, chance) if harm else spoiled_foreign(spoiled, original, chance)
    with warnings.catch_warnings(), limited(seconds):
        warnings.simplefilter("ignore")
        try:
            with nothing_done() as acts:
                errors = look_at(spoiled, chance)
                with suppress(AtenDumpError):
                    compare(spoiled, original)
            assert acts == [], f"looking did {acts[:3]}"
            counts.reported += bool(errors)
            counts.untouched += 1
        except BaseException as error:
            error.args = (f"{name or said}: {error}",)
            raise


def _foreign(folder: Path, chance: random.Random, counts: Counts, seconds: int) -> None:
    spoil_foreign(folder, chance, counts, seconds, chance.choice(("", "", chance.choice(list(FOREIGN_HARMS)))))


@contextmanager
def warmed_up() -> Iterator[None]:
    """Import what the first look at a dump imports, which no case is to be charged with; nor is a search of it for garbage."""
    look_at(DUMPS[0], random.Random(0))
    compare(ORIGINALS[0], ORIGINALS[0])
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _harm(dump: Path, chance: random.Random) -> str:
    name = chance.choice(list(HARMS))
    HARMS[name](dump, chance)
    return name


_CASES: dict[str, Callable[..., None]] = {
    "killed": _kill,
    "interrupted": _interrupt,
    "failing": _fail,
    "full": _fill,
    "flipped": _flip,
    "corrupted": _spoil(corrupted, compared=True),
    "mutated": _spoil(mutated, compared=False),
    "hostile": _spoil(_harm, compared=False),
    "foreign": _foreign,
}


def main() -> int:
    """Print a line for each kind, and what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    arguments = parser.parse_args()
    bad = 0
    with warmed_up(), tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            counts = run(kind, round(KINDS[kind] * arguments.scale), arguments.seed, Path(folder))
            print(
                f"{kind}: {counts.cases} cases, {counts.reported} reported, {counts.tensors} tensors read, "
                f"{counts.wrong} wrong, {len(counts.bad)} bad, {counts.untouched} seen to touch nothing outside; "
                f"{counts.seconds:.0f} s, at most {counts.most_bytes // 1_000_000} MB",
                flush=True,
            )
            print(*counts.bad, sep="\n")
            bad += len(counts.bad)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
