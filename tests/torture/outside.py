"""What a case must leave alone: a tree of files beside the dump, and all that Python can be asked to do to the machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAME = "outside"
_RUNS = {
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill", "os.putenv", "os.unsetenv",
    "subprocess.Popen", "socket.connect", "socket.bind", "ctypes.dlopen", "pickle.find_class", "webbrowser.open",
}  # fmt: skip
_CHANGES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "shutil.rmtree", "shutil.move", "tempfile.mkstemp",
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Listener:
    """Python's audit events, heard while `acts` is a list; a hook cannot be taken away, so there is one."""

    def __init__(self) -> None:
        self.acts: list[str] | None = None
        self.events: set[str] = set()
        self.is_there = False

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.acts is None or event not in self.events:
            return
        if event == "open" and (
            isinstance(args[0], int) or not (args[2] or 0) & _WRITES or "__pycache__" in str(args[0])
        ):
            return
        self.acts.append(f"{event} {args}"[:200])


_listener = _Listener()


@contextmanager
def nothing_done(*, files: bool = True) -> Iterator[list[str]]:
    """Collect what is run or connected to within a block, and, with `files`, what is written, made or removed."""
    if not _listener.is_there:
        sys.addaudithook(_listener.hear)
        _listener.is_there = True
    acts: list[str] = []
    _listener.acts, _listener.events = acts, _RUNS | (_CHANGES | {"open"} if files else set())
    try:
        yield acts
    finally:
        _listener.acts = None


def make_outside(folder: Path, dump: Path) -> Path:
    """Make a tree that links of hostile dumps lead to: a text, and a dump that `recover` would change."""
    outside = folder / NAME
    if not outside.exists():
        shutil.copytree(dump, outside / "dump")
        (outside / "kept.txt").write_text("not to be touched\n", encoding="utf-8")
    return outside


def state_of(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, time of change and digest of everything in a folder, by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = status.st_mode, status.st_mtime_ns, digest
    return found
