"""docs/format.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

import msgpack
import pytest

from aten_dump.store import records as r
from aten_dump.store import recovery, shards
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from tests.checkout import ROOT

TEXT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")


def tables() -> dict[str, tuple[int, list[str]]]:
    """Return kind and field names by record, as the document has them."""
    found = {}
    for name, kind, body in re.findall(r"^### (\w+) \(kind (\d+)\)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL):
        rows = re.findall(r"^\| (\d+) \| (\w+) \| ", body, re.MULTILINE)
        assert [int(number) for number, _ in rows] == list(range(len(rows)))
        found[name] = (int(kind), [field for _, field in rows])
    return found


def test_the_document_has_the_records_of_the_code_and_no_others() -> None:
    expected = {record.__name__: (kind, list(record._fields)) for kind, record in r.RECORD_TYPES.items()}  # type: ignore[attr-defined]
    assert tables() == expected


def test_types_in_the_document_fit_those_in_the_code() -> None:
    names = {"int": "int", "text": "str", "bin": "bytes", "bool": "bool", "tree": "Tree"}
    for record in r.RECORD_TYPES.values():
        body = TEXT.split(f"### {record.__name__} (kind")[1].split("\n##")[0]
        types = re.findall(r"^\| \d+ \| (\w+) \| (\S+) \| ", body, re.MULTILINE)
        for field, written in types:
            code = record.__annotations__[field]
            code = getattr(code, "__forward_arg__", code)
            assert written.endswith("?") == ("| None" in code), (record, field)
            plain = written.removesuffix("?")
            if plain in names:
                assert code.split(" |")[0] == names[plain], (record, field)
            else:
                assert code.startswith(("list[", "Sequence[") if plain[0] == "[" else "dict[str, "), (record, field)


def test_defaults_in_the_document_are_those_of_the_code() -> None:
    for record in r.RECORD_TYPES.values():
        body = TEXT.split(f"### {record.__name__} (kind")[1].split("\n##")[0]
        line = re.search(r"^Fields that MAY be left out, with their defaults: (.*)\.$", body, re.MULTILINE)
        written = dict(re.findall(r"`(\w+)` (\w+|\[\])", line[1])) if line else {}
        names: dict[object, str] = {None: "nil", 0: "0", (): "[]"}
        assert written == {field: names[value] for field, value in record._field_defaults.items()}, record  # type: ignore[attr-defined]


def rows_after(heading: str) -> list[list[str]]:
    body = TEXT.split(heading)[1].split("\n#")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]


def test_codes_and_bits() -> None:
    rows = rows_after("### 5.3 Codes")
    codes = [row for row in rows if len(row) == 4 and row[0].isdecimal()]
    for column, names in ((1, r.CALL_KINDS), (2, r.PHASES), (3, r.LAYOUTS)):
        assert tuple(row[column] for row in codes if row[column]) == names
    bits = [row for row in rows if len(row) == 3 and row[0].isdecimal()]
    for column, count in ((1, 5), (2, 2)):
        named = [row for row in bits if row[column]]
        assert len(named) == count
        assert all(getattr(r, row[column]) == int(row[0]) for row in named)


def test_tree_tags() -> None:
    tags = {value for name, value in vars(r).items() if name.startswith("TREE_")}
    assert {int(row[0]) for row in rows_after("### 5.1 Trees") if row[0].isdecimal()} == tags


def test_dtypes() -> None:
    documented = {name for row in rows_after("## 3. Shards")[2:] for name in row[1].split()}
    assert documented | {"F4"} == set(shards.DTYPE_BITS)


def test_version_metadata_and_codes_of_notes() -> None:
    assert f"# The aten_dump format, version {r.FORMAT_VERSION}" in TEXT
    assert shards.HEADER_START == '{"__metadata__":{"format":"pt"}'
    assert f"`{recovery.RECOVERED}`" in TEXT
    sources = "".join(path.read_text() for path in Path(shards.__file__).parent.rglob("*.py"))
    codes = re.findall(r'Note\(NOTE, "(\w+)"', sources)
    assert len(codes) >= 4
    assert all(f"\n| `{code}` | " in TEXT for code in codes)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    block = TEXT.split("```hex\n")[1].split("```")[0]
    data = b"".join(bytes.fromhex(line.split("#")[0]) for line in block.splitlines())
    (tmp_path / "index.msgpack").write_bytes(data)
    return tmp_path


def test_the_worked_example_is_an_index(example: Path) -> None:
    data = (example / "index.msgpack").read_bytes()
    assert read_index(example / "index.msgpack").good_bytes == len(data)
    unpacker = msgpack.Unpacker(use_list=True)
    unpacker.feed(data)
    assert [type_.__name__ for type_ in (r.RECORD_TYPES[row[0]] for row in unpacker)] == re.findall(
        r"^[0-9a-f ]+# (\w+)", TEXT, re.MULTILINE
    )
    index = read_index(example)
    (blob,) = index.records(r.BLOB)
    (shard,) = index.records(r.SHARD)
    head = (
        bytes.fromhex("f8 ff 00 00 00 00 00 00")
        + re.search(r"^`f8 ff.*then `(.*?)` and spaces", TEXT, re.MULTILINE)[1].encode()
    )  # type: ignore[index]
    entries, end = shards.header_entries([blob])
    assert end == 8
    assert shards.encode_header(entries, shard.header_bytes).rstrip() == head
    payload = bytes.fromhex(re.search(r"The 8 bytes at 65536 .* are `(.*?)`", TEXT)[1])  # type: ignore[index]
    (example / shards.partial_name(0)).write_bytes(bytes(shard.header_bytes) + payload)
    assert verify(example) == [index.problem]
    assert recovery.recover(example).committed
    assert verify(example) == []
