"""YAML files that a user writes for a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import ConfigError
from aten_dump.analysis.yaml_file import load_yaml


def test_what_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    for text, held in (("modules: {a: b}", {"modules": {"a": "b"}}), ("- 1\n- ä", [1, "ä"]), ("", None)):
        file.write_text(text, encoding="utf-8")
        assert load_yaml(file, "mapping", "is") == held


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read mapping .*none\.yaml: No such file or directory$"):
        load_yaml(tmp_path / "none.yaml", "mapping", "is")
    with pytest.raises(ConfigError, match=r"^cannot read mapping .*: Is a directory$"):
        load_yaml(tmp_path, "mapping", "is")
    file = tmp_path / "rules.yaml"
    for text in ("a: [", "a: !!python/object/apply:os.system ['true']"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"^rules .*rules\.yaml are not valid YAML: "):
            load_yaml(file, "rules", "are")
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"^rules .* are not valid YAML: "):
        load_yaml(file, "rules", "are")
