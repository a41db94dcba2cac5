"""Of many ranks, what is wrong between groups of them is one finding that names both; none is held against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aten_dump import check
from aten_dump.analysis.checks.rank_facts import Copy, RankFacts
from aten_dump.analysis.checks.rank_rules import (
    RULES,
    never_reduced,
    not_reduced,
    replicas_apart,
    same_batch,
    same_random,
)
from aten_dump.analysis.checks.rule import RankRule
from tests.analysis.meetings.many_ranks import FAULTS, record, record_beside

RANKS = 1024


def _rank(rank: int, **changed: object) -> RankFacts:
    """Return a rank of a data-parallel job: the same parameters and gradients as all, a batch of its own."""
    names = {name: Copy((4,), ("float32", (4,), name), ("float32", (4,), f"{name}'"), True, 1, 2) for name in "ab"}
    batch = (("float32", (8,), f"batch {rank}"),)
    facts = RankFacts(rank, names, batch, True, False, False, 3, 4, (("aten::dropout", str(rank).encode(), 5),))
    return replace(facts, **changed)


def _other(rank: int, field: str, name: str = "a", value: str = "other") -> RankFacts:
    """Return a rank whose leaf, or applied gradient, of a parameter has other numbers."""
    facts = _rank(rank)
    changed = facts.parameters[name]._replace(**{field: ("float32", (4,), value)})
    return replace(facts, parameters={**facts.parameters, name: changed})


@pytest.mark.parametrize(
    ("rule", "bad", "text"),
    [
        (replicas_apart, _other(7, "leaf"), "a is not the same on ranks 0-6|8-1023 and 7,"),
        (
            not_reduced,
            _other(7, "applied"),
            "gradient of a is not reduced between ranks 0-6|8-1023 and 7, as that of b",
        ),
        (same_batch, _rank(7, batch=_rank(9).batch), "ranks 7 and 9 compute on the same batch"),
        (same_random, _rank(7, drawn=_rank(9).drawn), "ranks 7 and 9 draw the same random numbers"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_one_rank_of_many_is_one_finding(rule: object, bad: RankFacts, text: str) -> None:
    ranks = [_rank(rank) for rank in range(RANKS)]
    assert not list(rule(ranks))  # type: ignore[operator]
    ranks[7] = bad
    (found,) = rule(ranks)  # type: ignore[operator]
    assert text in found.text


def test_ranks_that_reduce_nothing_are_listed() -> None:
    ranks = [_other(rank, "applied", value=str(rank)) for rank in range(8)]
    for rank in ranks:
        rank.parameters["b"] = rank.parameters["b"]._replace(is_telling=False)
    assert [found.text[:46] for found in never_reduced(ranks)] == ["ranks 0-7 each apply a gradient of their own t"]
    assert not list(never_reduced([replace(rank, is_sharded=True) for rank in ranks]))


def test_parts_of_a_model_are_no_replicas() -> None:
    """Two stages of a pipeline, each on two ranks: only those of a stage are held against each other."""
    stages = [_rank(rank, parameters={"ab"[rank // 2]: _rank(0).parameters["ab"[rank // 2]]}) for rank in range(4)]
    assert not [found for rule in RULES if isinstance(rule, RankRule) for found in rule.search(stages)]


def test_the_line_of_a_rank_that_is_read_again_is_named(tmp_path: Path) -> None:
    honest = record(tmp_path / "honest", 5)
    assert not check(honest).findings
    (found,) = check(record_beside(honest, tmp_path / "bad", 5, FAULTS[5], 3)).findings
    assert (found.rule, found.rank, found.count) == ("not-reduced", 0, 1)
    assert "ranks 0-2|4 and 3" in found.text and found.where.endswith("in _backward")
