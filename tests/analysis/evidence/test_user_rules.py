"""Rules of the user's: which decides, what a predicate may say, and that they fail closed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aten_dump import ConfigError
from aten_dump.analysis.distance.metrics import measure
from aten_dump.analysis.evidence.user_rules import Rule, find_rule, make_rules, parse_rule, read_rules
from tests.analysis.by_hand import EQUAL


def test_rules_are_tried_in_order() -> None:
    rules = make_rules([("softmax", "ignore"), parse_rule("mm: rel_l2 <= 1e-3 and cosine > 0.999"), ("mm", "bitwise")])
    assert find_rule(rules, "Aten.mm.0.forward.output.0") is rules[1]
    assert find_rule(rules, "Aten.add.0.forward.output.0") is None
    assert find_rule(rules, "Aten.x.0.forward.output.0", "aten::_softmax") is rules[0], "or in the op"
    assert make_rules([rules[0]]) == (rules[0],)


@pytest.mark.parametrize(
    ("predicate", "met"),
    [
        ("rel_l2 < 0.5", False),
        ("rel_l2 <= 0.5", True),
        ("rel_l2 > 0.5", False),
        ("rel_l2 >= 0.5", True),
        ("rel_l2 == 0.5", True),
        ("rel_l2 != 0.5", False),
        ("0.1 < rel_l2 < 0.5", False),
        ("0.1 < rel_l2 <= 0.5", True),
        ("0.5 < rel_l2 < 0.6", False),
        ("rel_l2 > 1 or cosine > 0", True),
        ("rel_l2 < 1 and cosine > 1", False),
        ("rel_l2 > 1 or cosine < 0", False),
        ("rel_l2 < 1 and cosine <= 1", True),
        ("not bitwise", True),
        ("bitwise", False),
        ("cosine > -1", True),
        ("cosine < -1", False),
        ("dtype == 'float32'", True),
        ("count", False),  # only True is True
        ("-cosine", False),
        ("ignore", True),
    ],
)
def test_predicates(predicate: str, met: bool) -> None:
    assert Rule("x", predicate).met(replace(EQUAL, rel_l2=0.5, exact=0.5)) is met


def test_rules_fail_closed() -> None:
    found = measure(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001]))
    assert not Rule("x", "rel_l2 < 9").met(None), "no tensors"
    assert Rule("x", "ignore").met(None)
    assert not Rule("x", "rel_l2 < 9").met(replace(found, rel_l2=math.nan))
    assert not Rule("x", "not rel_l2 > 9").met(replace(found, rel_l2=math.nan)), "nobody knows"
    assert not Rule("x", "max_abs_at < 3").met(found), "coordinates"
    assert not Rule("x", "max_abs_at < 3").met(EQUAL), "there are none"
    assert not Rule("x", lambda m: 1 / 0 > 0).met(found)
    assert not Rule("x", lambda m: "yes").met(found)  # type: ignore[arg-type, return-value]
    assert Rule("x", lambda m: m.count == 2).met(found)


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        ("rel_l2 <", "is not an expression"),
        ("rell2 < 1", "names 'rell2'; allowed: .*rel_l2"),
        ("__import__('os')", "has a Call"),
        ("rel_l2.real < 1", "has a Attribute"),
        ("max_abs_at[0] < 1", "has a Subscript"),
        ("rel_l2 + 1 < 2", "has a BinOp"),
        ("(lambda: 1)()", "has a "),
        ("rel_l2 is 1", "has a Is"),
        ("+rel_l2 < 1", "has a UAdd"),
    ],
)
def test_what_a_predicate_may_not_say(predicate: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rule("x", predicate)


def test_what_is_no_rule() -> None:
    with pytest.raises(ConfigError, match=r"rule '\(' is not a regular expression"):
        Rule("(", "ignore")
    with pytest.raises(ConfigError, match="has no ': '"):
        parse_rule("softmax")
    rule = parse_rule(r"mutated: self: rel_l2 < 1 ")
    assert (rule.pattern, rule.predicate, str(rule)) == ("mutated: self", "rel_l2 < 1", "mutated: self: rel_l2 < 1")


def test_rules_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("- softmax: ignore\n- mm: rel_l2 <= 1e-3\n")
    assert read_rules(file) == (Rule("softmax", "ignore"), Rule("mm", "rel_l2 <= 1e-3"))
    for wrong in ("softmax: ignore", "- softmax", "3", ""):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="must be a list of '- pattern: predicate'"):
            read_rules(file)
    with pytest.raises(ConfigError, match=r"cannot read rules .*No such file"):
        read_rules(tmp_path / "none.yaml")
