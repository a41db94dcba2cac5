"""What two recorded runs differ in beside the program: settings, data, model, versions; what matters most comes first.

Theory of operation
    ``run.json`` says what ran where, and the recorded steps say what it ran with: hyperparameters, batches, random
    states, modules and parameters. Each is compared as it was recorded; where one side does not say, nothing is said
    to differ. Aspects have an order: what is another function or another input comes before what is another rounding.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..dump import Call, Dump, RankDump, Value, open_dump
from ..plain_text import without_secrets
from .checks.memory_rules import same_elements
from .facts.batch import batch_of
from .facts.hyperparameters import optimizers_otherwise
from .facts.modes import modules_otherwise

_MOST_NAMED: Final = 5
_ABSENT: Final = "not set"
_VERSIONS: Final = ("torch", "torch_npu", "torch-npu")  # packages whose kernels run
# Settings of the recording that say nothing of the program.
_RECORDING: Final = frozenset(("path", "overwrite"))
_OF_THE_MODE: Final = frozenset(("train", "training"))  # arguments: modules in evaluation are named already
_MODULE: Final = "module "
# Files of torch through which its functions are called.
_BEFORE_OPS: Final = ("torch/overrides.py", "torch/_tensor.py", "torch/nn/functional.py")
_MISSED: Final = ("module", "parameter")  # they count where one side lacks them, too
Pair = tuple[RankDump, RankDump]
Given = str | os.PathLike[str] | Dump
Named = dict[tuple[str, str], str]  # by what it is and where


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
        found += _once(one for pair in pairs for one in compare(aspect, pair, pairs))
    unknown += _unknown_of_steps(pairs)
    for aspect, member, names in _OF_RUNS:
        ours, theirs = (_named(aspect, run.run.get(member)) for run in sides)
        if ours is None or theirs is None:
            unknown.append(f"{aspect}: {'the target' if ours is None else 'the baseline'} does not say")
            continue
        both = {name for name in (*ours, *theirs) if names is None or (name in _VERSIONS) is names}
        for name in sorted(both):
            one, other = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
            # A variable that is a switch of torch as well is named once.
            is_named = any((d.name, d.target, d.baseline) == (name, one, other) for d in found)
            if one != other and not is_named:
                found.append(_difference(aspect, name, one, other))
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


def _hyperparameters(aspect: str, pair: Pair, pairs: list[Pair]) -> Iterator[Difference]:
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


def _batches(aspect: str, pair: Pair, pairs: list[Pair]) -> Iterator[Difference]:
    counts = [len(_outermost(rank)) for rank in pair]
    if counts[0] != counts[1] and all(counts):
        text = f"{aspect} at {_at(pair)}: the model is called {counts[0]} times in a step, in the baseline {counts[1]}"
        yield Difference(aspect, "calls of the model", str(counts[0]), str(counts[1]), text)
    ours, theirs = (batch_of(rank) for rank in pair)
    if not _are_other(ours, theirs):
        return
    shapes = [", ".join(map(_type, some[:_MOST_NAMED])) for some in (ours, theirs)]
    if shapes[0] != shapes[1] and counts[0] == counts[1]:
        text = f"the model is given {shapes[0]}, in the baseline {shapes[1]}"
    else:
        text = f"the model is given another batch ({shapes[0]}){_of_another_step(ours, pair, pairs)}"
    yield Difference(aspect, "batch", shapes[0], shapes[1], f"{aspect} at {_at(pair)}: {text}")


def _are_other(ours: list[Value], theirs: list[Value]) -> bool:
    apart = any(same_elements(*both) is False for both in zip(ours, theirs, strict=False))
    return apart or (len(ours) != len(theirs) and bool(ours and theirs))


def _of_another_step(ours: list[Value], pair: Pair, pairs: list[Pair]) -> str:
    """Return that the baseline has this batch in another of its recorded steps: the order of the data is another."""
    for _, baseline in pairs:
        if baseline.rank != pair[1].rank or baseline.step == pair[1].step:
            continue
        theirs = batch_of(baseline)
        equal = [same_elements(*both) for both in zip(ours, theirs, strict=False)]
        if len(ours) == len(theirs) and equal and all(equal):
            return f", that of step {baseline.step} in the baseline: the order is another"
    return ""


def _outermost(rank: RankDump) -> list[Call]:
    return [call for call in rank.calls.filter(kind="module", phase="forward") if call.parent is None]


def _weights(aspect: str, pair: Pair, pairs: list[Pair]) -> Iterator[Difference]:
    """Yield which modules begin with other contents, at the first step: later ones differ by what was before."""
    if not _is_first(pair, pairs):
        return
    ours, theirs = (_held_by_modules(rank) for rank in pair)
    both = {key: (value, theirs[key]) for key, value in ours.items() if key in theirs}
    alike = {key: two for key, two in both.items() if _type(two[0]) == _type(two[1])}
    apart = dict.fromkeys(module for (module, _), two in alike.items() if same_elements(*two) is False)
    if apart:
        many = f"modules {_some(apart)} begin" if len(apart) > 1 else f"module {_some(apart)} begins"
        text = f"{aspect} at {_at(pair)}: {many} with other parameters or buffers than in the baseline"
        yield Difference(aspect, "contents", "", "", text)


def _is_first(pair: Pair, pairs: list[Pair]) -> bool:
    return not any(one.step < pair[0].step and one.rank == pair[0].rank for one, _ in pairs)


def _type(value: Value) -> str:
    return f"{value.dtype_name}{list(value.shape)}"


def _held_by_modules(rank: RankDump) -> dict[tuple[str, int], Value]:
    """Return the tensors from before the step that ops in modules read first, by module, in order."""
    given = {value.storage for value in batch_of(rank)}
    found: dict[tuple[str, int], Value] = {}
    count: Counter[str] = Counter()
    for call in rank.calls.filter(kind="aten", phase="forward"):
        for _, value in call.input_values() if call.module else ():
            if value.from_outside and value.version == 0 and value.storage not in given:
                found[call.module, count[call.module]] = value
                count[call.module] += 1
    return found


def _random_states(aspect: str, pair: Pair, pairs: list[Pair]) -> Iterator[Difference]:
    drawn = [[rank.call(number) for number in sorted(rank.tables.random)] for rank in pair]
    for one, other in zip(*drawn, strict=False):
        if one.random_state != other.random_state:
            text = f"{aspect} at {_at(pair)}: {one.name} draws from another state: another seed, or other draws before"
            yield Difference(aspect, "generator", "", "", text)
            return


def _models(aspect: str, pair: Pair, pairs: list[Pair]) -> Iterator[Difference]:
    for clause in modules_otherwise(*pair):
        yield Difference(aspect, clause.partition(":")[0], "", "", f"{aspect} at {_at(pair)}: {clause}")
    settings = _settings if _is_first(pair, pairs) else _settings_of_modules
    for of in (_classes, _parameters, settings, _results):
        for name, one, other in _otherwise(*(of(rank) for rank in pair)):
            text = f"{aspect} at {_at(pair)}: {name}: {one}, in the baseline {other}"
            yield Difference(aspect, name, one, other, text)
    of_ops = {"ops of the model": _ops, "ops of activation checkpointing": _ops_again}
    if len({frozenset(_classes(rank).values()) for rank in pair}) > 1:
        del of_ops["ops of the model"]  # other modules call other ops
    if _is_first(pair, pairs):
        of_ops["calls outside modules"] = _calls_outside
    for what, calls in of_ops.items():
        sides = [calls(rank) for rank in pair]
        one, other = (_some(sorted(sides[at] - sides[1 - at])) or "none" for at in (0, 1))
        if one != other:
            text = f"{aspect} at {_at(pair)}: {what}: {one} in the target alone, {other} in the baseline alone"
            yield Difference(aspect, what, one, other, text)


def _otherwise(ours: Named, theirs: Named) -> Iterator[tuple[str, str, str]]:
    """Yield what is otherwise, once for all places where it is so: its name with them, and what it is on both sides."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for what, place in [*ours, *(key for key in theirs if key not in ours)]:
        both = ours.get((what, place), "none"), theirs.get((what, place), "none")
        if both[0] != both[1] and (what in _MISSED or "none" not in both):
            alike.setdefault((what, *both), []).append(place or "the model itself")
    for (what, one, other), places in alike.items():
        yield f"{what} {_some(places)}", one, other


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more


