"""Where numbers go: TensorBoard and W&B by their own writers, a file of JSON lines."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ..errors import ConfigError
from .alert_rules import Alert

SCHEMA: Final = 1  # of docs/json/watch.schema.json
_TENSORBOARD: Final = "tensorboard"
_WANDB: Final = "wandb"


class Writer(Protocol):
    """Takes the numbers of watched steps."""

    def write(self, step: int, numbers: Mapping[str, float], alerts: Sequence[Alert]) -> None:
        """Write what was found in a step, so that it can be seen."""

    def close(self) -> None:
        """Write no more."""


def writer_to(target: Any, rank: int | None) -> Writer:
    """Return what writes to a target of the user's.

    Args:
        target: see `Watch`.
        rank: None: this one writes for all ranks.

    Raises:
        ConfigError: there is no such target, or its package is not installed.
    """
    if hasattr(target, "add_scalar"):
        return TensorBoard(target)
    if hasattr(target, "log") and hasattr(target, "define_metric"):
        return WandB(target)
    if not isinstance(target, (str, os.PathLike)) or not os.fspath(target):
        raise ConfigError(
            f"Watch got to={target!r:.100}; allowed: 'tensorboard', 'tensorboard:FOLDER', 'wandb', a path, a "
            "SummaryWriter, a run of W&B, or a list of these"
        )
    text = os.fspath(target)
    kind, _, place = text.partition(":")
    if kind == _TENSORBOARD:
        folder = place or None
        return TensorBoard(_summary_writer(folder if rank is None else os.path.join(folder or "runs", f"rank{rank}")))
    if text == _WANDB:
        return WandB(None)
    path = Path(text)
    return JsonLines(path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}"))


def _summary_writer(folder: str | None) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"to='tensorboard' needs the package tensorboard ({error}): pip install 'aten-dump[watch]'"
        ) from error
    return SummaryWriter(folder)


class TensorBoard:
    """Writes scalars, and alerts as text, with a SummaryWriter.

    Args:
        writer: of torch.utils.tensorboard or tensorboardX; the user's own is not closed.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, numbers: Mapping[str, float], alerts: Sequence[Alert]) -> None:
        """Write the numbers as one event: a call of `add_scalar` for each takes ten times as long."""
        file_writer = getattr(self._writer, "file_writer", None)
        try:
            from tensorboard.compat.proto.summary_pb2 import Summary
        except ImportError:  # tensorboardX alone
            file_writer = None
        if file_writer is None:
            for tag, number in numbers.items():
                self._writer.add_scalar(tag, number, step)
        else:
            values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
            file_writer.add_summary(Summary(value=values), step)
        for alert in alerts:
            self._writer.add_text(f"alert/{alert.rule}", alert.text, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is still held back."""
        self._writer.flush()


class WandB:
    """Logs to a run of W&B, against a step of its own: the steps of the program's own logs stay as they are.

    Args:
        run: the user's; None: the one that is active, or a new one, which is finished at the end.
    """

    def __init__(self, run: Any) -> None:
        self._owned = False
        if run is None:
            try:
                import wandb
            except ImportError as error:
                raise ConfigError(
                    f"to='wandb' needs the package wandb ({error}): pip install 'aten-dump[wandb]'"
                ) from None
            self._owned = wandb.run is None
            run = wandb.run if wandb.run is not None else wandb.init()
        self._run = run
        self._waiting_at: int | None = None
        run.define_metric("watch/step", hidden=True)
        run.define_metric("watch/*", step_metric="watch/step")

    def write(self, step: int, numbers: Mapping[str, float], alerts: Sequence[Alert]) -> None:
        """Log the numbers in the row that the program's next log completes, or in a row of their own."""
        if self._waiting_at is not None and self._run.step == self._waiting_at:
            self._run.log({}, commit=True)  # the program logs nothing itself: the row before is still open
        row = {f"watch/{tag}": number for tag, number in numbers.items()}
        self._run.log({**row, "watch/step": step}, commit=self._owned)
        self._waiting_at = None if self._owned else self._run.step
        for alert in alerts:
            self._run.alert(title=f"aten_dump: {alert.rule}", text=alert.text)

    def close(self) -> None:
        """Complete the last row, and finish a run that was begun here."""
        if self._waiting_at is not None and self._run.step == self._waiting_at:
            self._run.log({}, commit=True)
        if self._owned:
            self._run.finish()


class JsonLines:
    """Appends one object for each watched step to a file; NaN and infinities are strings."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            path = path / "watch.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise ConfigError(f"Watch cannot write to {str(path)!r}: {error.strerror}; choose another path") from None

    def write(self, step: int, numbers: Mapping[str, float], alerts: Sequence[Alert]) -> None:
        """Append a line."""
        row = {
            "schema": SCHEMA,
            "step": step,
            "time": time.time(),
            "numbers": {tag: _cell(number) for tag, number in numbers.items()},
            "alerts": [alert.as_dict() for alert in alerts],
        }
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cell(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
