"""The command line on a terminal of some width, which is a real one: a pseudo-terminal that is read while it is written."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest

from aten_dump.cli.main import main


def on_terminal(width: int, *arguments: object) -> list[str]:
    """Run a command whose output is a terminal; return the lines."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    read: list[bytes] = []

    def follow() -> None:
        try:
            while part := os.read(master, 1 << 16):
                read.append(part)
        except OSError:  # Linux says so that the other end is closed
            pass

    reader = threading.Thread(target=follow)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, open(slave, "w", encoding="utf-8") as file:
        patch.setattr(sys, "stdout", file)
        patch.delenv("COLUMNS", raising=False)
        main(list(map(str, arguments)), standalone_mode=False)
    reader.join()
    os.close(master)
    return b"".join(read).decode().splitlines()


def in_pipe(path: Path, *arguments: object) -> list[str]:
    """Run a command whose output is a file; return the lines."""
    with pytest.MonkeyPatch.context() as patch, open(path, "w", encoding="utf-8") as file:
        patch.setattr(sys, "stdout", file)
        main(list(map(str, arguments)), standalone_mode=False)
    return path.read_text(encoding="utf-8").splitlines()