def _classes(rank: RankDump) -> Named:
    return {("module", call.module): call.op for call in rank.calls.filter(kind="module", phase="forward")}


def _settings(rank: RankDump) -> Named:
    """Return what functions are called with beside tensors and sizes: p of a dropout, eps of a norm, a reduction."""
    found: dict[tuple[str, str], list[str]] = {}
    for call in rank.calls.filter(phase="forward"):
        if call.kind not in ("api", "aten") or call.op.startswith("profiler::"):
            continue
        if call.parent is not None and call.parent.kind != "module":
            continue  # what it is given comes from the call around it
        args, kwargs = call.inputs
        names = call.arguments or tuple(map(str, range(len(args))))
        for name, item in [*zip(names, args, strict=False), *kwargs.items()]:
            if isinstance(item, float | str | bool) and name not in _OF_THE_MODE:
                key = f"argument {name} of {call.op.removeprefix('aten::')} in", _place(call)
                found.setdefault(key, []).append(f"{item:.4g}" if isinstance(item, float) else str(item))
    return {key: ", ".join(dict.fromkeys(items)) for key, items in found.items()}


def _settings_of_modules(rank: RankDump) -> Named:
    """Return those of modules alone: numbers of a loop, as a norm that it clips by, differ as soon as losses do."""
    return {key: item for key, item in _settings(rank).items() if key[1].startswith(_MODULE)}


