"""A collective is right if it delivered what must come of what all ranks gave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from aten_dump.analysis.meetings.evaluated_collectives import is_heard
from aten_dump.analysis.meetings.meeting_replays import MeetingReplays
from aten_dump.analysis.rerun.rounding_error import SUSPECT
from tests.analysis.meetings.ranks_by_hand import X, reducing


def test_a_right_sum_is_proven_and_what_others_sent_is_leaned_on(tmp_path: Path) -> None:
    ours, theirs = reducing(tmp_path / "a", X, X * 1.5), reducing(tmp_path / "b", X, X)
    replays = MeetingReplays()
    own = replays.local_errors(ours[0].calls[0], theirs[0].calls[0])
    assert isinstance(own, dict) and all(error.ratio <= 1 for error in own.values())
    (leaning,) = replays.leans()
    assert (leaning.ranks, leaning.error) == ((1,), pytest.approx(0.5))
    assert leaning.error > leaning.limit
    assert "brings what rank 1 sent, which differs by 0.5" in str(leaning)
    assert MeetingReplays().errors(ours[1].calls[1]), "a message too"


def test_a_sum_that_is_not_one_is_wrong(tmp_path: Path) -> None:
    ranks = reducing(tmp_path, X, X, delivered=torch.tensor([2.0, 4.0, 6.0, 0.0]))
    found = [MeetingReplays().errors(rank.calls[0]) for rank in ranks]
    assert isinstance(found[0], dict) and isinstance(found[1], dict)
    assert found[0]["output.0"].ratio > SUSPECT >= found[1]["output.0"].ratio


def test_where_a_rank_is_missing_nothing_is_claimed(tmp_path: Path) -> None:
    (rank, _) = reducing(tmp_path, X, X)
    shutil.rmtree(tmp_path / "step0" / "rank1")
    assert MeetingReplays().errors(rank.calls[0]) == "a collective: rank 1 is not in the dump"


def test_only_the_root_of_a_broadcast_is_heard(tmp_path: Path) -> None:
    assert is_heard(reducing(tmp_path, X, X)[1].calls[0]), "all are, of a sum"
