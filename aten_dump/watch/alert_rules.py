"""Alerts: what in the numbers of a watched step is almost surely wrong, in a table of rules.

A rule reads the tallies of a step and what was seen before, and names what breaks it. An alert is given when something
breaks a rule that did not break it in the watched step before; so one that stays is said once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..errors import ConfigError
from .measurements import Key, Tally, update_ratio

_HISTORY: Final = 20  # watched steps
_FEWEST: Final = 8  # that a jump is judged by
_LEAST_SPREAD: Final = 0.3  # of the logarithm of a norm: six of these are a factor of six
_LEAST_LOSS_SPREAD: Final = 0.01  # of the mean of a loss
_SHOWN: Final = 3  # names in a text


@dataclass(frozen=True, slots=True)
class AlertRules:
    """The limits of the rules; None leaves a rule out.

    Args:
        nonfinite: NaN or Inf in anything that is watched. Gradients of a step that a GradScaler skips do not count.
        jump: a loss, or the norm of a gradient or activation, is so many standard deviations above what it was in the
            last 20 watched steps (norms by their logarithm). Judged from the ninth watched step on.
        dead: in two watched steps in a row at least this share of a module's units are 0 for the whole batch.
        ratio: (low, high) of update norm / parameter norm, in two watched steps in a row. Not above low, with a
            gradient and a learning rate that are not 0, the parameter does not move; above high it is overwritten.
            Parameters of one dimension, and those that begin as 0, are not held against high.

    Raises:
        ConfigError: a limit is none.
    """

    nonfinite: bool | None = True
    jump: float | None = 6.0
    dead: float | None = 0.5
    ratio: tuple[float, float] | None = (0.0, 0.3)

    def __post_init__(self) -> None:
        for name, limit in (("jump", self.jump), ("dead", self.dead)):
            if limit is not None and (not isinstance(limit, (int, float)) or not limit > 0):
                raise ConfigError(f"AlertRules.{name} is {limit!r}; allowed: a number above 0, or None")
        low, high = self.ratio or (0.0, 1.0)
        if not 0 <= low < high:
            raise ConfigError(f"AlertRules.ratio is {self.ratio!r}; allowed: (low, high) with 0 <= low < high, or None")


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that something breaks for the first time.

    Attributes:
        step: the watched step.
        rule: ``nonfinite``, ``jump``, ``dead`` or ``ratio``.
        names: what breaks it, as in the tags of numbers: ``gradient/0.weight``.
        text: a sentence.
    """

    step: int
    rule: str
    names: tuple[str, ...]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "names": list(self.names)}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule is given.

    Attributes:
        tallies: of the step.
        skipped: a GradScaler left out the optimizer's step.
    """

    tallies: Mapping[Key, Tally]
    skipped: bool


_Broken = tuple[Key, str]  # what, and how
_Rule = Callable[["Alerts", Seen], Iterator[_Broken]]


class Alerts:
    """Holds the numbers of each watched step against the rules."""

    def __init__(self, rules: AlertRules) -> None:
        self.rules = rules
        self._before: dict[str, set[Key]] = {}  # what broke a rule in the step before
        self.history: dict[Key, deque[float]] = {}
        self.was_dead: set[Key] = set()
        self.was_odd: set[Key] = set()  # the ratio was out of range
        self.is_sick = False  # this step has NaN or Inf
        self.began_as_zero: dict[str, bool] = {}

    def judge(self, step: int, seen: Seen) -> list[Alert]:
        """Return what breaks a rule now and did not before."""
        found: list[Alert] = []
        for name, rule in _RULES.items():
            if getattr(self.rules, name) in (None, False):
                continue
            broken = dict(rule(self, seen))
            new = {key: how for key, how in broken.items() if key not in self._before.get(name, ())}
            self._before[name] = set(broken)
            if new:
                found.append(Alert(step, name, tuple(f"{kind}/{one}" for kind, one in new), _text(step, new)))
        self._learn(seen)
        return found

    def _learn(self, seen: Seen) -> None:
        for key, level in _levels(seen):
            if math.isfinite(level):
                self.history.setdefault(key, deque(maxlen=_HISTORY)).append(level)
        if self.rules.dead is not None:
            limit = self.rules.dead
            self.was_dead = {key for key, tally in seen.tallies.items() if tally.least.get("dead", 0.0) >= limit}


def _text(step: int, broken: Mapping[Key, str]) -> str:
    lines = [f"{kind}{' of ' if name else ''}{name} {how}" for (kind, name), how in list(broken.items())[:_SHOWN]]
    more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return f"step {step}: {'; '.join(lines)}{more}"


def _levels(seen: Seen) -> Iterator[tuple[Key, float]]:
    """Yield what is judged by its history: the mean of losses, the logarithm of norms that are not 0."""
    for key, tally in seen.tallies.items():
        if key.kind == "loss":
            yield key, tally.mean
        elif key.kind in ("gradient", "activation") and tally.squares > 0:
            yield key, math.log(tally.squares) / 2


def _nonfinite(alerts: Alerts, seen: Seen) -> Iterator[_Broken]:
    """NaN spreads: only the first watched step that has any is news."""
    was_sick, alerts.is_sick = alerts.is_sick, False
    for key, tally in seen.tallies.items():
        if seen.skipped and key.kind in ("gradient", "update"):
            continue
        if not tally.nan and not tally.infinite:
            continue
        alerts.is_sick = True
        if not was_sick:
            counts = [f"{count:.0f} {what}" for count, what in ((tally.nan, "NaN"), (tally.infinite, "Inf")) if count]
            yield key, f"has {' and '.join(counts)} in {tally.count:.0f} elements"


def _jump(alerts: Alerts, seen: Seen) -> Iterator[_Broken]:
    for key, level in _levels(seen):
        past = alerts.history.get(key, ())
        if len(past) < _FEWEST or not math.isfinite(level) or alerts.rules.jump is None:
            continue
        mean = sum(past) / len(past)
        spread = math.hypot(*(one - mean for one in past)) / math.sqrt(len(past) - 1)
        is_loss = key.kind == "loss"
        limit = alerts.rules.jump * max(spread, _LEAST_LOSS_SPREAD * abs(mean) if is_loss else _LEAST_SPREAD)
        if level > mean + limit:
            now, before = (level, mean) if is_loss else (math.exp(level), math.exp(mean))
            yield key, f"{'is' if is_loss else 'has norm'} {now:.4g}, about {before:.4g} before"


def _dead(alerts: Alerts, seen: Seen) -> Iterator[_Broken]:
    limit = alerts.rules.dead
    for key, tally in seen.tallies.items():
        dead = tally.least.get("dead", 0.0)
        if limit is not None and dead >= limit and key in alerts.was_dead:
            yield key, f"is 0 for the whole batch in {dead:.0%} of its units"


def _ratio(alerts: Alerts, seen: Seen) -> Iterator[_Broken]:
    low, high = alerts.rules.ratio or (0.0, math.inf)
    odd: dict[Key, str] = {}
    for key, update in seen.tallies.items():
        parameter = seen.tallies.get(Key("parameter", key.name))
        if key.kind != "update" or parameter is None:
            continue
        ratio = update_ratio(seen.tallies, key.name)
        began_as_zero = alerts.began_as_zero.setdefault(key.name, ratio is None)
        gradient = seen.tallies.get(Key("gradient", key.name), Tally())
        is_asked_to = gradient.rate > 0 and 0 < gradient.squares < math.inf and not seen.skipped
        if (update.squares == 0 or (ratio is not None and ratio <= low)) and is_asked_to:
            small = "is 0 in all elements" if not ratio else f"is {ratio:.2g} of the parameter's norm"
            odd[key] = f"{small}, though its gradient is not 0: the parameter does not move"
        elif ratio is not None and ratio > high and not began_as_zero and parameter.dimensions > 1:
            odd[key] = f"is {ratio:.2g} of the parameter's norm"
    yield from ((key, how) for key, how in odd.items() if key in alerts.was_odd)
    alerts.was_odd = set(odd)


_RULES: Final[dict[str, _Rule]] = {"nonfinite": _nonfinite, "jump": _jump, "dead": _dead, "ratio": _ratio}
