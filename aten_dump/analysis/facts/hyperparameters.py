"""Finds the hyperparameters behind a number in an optimizer's step, and those in which two runs differ.

An optimizer's ops get numbers that Python has computed: ``1 - lr * weight_decay``, ``-lr``, ``1 - beta1``. The settings
of the groups are recorded, so the formula of a number is found by trying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...dump import RankDump
from ...dump.optimizer_groups import OptimizerGroup

_CLOSE: Final = 1e-9  # numbers of Python are float64: at a greater distance they are different
_MOST_NAMED: Final = 4
_MOST_STEPS: Final = 10_000_000  # of an optimizer

# The numbers that ops get, by the settings that give them.
_FORMULAS: Final[dict[str, tuple[tuple[str, ...], Callable[..., float]]]] = {
    "lr": (("lr",), lambda lr: lr),
    "-lr": (("lr",), lambda lr: -lr),
    "1 - lr x weight_decay": (("lr", "weight_decay"), lambda lr, decay: 1 - lr * decay),
    "lr x weight_decay": (("lr", "weight_decay"), lambda lr, decay: lr * decay),
    "-lr x weight_decay": (("lr", "weight_decay"), lambda lr, decay: -lr * decay),
    "weight_decay": (("weight_decay",), lambda decay: decay),
    "eps": (("eps",), lambda eps: eps),
    "momentum": (("momentum",), lambda momentum: momentum),
    "1 - dampening": (("dampening",), lambda dampening: 1 - dampening),
    "beta1": (("beta1",), lambda beta: beta),
    "1 - beta1": (("beta1",), lambda beta: 1 - beta),
    "beta2": (("beta2",), lambda beta: beta),
    "1 - beta2": (("beta2",), lambda beta: 1 - beta),
    "alpha": (("alpha",), lambda alpha: alpha),
    "1 - alpha": (("alpha",), lambda alpha: 1 - alpha),
    "rho": (("rho",), lambda rho: rho),
    "1 - rho": (("rho",), lambda rho: 1 - rho),
}


def numbers_sentence(
    target: float, baseline: float, ours: Sequence[OptimizerGroup], theirs: Sequence[OptimizerGroup]
) -> str:
    """Return the origin of two different numbers of one argument, or "" if no recorded settings give both.

    Returns:
        ``"0.99990545 is 1 - lr x weight_decay of lr 0.001, weight_decay 0.0946; in the baseline of lr 0.001,
        weight_decay 0.01"``.
    """
    there = dict(_meanings(baseline, theirs))
    for name, settings in _meanings(target, ours):
        if name in there:
            return f"{target:.8g} is {name} of {_listed(settings)}; in the baseline of {_listed(there[name])}"
    return ""


def optimizers_otherwise(target: RankDump, baseline: RankDump) -> Iterator[str]:
    """Yield how the hyperparameters of two steps differ, a clause for each group."""
    theirs = {group.name: group for group in baseline.optimizers}
    for group in target.optimizers:
        other = theirs.get(group.name)
        if other is None:
            continue
        for when, ours, settings in (("", group.settings, other.settings), (" after", group.after, other.after)):
            changed = [name for name in ours if name in settings and not _same(ours[name], settings[name])]
            if changed:
                said = [f"{n} {_text(ours[n])}, in the baseline {_text(settings[n])}" for n in changed[:_MOST_NAMED]]
                yield f"{group.name}{when}: {'; '.join(said)}"
                break


def _meanings(number: float, groups: Sequence[OptimizerGroup]) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in groups:
        settings = _flat(group.settings)
        for name, (names, formula) in _FORMULAS.items():
            given = [settings.get(one) for one in names]
            numbers = [one for one in given if isinstance(one, (int, float)) and not isinstance(one, bool)]
            if len(numbers) == len(names) and math.isclose(formula(*numbers), number, rel_tol=_CLOSE, abs_tol=0.0):
                yield name, dict(zip(names, numbers, strict=True))
        yield from _bias_corrected(number, settings)


def _bias_corrected(number: float, settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield Adam's step size, ``lr / (1 - beta1 ** step)``, if a whole number of steps gives the number."""
    lr, beta = settings.get("lr"), settings.get("beta1")
    if not isinstance(lr, (int, float)) or not isinstance(beta, float) or not lr or not 0 < beta < 1 or not number:
        return
    power = 1 - abs(lr / number)
    if not 0 < power < 1:
        return
    steps = round(math.log(power) / math.log(beta))
    is_one = 0 < steps <= _MOST_STEPS and math.isclose(lr / (1 - beta**steps), abs(number), rel_tol=_CLOSE)
    if is_one:
        sign = "-" if number < 0 else ""
        yield f"{sign}lr / (1 - beta1 ^ step)", {"lr": lr, "beta1": beta, "step": steps}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with both betas by their names."""
    betas = settings.get("betas")
    if isinstance(betas, (list, tuple)):
        return {**settings, **{f"beta{number}": beta for number, beta in enumerate(betas, 1)}}
    return dict(settings)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def _text(setting: Any) -> str:
    return f"{setting:.8g}" if isinstance(setting, float) else str(setting)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(setting)}" for name, setting in settings.items())
