"""What two recorded runs differ in beside the program: settings, data, model, versions; what matters most comes first.

Theory of operation
    ``run.json`` says what ran where, and the recorded steps say what it ran with: hyperparameters, batches, random
    states, modules and parameters. Each is compared as it was recorded; where one side does not say, nothing is told
    to differ. Aspects have an order: what is another function or another input comes before what is another rounding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..dump import Dump, RankDump, open_dump
from ..plain_text import without_secrets
from .checks.memory_rules import same_elements
from .facts.hyperparameters import optimizers_otherwise
from .facts.modes import modules_otherwise

_MOST_NAMED: Final = 5
_ABSENT: Final = "not set"
_VERSIONS: Final = ("torch", "torch_npu", "torch-npu")  # packages whose kernels run
# Settings of the recording that say nothing of the program.
_RECORDING: Final = frozenset(("path", "overwrite"))
Pair = tuple[RankDump, RankDump]
Given = str | os.PathLike[str] | Dump


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two runs differ."""

    aspect: str  # "hyperparameters", "data", "packages", ...
    name: str  # what differs: a parameter group, a package, a variable
    target: str
    baseline: str
    text: str  # the same in words


@dataclass(frozen=True, slots=True)
class Environments:
    """What two runs differ in, most relevant first, and what one of them does not say."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; ``docs/json/env-compare.schema.json`` describes them."""
        return {"schema": 1, **asdict(self)}


def compare_environments(
    target: str | os.PathLike[str] | Dump, baseline: str | os.PathLike[str] | Dump
) -> Environments:
    """Return what two recorded runs differ in beside the program.

    Args:
        target: a dump.
        baseline: the dump that it is held against.

    Raises:
        MissingDataError, FormatError, StoreError: a dump cannot be read.
    """
    sides = tuple(one if isinstance(one, Dump) else open_dump(one) for one in (target, baseline))
    pairs = _common_ranks(*sides)
    found: list[Difference] = []
    unknown: list[str] = [] if pairs else ["steps: the dumps have no step and rank in common"]
    for aspect, compare in _OF_STEPS:
        found += _once(one for pair in pairs for one in compare(aspect, pair))
    unknown += _unknown_of_steps(pairs)
    for aspect, member, names in _OF_RUNS:
        ours, theirs = (_named(aspect, run.run.get(member)) for run in sides)
        if ours is None or theirs is None:
            unknown.append(f"{aspect}: {'the target' if ours is None else 'the baseline'} does not say")
            continue
        both = {name for name in (*ours, *theirs) if names is None or (name in _VERSIONS) is names}
        for name in sorted(both):
            if ours.get(name, _ABSENT) != theirs.get(name, _ABSENT):
                found.append(_difference(aspect, name, ours.get(name, _ABSENT), theirs.get(name, _ABSENT)))
    return Environments(tuple(found), tuple(unknown))


def describe_environment(dump: Given) -> Iterator[str]:
    """Yield what a dump says of the run beside the program, a line each."""
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    for aspect, member, names in _OF_RUNS:
        for name, text in (_named(aspect, opened.run.get(member)) or {}).items():
            if names is None or (name in _VERSIONS) is names:
                yield f"{aspect}: {name} {text}" if name != aspect else f"{aspect}: {text}"
    for rank in opened.all_ranks()[:1]:
        yield from (f"hyperparameters: {group}" for group in rank.optimizers)


# -- what run.json says -----------------------------------------------------------------------------------------------


# Aspect, member of run.json, and of packages whether those of torch or the others; in order of relevance.
_OF_RUNS: Final[tuple[tuple[str, str, bool | None], ...]] = (
    ("seed", "seed", None),
    ("torch", "packages", True),
    ("devices", "devices", None),
    ("switches", "computing", None),
    ("ranks", "world_size", None),
    ("threads", "threads", None),
    ("variables", "variables", None),
    ("packages", "packages", False),
    ("python", "python", None),
    ("platform", "platform", None),
    ("command", "command", None),
    ("recorder", "recorder", None),
    ("recording", "config", None),
)


def _named(aspect: str, found: Any) -> dict[str, str] | None:
    """Return a member of run.json as texts by name; None where it is not there."""
    if found is None:
        return None
    if isinstance(found, dict):
        shown = {str(name): _text(item) for name, item in found.items()}
        if aspect == "variables":  # the file may be of another writer
            shown = {name: without_secrets([f"{name}={text}"])[0].partition("=")[2] for name, text in shown.items()}
        return {name: text for name, text in shown.items() if aspect != "recording" or name not in _RECORDING}
    if aspect == "command" and isinstance(found, list):
        return {aspect: " ".join(without_secrets(map(str, found)))}
    return {aspect: _text(found)}


def _text(item: Any) -> str:
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, list):
        return ", ".join(map(_text, item))
    return item if isinstance(item, str) else json.dumps(item)


def _difference(aspect: str, name: str, target: str, baseline: str) -> Difference:
    of = "" if name == aspect else f"{name} "
    return Difference(aspect, name, target, baseline, f"{aspect}: {of}{target}, in the baseline {baseline}")


# -- what the recorded steps say ---------------------------------------------------------------------------------------


def _common_ranks(target: Dump, baseline: Dump) -> list[Pair]:
    return [
        (rank.anew(), baseline.rank(rank.step, rank.rank).anew())
        for rank in target.all_ranks()
        if rank.step in baseline.steps and rank.rank in baseline.step(rank.step).ranks
    ]


def _once(found: Iterator[Difference]) -> list[Difference]:
    """Return differences, those of one name once: with the first step and rank where they are."""
    return list({one.name: one for one in reversed([*found])}.values())[::-1]


