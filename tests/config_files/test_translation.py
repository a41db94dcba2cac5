"""What becomes of the keys of another tool's config."""

from __future__ import annotations

from typing import Any

import pytest

from aten_dump import ConfigError
from aten_dump.config_files.translation import Translation, no_meaning, numbers, path_field, pattern


@pytest.fixture
def made() -> Translation:
    return Translation("msprobe", "config file a.json")


def test_keys_set_fields_and_say_so(made: Translation) -> None:
    made.put("task", data="tensor", level="mix")
    made.put("step", steps="1")
    assert made.fields == {"data": "tensor", "level": "mix", "steps": "1"}
    assert made.mapped == {"task": "data = 'tensor', level = 'mix'", "step": "steps = '1'"}
    made.put("other", data="hash")
    assert made.fields["data"] == "hash", "the last one counts"
    made.drop("seed", "it is the program's")
    assert made.without_meaning == {"seed": "it is the program's"} and "seed" not in made.mapped


@pytest.mark.parametrize(("found", "meant"), [("L0", "module"), (2, "two"), ("", "none")])
def test_a_value_stands_for_another(made: Translation, found: Any, meant: str) -> None:
    assert made.choose("level", found, {"L0": "module", 2: "two", "": "none"}) == meant


@pytest.mark.parametrize("found", ["L1", 3, None, True, 1.0, ["L0"], {"L0": 1}])
def test_values_that_the_tool_does_not_allow(made: Translation, found: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        made.choose("level", found, {"L0": "module", 1: "one"})
    assert str(raised.value) == f"config file a.json: level is {found!r}; msprobe allows: 'L0', 1"


def test_one_string_is_a_list_of_it(made: Translation) -> None:
    assert made.strings("list", "relu") == ["relu"]
    assert made.strings("list", ["relu", "conv"]) == ["relu", "conv"]
    assert made.strings("list", []) == []
    for found in (3, None, ["relu", 3], {"relu": 1}, ("relu",)):
        with pytest.raises(ConfigError, match="msprobe allows: a list of strings"):
            made.strings("list", found)


def test_every_key_is_translated_or_refused(made: Translation) -> None:
    table = {"dump_path": path_field, "seed": no_meaning("it is the program's"), "step": no_meaning("unused")}
    made.each({"seed": 3, "dump_path": "out"}, table)
    assert made.fields == {"path": "out"} and made.without_meaning == {"seed": "it is the program's"}
    with pytest.raises(ConfigError) as raised:
        made.each({"sed": 3, "dump_path": "elsewhere", "a": 1}, table)
    assert str(raised.value) == ("config file a.json has unknown keys a, sed; msprobe has: dump_path, seed, step")
    assert made.fields == {"path": "out"}, "nothing is taken of a config with unknown keys"


@pytest.mark.parametrize("found", ["", None, 3, ["out"]])
def test_a_directory_must_be_named(made: Translation, found: Any) -> None:
    with pytest.raises(ConfigError, match=r"dump_path is .*; msprobe allows: a directory's path"):
        path_field(made, "dump_path", found)


@pytest.mark.parametrize(("found", "text"), [([], "all"), ([0], "0"), ([1, "3-5", 9], "1|3-5|9"), (range(2), "0|1")])
def test_numbers_and_ranges(found: Any, text: str) -> None:
    assert numbers(found) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("relu", "relu"),
        ("name-regex(conv.*)", "regex:conv.*"),
        ("name-regex(a(b|c))", "regex:a(b|c)"),
        ("name-regex()", "regex:"),
        ("name-regex(open", "name-regex(open"),
        ("x-name-regex(a)", "x-name-regex(a)"),
    ],
)
def test_names_and_expressions(name: str, text: str) -> None:
    assert pattern(name) == text
