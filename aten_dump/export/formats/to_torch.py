"""``--to torch``: ``step0/rank0/<call>.<slot>.pt``, to be read with ``torch.load``."""

from __future__ import annotations

from pathlib import Path

from ..chosen_calls import ChosenCalls, slots_of
from ..values.linked_files import TensorFiles
from ..values.torch_files import save_pt


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write a file for each tensor."""
    for rank in chosen.each_rank():
        files = TensorFiles(out / f"step{rank.step}" / f"rank{rank.rank}", ".pt", save_pt)
        for call in chosen.calls(rank):
            for slot, value in chosen.tensors(slots_of(call)):
                files.put(f"{call.name}.{slot}", value)
        files.close()
