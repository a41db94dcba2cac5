"""Few bytes are left to one thread."""

from __future__ import annotations

import torch

from aten_dump.capture.team_threads import TEAM_BYTES, team_threads


def test_all_of_torchs_threads_take_a_part_in_many_bytes_alone() -> None:
    assert team_threads(0) == team_threads(TEAM_BYTES - 1) == 1
    assert team_threads(TEAM_BYTES) == torch.get_num_threads()
