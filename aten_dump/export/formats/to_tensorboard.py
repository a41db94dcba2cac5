"""``--to tensorboard``: each statistic of each tensor as a curve over the steps, one run for each rank.

The tag is ``<statistic>/<call>.<slot>``; gradients of parameters are ``<statistic>/gradient.<parameter>``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...dump import Value
from ..chosen_calls import ChosenCalls, require, slots_of


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write an event file for each rank."""
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    writers: dict[int, Any] = {}
    try:
        for rank in chosen.each_rank():
            writer = writers.get(rank.rank)
            if writer is None:
                writer = writers[rank.rank] = SummaryWriter(str(out / f"rank{rank.rank}"))
            for call in chosen.calls(rank):
                for slot, value in slots_of(call):
                    _add(writer, f"{call.name}.{slot}", value, rank.step)
            for name, value in rank.gradients.items():
                _add(writer, f"gradient.{name}", value, rank.step)
    finally:
        for writer in writers.values():
            writer.close()


def _add(writer: Any, name: str, value: Value, step: int) -> None:
    for statistic, number in (value.stats or {}).items():
        if isinstance(number, int | float):
            writer.add_scalar(f"{statistic}/{name}", float(number), step)