def _at(pair: Pair) -> str:
    return f"step {pair[0].step} rank {pair[0].rank}"


def _hyperparameters(aspect: str, pair: Pair) -> Iterator[Difference]:
    for clause in optimizers_otherwise(*pair):
        name = clause.partition(":")[0]
        yield Difference(aspect, name, "", "", f"{aspect} at {_at(pair)}: {clause}")
    ours, theirs = ({group.name for group in rank.optimizers} for rank in pair)
    if ours != theirs:
        one, other = (", ".join(sorted(some)) or "none" for some in (ours, theirs))
        yield Difference(aspect, "groups", one, other, f"{aspect} at {_at(pair)}: {one}, in the baseline {other}")
    ours_scaled, theirs_scaled = (_scaling(rank) for rank in pair)
    for name in ours_scaled:
        one, other = ours_scaled[name], theirs_scaled.get(name, "none")
        if one != other:
            text = f"{aspect} at {_at(pair)}: gradient scaler: {name} {one}, in the baseline {other}"
            yield Difference(aspect, f"gradient scaler {name}", one, other, text)


def _scaling(rank: RankDump) -> dict[str, str]:
    """Return what a gradient scaler multiplies the loss by, and how it adapts that."""
    used = next(iter(rank.loss_scales), None)
    found = {"scale": "none" if used is None or used.scale is None else f"{used.scale:g}"}
    names, args = ([], ()) if used is None else (used.call.arguments, used.call.inputs[0])
    adapts = {name: given for name, given in zip(names, args, strict=False) if isinstance(given, int | float)}
    return found | {name.removeprefix("scale_"): f"{given:g}" for name, given in adapts.items()}


def _batches(aspect: str, pair: Pair) -> Iterator[Difference]:
    ours, theirs = (_given(rank) for rank in pair)
    apart = [at for at, both in enumerate(zip(ours, theirs, strict=False)) if same_elements(*both) is False]
    if apart or (len(ours) != len(theirs) and ours and theirs):
        shapes = [f"{v.dtype_name}{list(v.shape)}" for v in ours[:_MOST_NAMED]]
        text = f"{aspect} at {_at(pair)}: the model is given another batch ({', '.join(shapes)})"
        yield Difference(aspect, "batch", "", "", text)


def _given(rank: RankDump) -> list[Any]:
    """Return the tensors that outermost modules are given."""
    calls = (c for c in rank.calls.filter(kind="module", phase="forward") if c.parent is None)
    return [value for call in calls for _, value in call.input_values()]


def _random_states(aspect: str, pair: Pair) -> Iterator[Difference]:
    drawn = [[rank.call(number) for number in sorted(rank.tables.random)] for rank in pair]
    for one, other in zip(*drawn, strict=False):
        if one.random_state != other.random_state:
            text = f"{aspect} at {_at(pair)}: {one.name} draws from another state: another seed, or other draws before"
            yield Difference(aspect, "generator", "", "", text)
            return


def _models(aspect: str, pair: Pair) -> Iterator[Difference]:
    for clause in modules_otherwise(*pair):
        yield Difference(aspect, clause.partition(":")[0], "", "", f"{aspect} at {_at(pair)}: {clause}")
    for what, of in (("module", _classes), ("parameter", _parameters), ("argument", _settings), ("result", _results)):
        ours, theirs = (of(rank) for rank in pair)
        for name in [*ours, *(one for one in theirs if one not in ours)]:
            target, baseline = ours.get(name, "none"), theirs.get(name, "none")
            if target != baseline:
                if what in ("argument", "result") and "none" in (target, baseline):
                    continue  # of other modules, which are named already
                of_what = f"{what} {name or 'the model itself'}"
                text = f"{aspect} at {_at(pair)}: {of_what} is {target}, in the baseline {baseline}"
                yield Difference(aspect, of_what, target, baseline, text)


def _classes(rank: RankDump) -> dict[str, str]:
    return {call.module: call.op for call in rank.calls.filter(kind="module", phase="forward")}


def _settings(rank: RankDump) -> dict[str, str]:
    """Return what functions in modules are called with beside tensors and sizes: p of a dropout, eps of a norm."""
    found: dict[str, str] = {}
    for call in rank.calls.filter(kind="aten", phase="forward"):
        if call.module:
            args, kwargs = call.inputs
            given = [*zip(call.arguments, args, strict=False), *kwargs.items()]
            place = f"{call.op.removeprefix('aten::')} in module {call.module}"
            for name, item in given:
                if isinstance(item, float) or (isinstance(item, bool) and name != "train"):
                    found.setdefault(f"{name} of {place}", str(item))
    return found


def _results(rank: RankDump) -> dict[str, str]:
    """Return in which dtypes modules give their results: autocast shows there."""
    calls = rank.calls.filter(kind="module", phase="forward")
    return {f"of module {c.module}": ", ".join(v.dtype_name for _, v in c.output_values()) for c in calls if c.module}


def _parameters(rank: RankDump) -> dict[str, str]:
    return {name: f"{value.dtype_name}{list(value.shape)}" for name, value in sorted(rank.gradients.items())}


def _unknown_of_steps(pairs: list[Pair]) -> Iterator[str]:
    if pairs and not any(value.has_data or value.hash for value in _given(pairs[0][0])):
        yield 'data: neither bytes nor hashes of batches were recorded; DumpConfig(data="hash") would'


_OF_STEPS: Final[tuple[tuple[str, Callable[[str, Pair], Iterator[Difference]]], ...]] = (
    ("hyperparameters", _hyperparameters),
    ("data", _batches),
    ("model", _models),
    ("random numbers", _random_states),
)
