"""``--to torch``: ``step0/rank0/<call>.<slot>.pt``, to be read with ``torch.load``."""

from __future__ import annotations

import struct
import zipfile
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import torch

from ...dump import Value
from ...torch_names import with_numbers
from ..chosen_calls import ChosenCalls, slots_of
from ..values.linked_files import TensorFiles

_LOCAL_HEADER_BYTES: Final = 30  # of a zip file's entry, before its name
_NAME_LENGTHS: Final = struct.Struct("<26xHH")


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write a file for each tensor."""
    for rank in chosen.each_rank():
        files = TensorFiles(out / f"step{rank.step}" / f"rank{rank.rank}", ".pt", save_pt)
        for call in chosen.calls(rank):
            for slot, value in chosen.tensors(slots_of(call)):
                files.put(f"{call.name}.{slot}", value)
        files.close()


def save_pt(value: Value, path: Path) -> None:
    """Write the tensor of a value; a large one without the zip format's checksum, which torch does not look at."""
    # Integers of less than a byte, which torch.save does not know, are written as bytes.
    blocks = ((at, block if block.is_floating_point() else with_numbers(block)) for at, block in value.blocks())
    index, first = next(blocks)
    if not index:
        torch.save(first.resolve_conj().resolve_neg(), path)  # numpy, which msprobe makes of it, knows neither bit
        return
    stride = torch.empty(value.shape, device="meta").stride()
    # Memory that nothing touches is none.
    whole = torch.empty(0, dtype=first.dtype, device="cpu").set_(
        torch.UntypedStorage(value.nbytes), 0, value.shape, stride
    )
    with torch.serialization.skip_data():
        torch.save(whole, path)
    with open(path, "r+b") as file:
        file.seek(_start_of_data(file))
        for _, block in chain([(index, first)], blocks):
            file.write(block.contiguous().view(-1).view(torch.uint8).numpy().data)


def _start_of_data(file: BinaryIO) -> int:
    """Return where the elements of the only tensor in a ``.pt`` file begin."""
    with zipfile.ZipFile(file) as entries:
        [entry] = [entry for entry in entries.infolist() if entry.filename.endswith("/data/0")]
    file.seek(entry.header_offset)
    name, extra = _NAME_LENGTHS.unpack(file.read(_LOCAL_HEADER_BYTES))
    return entry.header_offset + _LOCAL_HEADER_BYTES + int(name) + int(extra)
