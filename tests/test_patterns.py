"""One text selects the same ops wherever it is written: config, filter, command line, page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import ConfigError, DumpConfig, DumpMode, open_dump
from aten_dump.analysis.evidence.user_rules import Rule, read_rules
from aten_dump.analysis.pairing.user_mapping import Mapping
from aten_dump.cli.main import main
from aten_dump.patterns import PREFIXES, module_test, op_names, op_test, outer_modules
from aten_dump.yaml_text import read_yaml
from tests.checkout import ROOT

TEXTS = (
    *("Functional.lin", "Functional.linear", "functional.linear", "Functional", "Functional.", "linear", "LINEAR"),
    *("aten::add", "aten::addm", "aten::addmm", "aten::add.Tensor", "aten::", "add", "Aten.add", "aten.add", "Aten.ad"),
    *(
        "regex:^aten::",
        "regex:^aten::add$",
        "regex:mm$",
        "regex:MM$",
        "regex:(?i)MM$",
        "Node.Addmm",
        "Backward0",
        "view",
    ),
)


def step(path: Path, ops: tuple[str, ...]) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    with DumpMode(DumpConfig(path, data="structure", ops=ops), model=model):
        (model(torch.ones(2, 3)).view(3, 2) + 1).sum().backward()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return step(tmp_path_factory.mktemp("patterns") / "whole", ())


@pytest.mark.filterwarnings("ignore:aten_dump recorded nothing")
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_records_what_it_finds(whole: Path, tmp_path: Path, text: str) -> None:
    recorded = open_dump(step(tmp_path / "dump", (text,))).rank(0, 0)
    found = [call for call in open_dump(whole).rank(0, 0).calls.filter(op=text) if call.kind != "module"]
    assert {call.op for call in recorded.calls} == {call.op for call in found}
    assert len(recorded.calls) == len(found)
    shown = CliRunner().invoke(main, ["stats", str(whole), "--op", text, "--format", "json"])
    assert {row["call"] for row in json.loads(shown.stdout)["rows"]} <= {
        call.name for call in open_dump(whole).rank(0, 0).calls.filter(op=text)
    }


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's search runs in a browser, or in node")
def test_the_page_finds_the_same(whole: Path) -> None:
    ops = sorted({(call.op, call.name.rsplit(".", 2)[0]) for call in open_dump(whole).rank(0, 0).calls})
    search = ROOT / "aten_dump" / "report" / "html" / "page" / "data" / "search.js"
    script = f"""
import {{ opsNamed }} from {json.dumps(search.as_uri())};
const ops = {json.dumps([{"op": op, "head": head} for op, head in ops])};
console.log(JSON.stringify({json.dumps(TEXTS)}.map((text) => opsNamed(ops, text))));
"""
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    expected = [[op_test(text, "op")(op, head) for op, head in ops] for text in TEXTS]
    assert dict(zip(TEXTS, json.loads(done.stdout), strict=True)) == dict(zip(TEXTS, expected, strict=True))


def test_the_page_knows_the_same_prefixes() -> None:
    source = (ROOT / "aten_dump" / "report" / "html" / "page" / "data" / "search.js").read_text(encoding="utf-8")
    listed = source.partition("const PREFIXES = [")[2].partition("]")[0]
    assert {name.strip(' "\n') for name in listed.split(",") if name.strip()} == PREFIXES


def test_the_names_that_a_user_may_know_an_op_by() -> None:
    assert op_names("aten::add_.Tensor", "Aten.add_") == ("aten::add_.Tensor", "aten::add_", "Aten.add_")
    assert op_names("torch.nn.functional.linear", "Functional.linear")[1] == "torch.nn.functional.linear"


def test_modules_and_what_is_inside() -> None:
    assert list(outer_modules("a.b.c")) == ["a.b.c", "a.b", "a"] and list(outer_modules("")) == []
    assert [module_test("a.*", "m")(path) for path in ("a.b", "a.b.c", "a", "b")] == [True, True, False, False]
    assert module_test("*", "m")("") and not module_test("a*", "m")("")


@pytest.mark.parametrize("glob", ["*", "0", "1*", "2", "[01]"])
@pytest.mark.filterwarnings("ignore:aten_dump recorded nothing")
def test_a_glob_records_what_it_finds(tmp_path: Path, glob: str) -> None:
    sizes = []
    for modules in ((), (glob,)):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
        path = tmp_path / str(len(sizes))
        with DumpMode(DumpConfig(path, data="structure", modules=modules), model=model):
            (model(torch.ones(2, 3)).view(3, 2) + 1).sum().backward()
        sizes.append(len(open_dump(path).rank(0, 0).calls.filter(module=glob)))
    assert sizes[0] == sizes[1] == len(open_dump(tmp_path / "1").rank(0, 0).calls)


@pytest.fixture(autouse=True)
def pythons_own_recursion_limit() -> Iterator[None]:
    """What torch's compiler, imported by another test, has raised: nested texts are refused by it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


