"""Help, mistakes and `import aten_dump` need no torch; what a command needs is there when it runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from aten_dump.cli.late_imports import LATE
from aten_dump.cli.main import COMMANDS
from tests.checkout import ROOT
from tests.dump.scenario import linear_step
from tests.structure import imported_names

CLI = ROOT / "aten_dump" / "cli"
NOT_NEEDED = ("torch", "numpy", "safetensors", "rich")


def fresh(code: str, *arguments: object) -> str:
    """Run code in a Python that has imported nothing yet; return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_neither_the_import_nor_any_help_needs_torch() -> None:
    code = f"""
import sys, aten_dump
from click.testing import CliRunner
from aten_dump.cli.main import COMMANDS, main
pages = [[name, "--help"] for name in COMMANDS] + [["--help"], ["--version"], ["config", "check", "--help"]]
for page in pages:
    result = CliRunner().invoke(main, page)
    assert result.exit_code == 0, (page, result.output)
    assert "_Later" not in result.output, page
    assert not set({NOT_NEEDED!r}) & set(sys.modules), page
for mistake in (["ls"], ["compare", "a", "b", "--format", "xml"], ["nonfinite", "a", "--near", "2"], ["nothing"]):
    assert CliRunner().invoke(main, mistake).exit_code == 2, mistake
    assert not set({NOT_NEEDED!r}) & set(sys.modules), mistake
print(len(pages))
"""
    assert int(fresh(code)) == len(COMMANDS) + 3


def test_what_was_put_off_is_there_when_a_command_runs(tmp_path: Path) -> None:
    """Also after the help of another command was asked for, which imported modules that both share."""
    root = linear_step(tmp_path / "dump").builder.finish()
    code = """
import sys
from click.testing import CliRunner
from aten_dump.cli.main import main
assert CliRunner().invoke(main, ["compare", "--help"]).exit_code == 0
for command in (["ls"], ["stats", "--format", "csv"], ["nonfinite"], ["ls", "--no-details"]):
    result = CliRunner().invoke(main, [command[0], sys.argv[1], *command[1:]])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 2) and "Traceback" not in result.output, result.output
    print(command[0], len(result.output) > 40)
"""
    assert fresh(code, root).split() == ["ls", "True", "stats", "True", "nonfinite", "True", "ls", "True"]


def test_commands_for_files_alone_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"path": "dump"}')
    code = """
import sys
from click.testing import CliRunner
from aten_dump.cli.main import main
for command in (["config", "check", sys.argv[1]], ["config", "init"], ["ctl", "no-such-dump", "status"]):
    CliRunner().invoke(main, command)
    assert "torch" not in sys.modules, command
"""
    fresh(code, tmp_path / "config.json")


def late_uses(source: str, file: Path) -> Iterator[str]:
    """Yield the places where a module's own code, which runs on import, uses a name that is imported late."""
    tree = ast.parse(source)
    late = {
        (alias.asname or alias.name)
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias, name in zip(node.names, imported_names([node], file, ROOT / "aten_dump"), strict=True)
        if name.startswith(LATE)
    }
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and node.id in late:
            yield f"{file.name}:{node.lineno}: {node.id}"
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            parts = [*getattr(node, "decorator_list", ()), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.value] if node.value else []
        todo += parts


def test_no_module_of_the_command_line_uses_a_late_name_while_it_is_imported() -> None:
    files = [file for file in CLI.rglob("*.py") if f"aten_dump.cli.{file.stem}" not in LATE]
    assert len(files) > 20
    assert [use for file in files for use in late_uses(file.read_text(encoding="utf-8"), file)] == []


def test_a_late_use_is_seen() -> None:
    source = "from ..dump import open_dump\nimport torch\n_A = {1: open_dump}\ndef f(x=torch.e): return torch.e\n"
    assert sorted(late_uses(source, CLI / "one.py")) == ["one.py:3: open_dump", "one.py:4: torch"]
