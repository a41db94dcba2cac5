from __future__ import annotations

import torch

from aten_dump.dump import open_dump
from aten_dump.dump.tensors.packed_blobs import find_packed
from aten_dump.store import records as r
from tests.dump.building import Builder


def test_blobs_that_hold_several_small_tensors(builder: Builder) -> None:
    """Views of one storage are not several, wherever they begin."""
    packed = builder.blob(bytes(32))
    for offset in (0, 16):
        builder.emit(r.Data(r.DATA, builder.value(torch.zeros(4), store=None), packed, offset, 0))
    base = torch.zeros(8)
    for view in (base, base[2:], base[4:6]):
        builder.value(view)
    behind = builder.blob(bytes(32))  # one value, and bytes of others before it, which were not recorded
    builder.emit(r.Data(r.DATA, builder.value(torch.zeros(4), store=None), behind, 16, 0))
    rank = open_dump(builder.finish()).rank(0, 0)
    assert find_packed(rank.tables, rank.value_by_id) == rank.packed_blobs == {packed, behind}