DEEP = "(" * 500 + "a" + ")" * 500
BAD = (f"regex:{DEEP}", "regex:(", "regex:a{99999999999999999999}", "regex:[z-a]")


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_regular_expression_is_told_wherever_it_is_written(whole: Path, tmp_path: Path, text: str) -> None:
    said = r"is not a regular expression|nested too deeply"
    calls = open_dump(whole).rank(0, 0).calls
    for ask in (
        lambda: DumpConfig(tmp_path, ops=[text]),
        lambda: DumpConfig(tmp_path, exclude_ops=[text]),
        lambda: calls.filter(op=text),
        lambda: calls.filter(name=text),
        lambda: Rule(text.removeprefix("regex:"), "ignore"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            ask()
        assert len(str(raised.value)) < 500
    for option in ("--op", "--name"):
        done = CliRunner().invoke(main, ["show", str(whole), option, text])
        assert done.exit_code == 2 and "Error: " in done.output and "Traceback" not in done.output


@pytest.mark.parametrize("opened", ["[", "{", "- ", "{a: ", "[{", "? "])
def test_deep_yaml_is_refused_soon(tmp_path: Path, opened: str) -> None:
    """PyYAML's time grows with the square of open brackets: these would take minutes."""
    text = opened * (50_000 // len(opened))
    with pytest.raises(ValueError, match=r"nested too deeply|expected|found"):
        read_yaml(text)
    path = tmp_path / "file.yaml"
    path.write_text(text)
    for read in (DumpConfig.from_file, read_rules, Mapping.read):
        with pytest.raises(ConfigError):
            read(path)


BOMB = ", ".join(
    ["&a [x, x, x, x, x, x, x, x, x]", *(f"&{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefgh"))]
)


@pytest.mark.parametrize("text", [f"path: x\nlevel: [{BOMB}]", f"task: [{BOMB}]\ndump_path: x", "path: &a [*a]"])
def test_aliases_stand_for_no_more_than_memory_holds(tmp_path: Path, text: str) -> None:
    """Some hundred characters, which an error would have shown as 250 MB."""
    (tmp_path / "file.yaml").write_text(text)
    for read in (DumpConfig.from_file, read_rules, Mapping.read):
        with pytest.raises(ConfigError) as raised:
            read(tmp_path / "file.yaml")
        assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    "predicate", ["(" * 500 + "1" + ")" * 500, "-" * 100_000 + "1", "not " * 5000 + "bitwise", "a\0"]
)
def test_a_predicate_that_is_none_is_told(predicate: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an expression|names 'a'"):
        Rule("x", predicate)


def test_brackets_in_texts_and_lists_are_no_depth() -> None:
    rules = "\n".join(f'- "x[{n}]": "[1, [2, [3]]]"' for n in range(2000))
    assert len(read_yaml(rules)) == 2000
