"""Modules that are in training on one side alone, and calls whose gradients are recorded on one side alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ...dump import COMPILED_GRAPH, Call, RankDump
from ..pairing.call_keys import line_of

_MOST_NAMED: Final = 3
_TRAINING: Final = {True: "training", False: "evaluation"}


def mode_sentence(target: Call, baseline: Call) -> str:
    """Return the modes of two calls of one phase, or "" if they are the same."""
    if target.phase != baseline.phase:
        return ""
    modes = target.training, baseline.training
    said = []
    if None not in modes and modes[0] != modes[1]:
        name = target.module or baseline.module
        module = f"the module {name}" if name else "the model"
        said.append(f"{module} has training={modes[0]}, in the baseline training={modes[1]}")
    grads = target.grad_enabled, baseline.grad_enabled
    if None not in grads and grads[0] != grads[1] and not (_is_compiled(target) or _is_compiled(baseline)):
        said.append(f"grad_enabled is {grads[0]}, in the baseline {grads[1]}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}"


def _is_compiled(call: Call) -> bool:
    """Return True if a call ran in a compiled graph, whose gradients are the graph's own: grad mode is off there."""
    return call.parent is not None and call.parent.op.startswith(COMPILED_GRAPH)


def module_sentence(call: Call, other: RankDump) -> str:
    """Return the mode of a call's module on the side without the call, or "" if it is the same."""
    if call.training is None or not call.module:
        return ""
    there = next((c for c in other.calls.filter(kind="module", phase="forward") if c.module == call.module), None)
    if there is None or there.training is None or there.training == call.training:
        return ""
    return f"The module {call.module} has training={call.training} there, on the other side training={there.training}"


def grad_mode_sentence(pairs: Iterable[tuple[Call, Call]]) -> str:
    """Return the first call with another grad mode, and the number of them; "" if there is none.

    Calls at other lines may be no counterparts: a reference model runs without gradients by design.
    """
    first, count = "", 0
    for target, baseline in pairs:
        modes = target.grad_enabled, baseline.grad_enabled
        if _is_compiled(target) or _is_compiled(baseline):
            continue
        if (
            target.phase == "forward"
            and line_of(target) == line_of(baseline)
            and None not in modes
            and modes[0] != modes[1]
        ):
            count += 1
            first = first or f"at {target.name} ({target.where}) it is {modes[0]}, in the baseline {modes[1]}"
    more = f", and at {count - 1} more calls" if count > 1 else ""
    return f"grad_enabled differs: {first}{more}" if first else ""


def modules_otherwise(target: RankDump, baseline: RankDump) -> Iterator[str]:
    """Yield a clause for the modules that are in training on only one side, for each side."""
    ours, theirs = _by_module(target), _by_module(baseline)
    for mode in (True, False):
        names = [name for name, found in ours.items() if found is mode and theirs.get(name) is (not mode)]
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            shown = ", ".join(name or "the model itself" for name in names[:_MOST_NAMED])
            yield f"in {_TRAINING[mode]} in the target, in {_TRAINING[not mode]} in the baseline: {shown}{more}"


def _by_module(rank: RankDump) -> dict[str, bool]:
    """Return, by path, if each module was in training when it first ran; outer modules come first."""
    found: dict[str, bool] = {}
    for call in rank.calls.filter(kind="module", phase="forward"):
        if call.training is not None:
            found.setdefault(call.module, call.training)
    return found
