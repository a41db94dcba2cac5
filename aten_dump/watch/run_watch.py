"""``Watch``: statistics of a run, live.

>>> with Watch(every=100, to="tensorboard", model=model, optimizer=optimizer):
...     train(model, optimizer)
"""

from __future__ import annotations

import fnmatch
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..capture.launcher_rank import rank_and_world_size
from ..config import DumpConfig
from ..errors import ConfigError
from ..patterns import REGEX, NameTest, regular_expression
from .across_ranks import Ranks
from .alert_rules import Alert, AlertRules, Alerts, Seen
from .measurements import Key, Tally, update_ratio
from .number_formats import FORMATS
from .step_recording import StepRecording
from .watched_step import LOSS, Watched, WatchedStep
from .writers import Writer, writer_to

PARTS: Final = ("parameters", "gradients", "updates", "activations", "loss")
_MOST_ALERTS: Final = 1000
_MODEL: Final = "(model)"  # the path of the model itself is ""
_log: Final = logging.getLogger("aten_dump.watch")
Models = nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None


class Watch:
    """Measure one step in `every`, and write the numbers; it has more than fifteen attributes, as a user's handle.

    `step` ends a step. In a program that never calls it, a step ends when the optimizer has stepped. In steps that are
    not watched, only one hook is active, which counts.

    Args:
        every: steps 0, `every`, 2 * `every`, ... are watched.
        to: ``"tensorboard"`` or ``"tensorboard:FOLDER"``, ``"wandb"`` (the active run, or a new one), a path of a file
            of JSON lines, a SummaryWriter, a run of W&B; or a list of these.
        model: the model, or several under names, or a list.
        optimizer: the optimizer, or several; a step ends where the last of them has stepped. None: any that holds
            parameters of the model.
        modules: globs on paths of modules (``"*.mlp"``), or ``regex:...``: whose results are measured.
        formats: names of `FORMATS`: measure what all tensors would lose in these. The shares of float16, bfloat16 and
            float8 tensors in their own format are always measured.
        parts: of ``("parameters", "gradients", "updates", "activations", "loss")``. Updates take copies of the
            parameters while an optimizer steps.
        rules: limits of alerts; None: no alerts.
        record: a path, or a `DumpConfig`: the step after an alert is recorded there in full.
        records: maximum number of recorded steps.
        on_alert: called with each `Alert`, on the rank that writes.
        ranks: ``"together"``: rank 0 writes for all, and all ranks watch. ``"each"``: each writes for itself.

    Attributes:
        alerts: all that were given, on the rank that writes; the last 1000.
        numbers: of the last watched step, by tag.

    Raises:
        ConfigError: an argument is something else, a package is missing, or a path cannot be written.

    Example:
        >>> with Watch(every=100, to="watch.jsonl", model=model, modules="*.mlp", record="at-alerts") as watch:
        ...     for batch in loader:
        ...         train_step(batch)
        ...         watch.step()
    """

    def __init__(
        self,
        every: int = 100,
        to: Any = "tensorboard",
        *,
        model: Models = None,
        optimizer: Any = None,
        modules: str | Iterable[str] = (),
        formats: str | Iterable[str] = (),
        parts: Iterable[str] = PARTS,
        rules: AlertRules | None = AlertRules(),  # noqa: B008 - frozen
        record: str | os.PathLike[str] | DumpConfig | None = None,
        records: int = 1,
        on_alert: Callable[[Alert], object] | None = None,
        ranks: str = "together",
    ) -> None:
        self._every = _whole("every", every)
        self._models = _models(model)
        self._optimizers = _optimizers(optimizer)
        if not self._models and not self._optimizers:
            raise ConfigError("Watch got neither a model nor an optimizer; give it model=, or optimizer=, or both")
        self._modules = [_module_test(glob) for glob in ([modules] if isinstance(modules, str) else modules)]
        self._formats = _chosen("formats", formats, tuple(FORMATS))
        self._parts = frozenset(_chosen("parts", parts, PARTS))
        if ranks not in ("together", "each"):
            raise ConfigError(f"Watch got ranks={ranks!r:.100}; allowed: 'together', 'each'")
        if not (rules is None or isinstance(rules, AlertRules)):
            raise ConfigError(f"Watch got rules={rules!r:.100}; allowed: AlertRules(...), or None")
        self._ranks = Ranks(ranks == "together")
        self._judge = None if rules is None else Alerts(rules)
        self._recording = StepRecording(record, _whole("records", records), self._models)
        self._on_alert = on_alert
        self._targets = list(to) if isinstance(to, (list, tuple)) else [to]
        self._writers: list[Writer] = []
        self._is_writer = True
        self._watched: WatchedStep | None = None
        self._hook: Any = None
        self._is_on = self._is_in_hook = False
        self._is_counted = False  # the program calls `step`
        self._has_ended = False  # by the hook, and `step` was not called since
        self.current_step = 0
        self.alerts: list[Alert] = []
        self.numbers: dict[str, float] = {}

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, step: int = 0, *, by_hook: bool = True) -> Watch:
        """Begin to watch, as ``with`` does; `close` ends it.

        Args:
            step: number of the first step: of a run that goes on.
            by_hook: False: a step ends by `step` alone, from the first on.

        Raises:
            ConfigError: it cannot be written to a target.
        """
        rank, _ = rank_and_world_size()
        self._is_writer = self._ranks.writes(rank)
        if self._is_writer:
            self._writers = [writer_to(target, self._ranks.own_name(rank)) for target in self._targets]
        self.current_step = step
        self._is_on, self._is_counted = True, not by_hook
        self._hook = register_optimizer_step_post_hook(self._stepped)
        self._begin()
        return self

    def step(self, number: int | None = None, *, loss: Any = None) -> None:
        """End the step in progress.

        Args:
            number: of the next one; None is the following.
            loss: of this step, a number or a tensor; without it what ``backward`` was called on, added up.
        """
        if not self._is_on:
            return
        is_new = not self._has_ended
        self._is_counted, self._has_ended = True, False
        if is_new:
            self._end(loss)
        if number is not None and number != self.current_step:
            self._drop()
            self.current_step = number
            self._begin()
        self._recording.switch(self.current_step)

    def close(self) -> None:
        """Watch no more; a step that has not ended is not written. Idempotent."""
        if self._hook is not None and not self._is_in_hook:  # while torch calls its hooks, none may be removed
            self._hook.remove()
            self._hook = None
        if not self._is_on:
            return
        self._is_on = False
        self._drop()
        writers, self._writers = self._writers, []
        for writer in writers:
            self._safely(writer.close)
        self._safely(self._recording.close)

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        """Return this one: what a program copies may hold it."""
        return self

    # -- steps

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if not self._is_on:
            return
        if self._watched is not None:
            self._watched.optimizer_stepped(optimizer)
        if self._is_counted or not self._ends_step(optimizer):
            return
        self._is_in_hook = self._has_ended = True
        try:
            self._end(None)
        finally:
            self._is_in_hook = False
        self._recording.switch_before_next_module(lambda: self.current_step)

    def _ends_step(self, optimizer: Any) -> bool:
        if self._optimizers:
            return optimizer is self._optimizers[-1]
        first = next((one for group in optimizer.param_groups for one in group["params"]), None)
        return any(first is one for _, model in self._models for one in model.parameters())

    def _begin(self) -> None:
        if self._is_on and self.current_step % self._every == 0:
            self._safely(lambda: setattr(self, "_watched", WatchedStep(self._what(), self._failed)))

    def _what(self) -> Watched:
        parameters: dict[int, tuple[str, torch.Tensor]] = {}
        modules: dict[int, str] = {}
        for prefix, model in self._models:
            for name, parameter in model.named_parameters(prefix=prefix):
                if parameter.requires_grad:
                    parameters.setdefault(id(parameter), (name.replace("_orig_mod.", ""), parameter))
            for name, module in model.named_modules(prefix=prefix) if self._modules else ():
                path = name.replace("_orig_mod.", "")
                if "activations" in self._parts and any(test(path) for test in self._modules):
                    modules.setdefault(id(module), path or _MODEL)
        return Watched(parameters, modules, self._parts, self._formats)

    def _drop(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.remove()

    def _end(self, loss: Any) -> None:
        watched, self._watched = self._watched, None
        step, self.current_step = self.current_step, self.current_step + 1
        if watched is not None:
            watched.remove()
            self._safely(lambda: self._write(step, watched, loss))
        self._begin()

    def _write(self, step: int, watched: WatchedStep, loss: Any) -> None:
        tallies = self._ranks.added_up(watched.finish(loss))
        alerts: list[Alert] = []
        if self._is_writer:
            self.numbers = {**_numbers(tallies), **watched.hyperparameters}
            if self._judge is not None:
                alerts = self._judge.judge(step, Seen(tallies, watched.skipped))
            self._hand_out(step, alerts)
        if self._recording.is_wanted and self._ranks.from_first(bool(alerts)):
            self._recording.arm()

    def _hand_out(self, step: int, alerts: list[Alert]) -> None:
        """Write the numbers and report the alerts; what fails there is left out from then on, and no rank waits."""
        for writer in list(self._writers):
            try:
                writer.write(step, self.numbers, alerts)
            except Exception as error:  # noqa: BLE001 - whatever a package raises, or the disk
                self._writers.remove(writer)
                _warn(f"{type(writer).__name__} cannot write step {step}, and is left out from here on", error)
        self.alerts = [*self.alerts, *alerts][-_MOST_ALERTS:]
        for alert in alerts:
            _log.warning("aten_dump: %s", alert.text)
            try:
                if self._on_alert is not None:
                    self._on_alert(alert)
            except Exception as error:  # noqa: BLE001 - of the program's function
                self._on_alert = None
                _warn("on_alert failed, and is not called again", error)

    # -- failures

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Watch no more, and say so once."""
        if not self._is_on:
            return
        _warn(f"Watch has stopped at step {self.current_step}", error)
        self.close()


def _warn(what: str, error: Exception) -> None:
    warnings.warn(f"aten_dump: {what}: {type(error).__name__}: {error}", stacklevel=3)


def _numbers(tallies: Mapping[Key, Tally]) -> dict[str, float]:
    """Return what is written of a step, by tag: ``gradient.norm/0.weight``."""
    found: dict[str, float] = {}
    squares: dict[str, float] = {}
    for key, tally in tallies.items():
        if key == LOSS:
            found["loss"] = tally.mean
            continue
        found |= {f"{key.kind}.{number}/{key.name}": one for number, one in tally.numbers().items()}
        squares[key.kind] = squares.get(key.kind, 0.0) + tally.norm**2
        if key.kind == "update" and (ratio := update_ratio(tallies, key.name)) is not None:
            found[f"update.ratio/{key.name}"] = ratio
    totals = [kind for kind in ("parameter", "gradient", "update") if kind in squares]
    return found | {f"total/{kind}.norm": squares[kind] ** 0.5 for kind in totals}


# -- arguments


def _whole(name: str, number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigError(f"Watch got {name}={number!r:.100}; allowed: a whole number from 1 on")
    return number


def _chosen(name: str, given: str | Iterable[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(given)
    unknown = [one for one in chosen if one not in allowed]
    if unknown:
        raise ConfigError(f"Watch got {unknown[0]!r:.100} in {name}; allowed: {', '.join(allowed)}")
    return chosen


def _module_test(glob: object) -> NameTest:
    if not isinstance(glob, str) or not glob:
        raise ConfigError(f"Watch got {glob!r:.100} in modules; allowed: globs on module paths such as '*.mlp'")
    if glob.startswith(REGEX):
        return regular_expression(glob.removeprefix(REGEX), "Watch's modules")
    return lambda path: fnmatch.fnmatchcase(path, glob)


def _models(model: Any) -> list[tuple[str, nn.Module]]:
    """Return models with the prefixes of their names; paths begin below DDP."""
    if model is None:
        return []
    if isinstance(model, nn.Module):
        named: Iterable[tuple[Any, Any]] = [("", model)]
    elif isinstance(model, Mapping):
        named = model.items()
    else:
        named = [(str(at), one) for at, one in enumerate(model if isinstance(model, (list, tuple)) else [model])]
    return [(str(name), _below_wrappers(one)) for name, one in named]


def _below_wrappers(model: Any) -> nn.Module:
    while isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Watch got a {type(model).__name__} as a model; allowed: an nn.Module, a list of them, or a mapping of "
            "texts to them"
        )
    return model


def _optimizers(given: Any) -> list[Any]:
    """Return optimizers of torch; of wrappers what they wrap (accelerate's, Lightning's)."""
    if given is None:
        return []
    return [_below_wrapper(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _below_wrapper(given: Any) -> torch.optim.Optimizer:
    wrapped = getattr(given, "optimizer", None)
    if isinstance(wrapped, torch.optim.Optimizer):
        return _below_wrapper(wrapped)
    if not isinstance(given, torch.optim.Optimizer):
        raise ConfigError(
            f"Watch got a {type(given).__name__} as an optimizer; allowed: a torch.optim.Optimizer, a list"
        )
    return given