def _place(call: Call) -> str:
    """Return the module that makes a call, or the function: its line may be another one on the other side."""
    if call.module:
        return f"{_MODULE}{call.module}"
    frames = (frame for frame in call.stack if not frame.file.endswith(_BEFORE_OPS))
    first = next(frames, None)
    return "no module" if first is None else f"function {first.function}"


def _results(rank: RankDump) -> Named:
    """Return in which dtypes modules give their results: autocast shows there."""
    calls = [call for call in rank.calls.filter(kind="module", phase="forward") if call.module]
    return {
        ("dtype of the result of", f"{_MODULE}{c.module}"): ", ".join(v.dtype_name for _, v in c.output_values())
        for c in calls
    }


def _ops(rank: RankDump) -> set[str]:
    return {call.op for call in rank.calls.filter(kind="aten", phase="forward") if call.module}


def _ops_again(rank: RankDump) -> set[str]:
    return {call.op for call in rank.calls.filter(kind="aten", phase="recompute")}


def _calls_outside(rank: RankDump) -> set[str]:
    """Return what the loop calls itself: clipping shows there, and what else is done to a loss or to gradients."""
    calls = rank.calls.filter(kind="api", phase="forward")
    return {call.op for call in calls if call.parent is None and not call.module}


def _parameters(rank: RankDump) -> Named:
    return {("parameter", name): _type(value) for name, value in sorted(rank.gradients.items())}


def _unknown_of_steps(pairs: list[Pair]) -> Iterator[str]:
    if pairs and not any(value.has_data or value.hash for value in batch_of(pairs[0][0])):
        yield 'data: neither bytes nor hashes of batches were recorded; DumpConfig(data="hash") would'


_OF_STEPS: Final[tuple[tuple[str, Callable[[str, Pair, list[Pair]], Iterator[Difference]]], ...]] = (
    ("hyperparameters", _hyperparameters),
    ("data", _batches),
    ("weights", _weights),
    ("model", _models),
    ("random numbers", _random_states),
)
