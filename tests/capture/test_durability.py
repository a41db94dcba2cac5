"""What `dump.flush()` and `DumpConfig.durability` promise, asked of processes that are killed right after."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from aten_dump import ConfigError, DumpConfig, DumpMode, open_dump
from aten_dump.errors import StoreError
from aten_dump.store.checking.verification import verify
from tests.devices import script_here
from tests.forked import run

PROGRAM = """
import os, signal, sys, torch
from aten_dump import DumpConfig, DumpMode
path, durability, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
with DumpMode(DumpConfig(path=path, data="full", durability=durability)) as dump:
    for step in range(last + 1):
        x = torch.full((200, 200), float(step))
        (x @ x + torch.arange(3.0).sum()).exp()
        dump.step()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("durability", ["step", "fsync"])
@pytest.mark.parametrize("last", [0, 3])
def test_steps_that_were_acknowledged_survive_a_kill(tmp_path: Path, durability: str, last: int) -> None:
    path = tmp_path / "dump"
    ended = run(["-c", script_here(PROGRAM), str(path), durability, str(last)], tmp_path / "said")
    assert ended.code == -signal.SIGKILL
    dump = open_dump(path)
    assert list(dump.steps) == list(range(last + 1))
    for step in dump.steps:
        rank = dump.step(step).rank(0)
        assert rank.missing == [] and verify(rank.directory) == []
        assert rank.tensor("Aten.full.0.forward.output.0").unique().tolist() == [float(step)]


FLUSHED = """
import os, signal, sys, torch
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path=sys.argv[1], data="full")) as dump:
    torch.ones(3) * 2
    dump.step()
    small, large = torch.arange(5.0), torch.ones(300, 300)
    small + 1
    large + 1
    dump.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_flushed_survives_a_kill_in_the_midst_of_a_step(tmp_path: Path) -> None:
    run(["-c", script_here(FLUSHED), str(tmp_path / "dump")], tmp_path / "said")
    dump = open_dump(tmp_path / "dump")
    assert dump.step(0).rank(0).missing == []
    rank = dump.step(1).rank(0)
    assert rank.missing != [], "it was not committed"
    assert rank.tensor("Aten.add.0.forward.output.0").tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rank.tensor("Aten.add.1.forward.output.0").unique().tolist() == [2.0]


def test_fsync_has_files_and_folders_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="full", durability="fsync")) as dump:
        torch.ones(3) + 1
        dump.step()
        assert synced == {"index.msgpack", "shard-00000.safetensors.partial", "rank0", "step0", "dump"}


def test_a_flush_that_fails_says_so(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with pytest.raises(StoreError, match="cannot write step 1"), DumpMode(DumpConfig(path=path)) as dump:  # noqa: PT012
        (path / "step1").write_text("not a folder")
        dump.step()
        torch.ones(3) + 1
        dump.flush()


def test_a_step_that_cannot_be_kept_is_not_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    dump = DumpMode(DumpConfig(path=path, durability="step")).start()
    (path / "step0").write_text("not a folder")
    torch.ones(3) + 1
    with pytest.raises(StoreError, match="cannot write step 0"):
        dump.step()
    dump.close()


def test_where_the_program_shall_go_on_a_flush_warns(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with DumpMode(DumpConfig(path=path, on_error="warn")) as dump:
        (path / "step0").write_text("not a folder")
        torch.ones(3) + 1
        with pytest.warns(UserWarning, match="cannot write step 0"):
            dump.flush()
        with pytest.warns(UserWarning, match="not all is on file"):
            dump.flush()


def test_nothing_is_flushed_where_nothing_is_recorded(tmp_path: Path) -> None:
    dump = DumpMode(DumpConfig(path=tmp_path / "dump", steps="5"))
    dump.flush()
    with dump:
        dump.flush()
    dump.flush()


def test_other_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"durability is 'disk'; allowed: 'async', 'step', 'fsync'"):
        DumpConfig(path=tmp_path, durability="disk")  # type: ignore[arg-type]
