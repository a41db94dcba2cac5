"""A mapping file: which rename counts, what it may hold, and what errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aten_dump.analysis.pairing.user_mapping import Mapping, found_modules
from aten_dump.errors import ConfigError, StoreError


@pytest.mark.parametrize(
    ("fqn", "renamed"),
    [
        ("transformer.h.3.attn", "model.layers.3.attn"),  # the longest prefix that is named, not "transformer"
        ("transformer.wte", "net.wte"),
        ("transformer", "net"),
        ("transformers.h", "transformers.h"),  # a prefix ends where a module's name does
        ("head.inner", "inner"),
        ("other", "other"),
    ],
)
def test_the_longest_prefix_counts(fqn: str, renamed: str) -> None:
    mapping = Mapping(modules={"transformer": "net", "transformer.h": "model.layers", "head": ""})
    assert mapping.module(fqn) == renamed


@pytest.mark.parametrize(("fqn", "renamed"), [("h.0", "model.h.0"), ("", "model"), ("head", "lm_head")])
def test_all_modules_can_be_put_below_another(fqn: str, renamed: str) -> None:
    assert Mapping(modules={"": "model", "head": "lm_head"}).module(fqn) == renamed


def test_ops_are_renamed_by_their_whole_name() -> None:
    mapping = Mapping(ops={"npu::npu_rms_norm": "aten::rms_norm"})
    assert mapping.op("npu::npu_rms_norm") == "aten::rms_norm"
    assert mapping.op("npu::npu_rms_norm.out") == "npu::npu_rms_norm.out"


@pytest.mark.parametrize("text", ["", "modules:\n", "modules: {}\nops:\ncalls:\n"])
def test_a_table_may_be_empty_or_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.yaml").write_text(text)
    assert Mapping.read(tmp_path / "map.yaml") == Mapping()


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        (["a"], "holds list; allowed are the tables modules, ops, calls"),
        ({"modules": {"a": "b"}, "module": {}}, "holds modules, module; allowed are"),
        ({"ops": ["a"]}, r"ops is \['a'\]; it must map texts"),
        ({"ops": {"a": 1}}, "ops is .*; it must map texts"),
        ({"calls": {1: "a"}}, "calls is .*; it must map texts"),
        ({"calls": ""}, "calls is ''; it must map texts"),
    ],
)
def test_anything_else_is_refused(tables: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=f"^map.yaml {found}" if found.startswith("holds") else f"^map.yaml: {found}"):
        Mapping.from_dict(tables, "map.yaml")


def test_a_mapping_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write mapping .*missing/map\.yaml"):
        Mapping().write(tmp_path / "missing" / "map.yaml")


def test_what_is_written_is_read_back_with_all_its_letters(tmp_path: Path) -> None:
    mapping = Mapping({"größe": "size"}, {"a::b": "c::d"}, {"Aten.a.0.forward": "Aten.b.1.forward"})
    mapping.write(tmp_path / "map.yaml")
    assert Mapping.read(tmp_path / "map.yaml") == mapping
    assert "größe: size" in (tmp_path / "map.yaml").read_text(encoding="utf-8")


def test_the_partner_met_most_often_wins() -> None:
    assert found_modules([("a", "x"), ("a", "y"), ("a", "y"), ("b", "b")]) == {"a": "y"}


def test_what_follows_from_an_outer_rename_is_not_repeated() -> None:
    pairs = [("m.h.0.mlp", "n.h.0.mlp"), ("m.h", "n.h"), ("m", "n"), ("m.h.1.mlp", "n.h.1.ffn")]
    assert found_modules(pairs) == {"m": "n", "m.h.1.mlp": "n.h.1.ffn"}
