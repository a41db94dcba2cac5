"""Alignment against traces whose true alignment is known, and the subsequence algorithms against brute force."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest

from aten_dump.analysis.pairing import alignment as subsequence
from aten_dump.analysis.pairing.alignment import CallKey, Match, align
from aten_dump.analysis.pairing.call_keys import normal_module
from aten_dump.analysis.pairing.user_mapping import Mapping, found_modules
from tests.analysis.pairing.synthetic_traces import CASES, score, trace


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layers", [4, 32])
def test_known_alignments_are_found(case: str, layers: int) -> None:
    baseline = trace(layers)
    target = CASES[case](baseline)
    matches = align([call.key for call in target], [call.key for call in baseline])
    recall, wrong = score(target, baseline, [(m.target, m.baseline) for m in matches])
    assert recall >= 0.99
    assert wrong <= 0.005


@pytest.mark.slow
def test_a_hundred_thousand_calls_with_renamed_modules_align() -> None:
    baseline = trace(600)
    target = CASES["renamed"](baseline)
    matches = align([call.key for call in target], [call.key for call in baseline])
    recall, wrong = score(target, baseline, [(m.target, m.baseline) for m in matches])
    assert len(baseline) > 95_000 and recall >= 0.99 and wrong <= 0.005


def test_forward_never_pairs_with_recompute() -> None:
    baseline = trace(4)
    target = CASES["recomputed"](baseline)
    matches = align([call.key for call in target], [call.key for call in baseline])
    assert len(matches) > 100
    for match in matches:
        assert target[match.target].key.phase == baseline[match.baseline].key.phase


def _brute(a: list[int], b: list[int]) -> int:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        if a[i] == b[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    return longest(0, 0)


@pytest.mark.parametrize("most_bits", [1 << 30, 40])  # 40: every call is split by Hirschberg
def test_subsequences_are_the_longest(most_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsequence, "_MAX_BITS", most_bits)
    chance = random.Random(0)
    for _ in range(300):
        a, b = ([chance.randrange(4) for _ in range(chance.randrange(15))] for _ in range(2))
        pairs = subsequence.longest_common(a, b)
        assert len(pairs) == _brute(a, b)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))


def test_anchors_are_unique_and_in_order() -> None:
    assert subsequence.unique_anchors([1, 2, 3, 3, 4], [2, 1, 3, 4]) == [(0, 1), (4, 3)]
    assert subsequence.unique_anchors([1, 1], [1]) == []


def test_as_many_anchors_as_can_be_in_order() -> None:
    chance = random.Random(1)
    for _ in range(100):
        a, b = (chance.sample(range(8), 8) for _ in range(2))
        pairs = subsequence.unique_anchors(a, b)
        assert len(pairs) == _brute(a, b)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))


def _key(op: str, module: str = "m", shape: tuple[int, ...] = (2,)) -> CallKey:
    return CallKey("forward", module, op, (shape,))


def test_how_a_pair_was_found_is_told() -> None:
    target = [_key("a"), _key("x"), _key("x"), _key("b", "new"), _key("c", shape=(3,)), _key("end")]
    baseline = [_key("a"), _key("x"), _key("x"), _key("b", "old"), _key("c", shape=(4,)), _key("end")]
    found = {match.target: match.how for match in align(target, baseline)}
    assert found == {0: "module", 1: "sequence", 2: "sequence", 3: "order", 4: "shapeless", 5: "module"}


def test_calls_in_another_order_are_not_paired_with_those_of_another_shape() -> None:
    read = _key("read")  # of a flag, before each buffer is zeroed
    target = [k for n in (1, 2, 1, 2, 3, 4, 4, 3) for k in (read, _key("zero", shape=(n,)))]
    baseline = [k for n in (2, 1, 4, 4, 3, 3, 2, 1) for k in (read, _key("zero", shape=(n,)))]
    matches = align(target, baseline)
    assert all(target[match.target] == baseline[match.baseline] for match in matches)


def test_what_one_side_has_more_of_is_still_paired_with_another_shape() -> None:
    target = [_key("zero", shape=(n,)) for n in (1, 2, 5)]
    baseline = [_key("zero", shape=(n,)) for n in (2, 1, 6)]
    assert Match(2, 2, "shapeless") in align(target, baseline)


def test_the_users_pairs_come_first() -> None:
    keys = [_key("a"), _key("b")]
    assert align(keys, keys, pinned=[(0, 1)]) == [Match(0, 1, "mapping")]


def test_runs_without_counterpart_stay_alone() -> None:
    matches = align([_key("a"), _key("fused"), _key("z")], [_key("a"), _key("p"), _key("q"), _key("z")])
    assert [(m.target, m.baseline) for m in matches] == [(0, 0), (2, 3)]


@pytest.mark.parametrize(
    ("fqn", "normal"),
    [
        ("module.h.0._fsdp_wrapped_module.mlp", "h.0.mlp"),
        ("_orig_mod.h.0._checkpoint_wrapped_module", "h.0"),
        ("h.submodule.x", "h.submodule.x"),
        ("module", ""),
        ("", ""),
    ],
)
def test_wrapper_names_are_left_out(fqn: str, normal: str) -> None:
    assert normal_module(fqn) == normal


def test_renames_are_found_and_read_back(tmp_path: object) -> None:
    pairs = [
        ("transformer.h.0.attn", "model.layers.0.attn"),
        ("transformer.h", "model.layers"),
        ("transformer", "model"),
        ("head", "head"),
    ]
    modules = found_modules(pairs)
    assert modules == {"transformer": "model", "transformer.h": "model.layers"}
    path = f"{tmp_path}/map.yaml"
    Mapping(modules=modules, calls={"Aten.a.0.forward": "Aten.a.1.forward"}).write(path)
    read = Mapping.read(path)
    assert (
        read.module("transformer.h.7.mlp") == "model.layers.7.mlp" and read.module("transformers.h") == "transformers.h"
    )
    assert read.calls == {"Aten.a.0.forward": "Aten.a.1.forward"}
