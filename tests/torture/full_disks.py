"""Disks with a few free pages at a step's end and in `recover`: told, and with room again nothing written is lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.errors import StoreError
from aten_dump.store.checking.verification import verify
from aten_dump.store.recovery import recover
from tests.torture.failing import copy_of_killed

MOST_PAGES: Final = 32
_DISK_BYTES: Final = 24 << 20
_CALLS: Final = 40


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a file system of _DISK_BYTES; None where that is not permitted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", folder]
    try:
        is_mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    if not is_mounted:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def _full(disk: Path, pages: int) -> Iterator[None]:
    """Leave a disk so many free pages within a block."""
    found = os.statvfs(disk)
    fd = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, max(found.f_bavail - pages, 1) * found.f_frsize)
        yield
    finally:
        os.close(fd)
        os.unlink(disk / "ballast")


def _at_a_steps_end(disk: Path, pages: int) -> bool:
    """End a step whose bytes are on file, and begin another one; return whether that was told."""
    told = False
    try:
        with DumpMode(DumpConfig(path=disk / "dump", data="tensor")) as dump:
            for number in range(_CALLS):
                torch.full((1000,), float(number)).add(1)
            dump.flush()
            with _full(disk, pages):
                dump.step()
                torch.ones(100).exp()
                dump.close()
    except StoreError as error:
        assert error.errno == errno.ENOSPC, error
        told = True
    return told


def _in_recover(disk: Path, pages: int) -> bool:
    """Recover what was cut short; return whether it was refused."""
    copy_of_killed(disk / "dump")
    with _full(disk, pages):
        try:
            for folder in _folders(disk):
                recover(folder)
        except StoreError as error:
            assert error.errno == errno.ENOSPC and "run it again" in str(error), error
            return True
    return False


PLACES: Final = {"at a step's end": _at_a_steps_end, "in recover": _in_recover}


def fill_one(disk: Path, place: str, pages: int) -> bool:
    """Run a case on an empty disk; return whether the user was told that it is full.

    Raises:
        AssertionError: something is lost in silence, or cannot be had with room again.
    """
    told = PLACES[place](disk, pages)
    for folder in _folders(disk):
        if not told:
            assert verify(folder) == [], f"{place}, {pages} pages: {verify(folder)}"
        recover(folder)
        assert verify(folder) == [], f"{place}, {pages} pages, with room again: {verify(folder)}"
    if place == "at a step's end":
        rank = open_dump(disk / "dump").step(0).rank(0)
        assert len(rank.calls.filter(op="aten::add")) == _CALLS, "they were on file"
        assert [rank.tensor(f"Aten.add.{n}.forward.output.0")[0].item() for n in range(_CALLS)] == [
            float(n + 1) for n in range(_CALLS)
        ]
    return told


def _folders(disk: Path) -> list[Path]:
    return [folder.parent for folder in sorted((disk / "dump").glob("step*/rank*/index.msgpack"))]
