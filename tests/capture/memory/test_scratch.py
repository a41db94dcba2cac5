"""Memory that is used again: as much as was asked for, by one at a time, and not more of it kept than it says."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.memory import scratch
from aten_dump.capture.memory.scratch import KEPT_BYTES, MOST_KEPT, give_back, take_scratch
from aten_dump.capture.torch_internals.quiet import quiet


@pytest.mark.parametrize("nbytes", [1, 4096, KEPT_BYTES, KEPT_BYTES + 1])
def test_there_is_as_much_as_was_asked_for(nbytes: int) -> None:
    found = take_scratch(nbytes)
    assert found.nbytes >= nbytes and len(found.view) == found.tensor.numel() == found.nbytes
    assert found.tensor.data_ptr() == found.address and found.address % 64 == 0
    found.tensor.fill_(7)
    assert bytes(found.view[:nbytes]) == b"\x07" * nbytes
    give_back(found)


def test_what_is_given_back_is_taken_again_and_by_one_at_a_time() -> None:
    one, other = take_scratch(100), take_scratch(100)
    assert one is not other
    give_back(one)
    assert take_scratch(KEPT_BYTES) is one


def test_no_more_is_kept_than_it_says() -> None:
    many = [take_scratch(100) for _ in range(MOST_KEPT + 3)]
    for piece in [*many, take_scratch(KEPT_BYTES + 1)]:
        give_back(piece)
    assert len(scratch._kept) == MOST_KEPT and all(piece.nbytes == KEPT_BYTES for piece in scratch._kept)


def test_memory_first_asked_for_in_inference_mode_is_written_outside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_kept", [])
    with torch.inference_mode(), quiet():
        give_back(take_scratch(64))
    with quiet():
        found = torch.sign(torch.tensor([-2.0, 0.0, 3.0]), out=take_scratch(12).tensor[:12].view(torch.float32))
    assert found.tolist() == [-1.0, 0.0, 1.0]
