"""A rule is found by the name of an op, in place or not."""

from __future__ import annotations

from aten_dump.analysis.rerun.argument_checks import rule_for, rule_of


def test_a_rule_is_for_its_ops_and_those_in_place() -> None:
    rules = {**rule_for("put take", "flat"), **rule_for("index_fill", "wrapping")}
    assert rule_of(rules, "put") == rule_of(rules, "put_") == "flat"
    assert rule_of(rules, "index_fill_") == "wrapping"
    assert rule_of(rules, "puts") is None and rule_of(rules, "add_") is None


def test_an_op_with_a_rule_of_its_own_keeps_it() -> None:
    assert rule_of({**rule_for("set", "plain"), **rule_for("set_", "in place")}, "set_") == "in place"
