"""docs/guide/parity.md against the code: what is named there exists, and nothing lacks a row."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module

import pytest

from aten_dump import DumpConfig, DumpMode, RankDump, compat
from aten_dump.cli import main as cli
from aten_dump.export.targets import targets
from aten_dump.extensions import READERS, extensions
from aten_dump.other_tools.mindspore import mindspore_keys
from aten_dump.other_tools.msprobe import msprobe_keys
from tests.checkout import ROOT
from tests.config_files import test_config_files as keys

PAGE = (ROOT / "docs" / "guide" / "parity.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| `([^`]+)` \| (.+) \| `([^`]+)::([^`]+)` \|")


def rows(title: str) -> dict[str, tuple[str, str, str]]:
    """Return what is there, the file and the name of the test, by the first column of the table under a title."""
    [section] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return {match[1]: (match[2], match[3], match[4]) for match in found if match}


def public_methods() -> set[str]:
    names = {"seed_all"}
    for cls in (compat.PrecisionDebugger, compat.HookerAndDumper):
        names.add(cls.__name__)
        names |= {f"{cls.__name__}.{name}" for name in vars(cls) if not name.startswith("_")}
    return names


def ways_in() -> set[str]:
    """Return the commands that record, the callbacks, and what a script may say."""
    commands = {name for name, folder in cli._FOLDERS.items() if folder == "recording"}
    callbacks = {file.stem for file in (ROOT / "aten_dump" / "integrations").glob("*_callback.py")}
    said = {"save": DumpMode, "mark": DumpMode, "scope": DumpMode, "__call__": DumpMode, "module": RankDump}
    return commands | callbacks | {f"{owner.__name__}.{name}" for name, owner in said.items() if hasattr(owner, name)}


CODE = {
    "Keys of msprobe's config.json": set(msprobe_keys.KEYS),
    "Keys of a task in it": set(msprobe_keys._OF_TASK),
    "Keys of MindSpore's data_dump.json": set(mindspore_keys.KEYS),
    "Classes and methods": public_methods(),
    "Exports": set(targets()),
    "Readers": {reader.read.__module__.rpartition(".")[2] for _, reader in extensions(READERS)},
    "Recipes": {"examples/*.py"},
    "Ways in": ways_in(),
}


@pytest.mark.parametrize("title", CODE)
def test_each_has_a_row_and_each_row_is_one(title: str) -> None:
    assert set(rows(title)) == CODE[title]


@pytest.mark.parametrize("title", CODE)
def test_the_tests_that_are_named_exist(title: str) -> None:
    for key, (here, file, name) in rows(title).items():
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{key}: {file} has no {name}"
        assert here


def test_all_names_of_compat_are_told() -> None:
    assert set(compat.__all__) <= set(rows("Classes and methods"))


def test_all_tables_are_held() -> None:
    assert set(re.findall(r"^## (.+)$", PAGE, re.MULTILINE)) == set(CODE)


SAMPLES = {
    "Keys of msprobe's config.json": keys.MSPROBE,
    "Keys of a task in it": keys.OF_TASK,
    "Keys of MindSpore's data_dump.json": keys.MINDSPORE,
}
FIELDS = {field.name for field in dataclasses.fields(DumpConfig) if field.init}


@pytest.mark.parametrize(("title", "key"), [(title, key) for title in SAMPLES for key in rows(title)])
def test_a_row_names_the_fields_that_its_key_sets_and_no_other(title: str, key: str) -> None:
    """What stands before the first semicolon or colon is a list of fields, or there is none that the key sets."""
    head = re.split("[;:]", rows(title)[key][0])[0]
    named = set(re.findall(r"`(\w+)`", head)) & FIELDS
    tried = [fields for name, _, fields in SAMPLES[title] if name == key]
    assert named == {name for fields in tried for name in fields or ()}, head


def test_keys_that_are_tried_are_all_keys() -> None:
    tried = import_module("tests.config_files.test_config_files")
    assert callable(tried.test_every_key_is_tried), "each key is a case of the test that its row names"
