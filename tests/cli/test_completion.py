"""Completion in a real bash, as a user's: installed by the command, asked for by Tab."""

from __future__ import annotations

import os
import pty
import select
import shutil
import stat
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aten_dump.cli.completion import SHELLS, complete_name, install
from aten_dump.cli.main import COMMANDS, main
from tests.checkout import ROOT
from tests.dump.building import Builder
from tests.dump.scenario import linear_step

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "my home").mkdir()
    return tmp_path / "my home"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return linear_step(tmp_path / "dump").builder.finish()


class Terminal:
    """An interactive bash in a terminal of its own, with `aten-dump` on its PATH."""

    def __init__(self, folder: Path) -> None:
        command = folder / "bin" / "aten-dump"
        command.parent.mkdir()
        code = "from aten_dump.cli.main import main; main(prog_name='aten-dump')"
        command.write_text(f'#!{shutil.which("bash")}\nexec \'{sys.executable}\' -c "{code}" "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PS1": "ready> "}
            environment |= {"PYTHONPATH": str(ROOT), "TERM": "dumb", "INPUTRC": "/dev/null"}
            os.chdir(folder)
            os.execve(shutil.which("bash") or "", ["bash", "-i"], environment)
        self.type("PS1='ready> '; bind 'set show-all-if-ambiguous on'; echo up\n", "\nup")

    def type(self, keys: str, until: str, seconds: float = 60) -> str:
        """Type keys and return what is shown from there until a text comes."""
        os.write(self.fd, keys.encode())
        shown = ""
        end = time.monotonic() + seconds
        while until not in shown.replace("\r", ""):
            assert time.monotonic() < end, shown
            if select.select([self.fd], [], [], 0.2)[0]:
                shown += os.read(self.fd, 1 << 16).decode(errors="replace")
        return shown.replace("\r", "")

    def close(self) -> None:
        os.write(self.fd, b"\x03\x15exit\n")
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.mark.slow
@needs_bash
def test_tab_completes_commands_and_names_of_calls(home: Path, dump: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--install-completion", "bash"])
    assert result.exit_code == 0 and str(home / ".bashrc") in result.output
    terminal = Terminal(tmp_path)
    try:
        terminal.type("aten-dump rep\t", "replay")  # and report
        terminal.type("\x15aten-dump sho\t", "aten-dump show ")
        terminal.type(f"{dump} Aten.ad\t", "Aten.addmm.0.forward ")
        terminal.type("\x15" + f"aten-dump show {dump} Functional.\t", "Functional.relu_.0.forward")
        terminal.type("\x15" + f"aten-dump replay {dump} Aten.mm.0.backward.inp\t", "input.1")
    finally:
        terminal.close()


def completed(dump: Path, incomplete: str, **more: object) -> list[str]:
    context = click.Context(click.Command("show"))
    context.params = {"dump": dump, **more}
    return complete_name(context, click.Argument(["name"]), incomplete)


def test_names_of_calls_and_tensors(dump: Path) -> None:
    assert completed(dump, "Aten.addmm") == ["Aten.addmm.0.forward"]
    assert completed(dump, "Aten.addmm.0.forward.o") == ["Aten.addmm.0.forward.output.0"]
    assert completed(dump, "Aten.addmm.0.forward.input.1") == ["Aten.addmm.0.forward.input.1"]
    assert completed(dump, "nothing") == []
    assert completed(dump, "Aten", step=7) == completed(dump.parent / "none", "Aten") == []


def test_of_thousands_of_names_the_apis_come_first(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    for api in ("add", "addmm"):
        op = builder.op("aten", f"aten::{api}", "Aten", api)
        for _ in range(600):
            builder.call(op)
    dump = builder.finish()
    assert completed(dump, "Aten.a") == ["Aten.add.", "Aten.addmm."]
    assert len(completed(dump, "Aten.add.")) == 600


@pytest.mark.parametrize("shell", SHELLS)
def test_installed_once(shell: str, home: Path) -> None:
    startup = home / f".{shell}rc"
    if shell != "fish":
        startup.write_text("alias ll='ls -l'")
    for _ in range(2):
        script, read_by = install(shell, main)
    assert "_ATEN_DUMP_COMPLETE" in script.read_text()
    if shell == "fish":
        assert script == home / ".config/fish/completions/aten-dump.fish" and read_by is None
    else:
        assert startup.read_text() == f"alias ll='ls -l'\n. '{script}'\n"


def test_a_folder_that_cannot_be_written_is_named(home: Path) -> None:
    (home / ".local").write_text("a file")
    result = CliRunner().invoke(main, ["--install-completion", "zsh"])
    assert result.exit_code == 2
    assert "cannot write" in result.output and "make it writable" in result.output


def test_commands_complete_without_being_imported() -> None:
    found = main.shell_complete(click.Context(main), "re")
    assert [item.value for item in found] == [name for name in COMMANDS if name.startswith("re")]
    assert "--version" in [item.value for item in main.shell_complete(click.Context(main), "--v")]
