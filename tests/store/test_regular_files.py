"""Nothing inside a dump is reached through a link, and nothing but folders and regular files is opened."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aten_dump import open_dump
from aten_dump.dump.index.summary import summarize
from aten_dump.errors import AtenDumpError, FormatError, StoreError
from aten_dump.store import regular_files
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.regular_files import (
    SMALL_BYTES,
    GrowingFile,
    foreign_entries,
    make_folder,
    numbered_folders,
    open_inside,
    write_all,
)
from tests.checkout import ROOT
from tests.sampling import diagonal
from tests.store.recording import RANK, begin, call, noise, small_step, store, writer

needs_c_file = pytest.mark.skipif(
    not regular_files.IS_COMPILED, reason="nothing is compiled here: `make test-compiled` runs it"
)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A FIFO would hang for ever."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def link(path: Path, other: Path) -> None:
    shutil.copy2(path, other)
    path.unlink()
    path.symlink_to(other)


def fifo(path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def zeros(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


Change = Callable[[Path, Path], None]
CHANGES = (link, fifo, zeros, folder)


def interrupted(root: Path) -> Path:
    """A step that its process left with a shard that grows."""
    pid = os.fork()
    if pid == 0:
        sink = writer(root)
        begin(sink)
        store(sink, noise(1000), "U8")
        sink.emit(call(1))
        deadline = time.monotonic() + 60
        wanted = [root / RANK / name for name in ("index.msgpack", "shard-00000.safetensors.partial")]
        while not all(path.exists() for path in wanted) and time.monotonic() < deadline:
            time.sleep(0.01)
        sink.flush()  # the index names the shard
        os._exit(0)
    os.waitpid(pid, 0)
    return root / RANK


@pytest.mark.parametrize(
    ("look", "change"), diagonal([read_index, recover, summarize], CHANGES, ids=lambda function: function.__name__)
)
def test_an_index_that_is_no_regular_file_is_refused(
    tmp_path: Path, change: Change, look: Callable[[Path], object]
) -> None:
    rank = interrupted(tmp_path / "dump")
    change(rank / "index.msgpack", tmp_path / "elsewhere")
    begun = time.monotonic()
    with pytest.raises(FormatError, match="inside a dump there are folders of steps and ranks and regular files alone"):
        look(rank)
    assert time.monotonic() - begun < 5
    if change is not folder:
        assert "index.msgpack" in verify(rank)[0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_is_no_regular_file_is_not_read(tmp_path: Path, change: Change) -> None:
    small = writer(tmp_path / "dump")
    small_step(small)
    small.close()
    rank = tmp_path / "dump" / RANK
    change(rank / "shard-00000.safetensors", tmp_path / "elsewhere")
    assert verify(rank)
    with pytest.raises(AtenDumpError):
        open_dump(tmp_path / "dump").rank(0, 0).values[0].tensor()


@pytest.mark.parametrize("name", ["shard-00000.safetensors.partial", "shard-00000.safetensors"])
def test_recovery_writes_through_no_link(tmp_path: Path, name: str) -> None:
    rank = interrupted(tmp_path / "dump")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine" * 50_000)
    (rank / "shard-00000.safetensors.partial").unlink()
    (rank / name).symlink_to(victim)
    report = recover(rank)
    assert victim.read_bytes() == b"mine" * 50_000
    assert report.missing_shards == [0]


@pytest.mark.parametrize("linked", ["step0", "step0/rank0"])
def test_folders_that_are_links_are_not_entered(tmp_path: Path, linked: str) -> None:
    rank = interrupted(tmp_path / "other")
    (tmp_path / "dump" / linked).parent.mkdir(parents=True)
    (tmp_path / "dump" / linked).symlink_to(tmp_path / "other" / linked)
    before = {path.name: path.read_bytes() for path in rank.iterdir()}
    for look in (read_index, recover, summarize):
        with pytest.raises(FormatError, match="symbolic link"):
            look(tmp_path / "dump" / RANK)
    with pytest.raises(StoreError, match="is a link or a file"):
        writer(tmp_path / "dump", overwrite=True)
    assert {path.name: path.read_bytes() for path in rank.iterdir()} == before
    assert numbered_folders(tmp_path / "dump", "step").keys() == (set() if linked == "step0" else {0})


def test_overwriting_removes_a_linked_file_and_not_what_it_leads_to(tmp_path: Path) -> None:
    small = writer(tmp_path / "dump")
    small_step(small)
    small.close()
    shard = tmp_path / "dump" / RANK / "shard-00000.safetensors"
    link(shard, tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="nothing was removed"):
        writer(tmp_path / "dump", overwrite=True)
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["dump", "step3"])
def test_the_dump_itself_may_be_reached_through_a_link(tmp_path: Path, name: str) -> None:
    small = writer(tmp_path / "real")
    small_step(small)
    small.close()
    (tmp_path / name).symlink_to(tmp_path / "real")
    assert open_dump(tmp_path / name).rank(0, 0).complete
    assert verify(tmp_path / name / RANK) == []


def test_numbers_are_written_one_way(tmp_path: Path) -> None:
    for name in ("step0", "step7", "step00", "step٣", "step1x", "step", "rank1", f"step{10**30}"):
        (tmp_path / name).mkdir()
    assert list(numbered_folders(tmp_path, "step")) == [0, 7]
    assert foreign_entries(tmp_path, "step") == sorted(["step00", "step٣", f"step{10**30}"])


def test_an_open_file_is_the_one_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = open_inside(tmp_path / "file")
    assert os.read(fd, 10) == b"x"
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path / "nothing")


def test_an_index_with_a_hole_of_a_terabyte_is_read_at_once(tmp_path: Path) -> None:
    rank = interrupted(tmp_path / "dump")
    size = (rank / "index.msgpack").stat().st_size
    os.truncate(rank / "index.msgpack", 1 << 40)
    begun = time.monotonic()
    found = read_index(rank)
    assert time.monotonic() - begun < 10
    assert found.good_bytes == size and found.dropped_bytes == (1 << 40) - size


@pytest.mark.parametrize("linked", ["step0", "step0/rank0"])
def test_a_folder_is_not_made_through_a_link(tmp_path: Path, linked: str) -> None:
    (tmp_path / "other" / linked).mkdir(parents=True)
    (tmp_path / "dump" / linked).parent.mkdir(parents=True)
    (tmp_path / "dump" / linked).symlink_to(tmp_path / "other" / linked)
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        make_folder(str(tmp_path / "dump" / RANK))
    assert list((tmp_path / "other" / linked).iterdir()) == []


def test_a_file_is_made_when_it_is_written_to_and_named_when_it_can_be_read(tmp_path: Path) -> None:
    folder = make_folder(str(tmp_path / "made anew" / RANK))
    file = GrowingFile("elsewhere/index.msgpack", lambda: folder)
    assert not file.is_made and not file.is_named
    os.write(file.fd, b"abc")
    (made,) = (tmp_path / "made anew" / RANK).iterdir()
    assert made.name == "index.msgpack.partial" and file.is_made
    file.give_name()
    file.close()
    file.close()
    (made,) = (tmp_path / "made anew" / RANK).iterdir()
    assert made.name == "index.msgpack" and file.is_named and made.read_bytes() == b"abc"
    os.close(folder)


def step_file(tmp_path: Path) -> tuple[GrowingFile, Path, int]:
    folder = make_folder(str(tmp_path / "dump" / RANK))
    return GrowingFile("elsewhere/index.msgpack", lambda: folder), tmp_path / "dump" / RANK, folder


def test_a_small_file_is_made_whole_or_left_to_be_made(tmp_path: Path) -> None:
    file, place, folder = step_file(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    if not file.make_whole([b"ab", memoryview(b"cde")]):
        assert not regular_files.IS_COMPILED and not file.is_made and list(place.iterdir()) == []
        file.fd
    else:
        assert regular_files.IS_COMPILED and file.is_named and file.is_made
        assert len(os.listdir("/proc/self/fd")) == descriptors
        (made,) = place.iterdir()
        assert made.name == "index.msgpack" and made.read_bytes() == b"abcde"
        assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~umask()
    file.close()
    os.close(folder)


def test_what_is_long_or_begun_is_not_made_whole(tmp_path: Path) -> None:
    file, place, folder = step_file(tmp_path)
    assert not file.make_whole([bytes(SMALL_BYTES + 1)]) and list(place.iterdir()) == []
    os.write(file.fd, b"x")
    assert not file.make_whole([b"y"])
    assert [path.read_bytes() for path in place.iterdir()] == [b"x"]
    assert not GrowingFile(place / "alone").make_whole([b"z"])  # whose folder is not open
    file.close()
    os.close(folder)


@needs_c_file
def test_a_file_that_is_cut_off_stays_as_far_as_it_was_written(tmp_path: Path) -> None:
    file, place, folder = step_file(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            file.make_whole([b"a" * 700, b"b" * 700])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno == errno.EFBIG and error.value.filename == "elsewhere/index.msgpack"
    assert file.is_made and not file.is_named and os.fstat(file.fd).st_size == 1000
    (made,) = place.iterdir()
    assert made.name == "index.msgpack.partial" and made.read_bytes() == b"a" * 700 + b"b" * 300
    file.close()
    os.close(folder)


@needs_c_file
@pytest.mark.parametrize("kind", [link, fifo])
def test_a_file_is_not_made_whole_through_what_is_there(tmp_path: Path, kind: Callable[[Path, Path], None]) -> None:
    file, place, folder = step_file(tmp_path)
    (place / "index.msgpack.partial").write_bytes(b"mine")
    kind(place / "index.msgpack.partial", tmp_path / "other")
    with pytest.raises(FileExistsError):
        file.make_whole([b"yours"])
    assert not file.is_made and not file.is_named
    if kind is link:
        assert (tmp_path / "other").read_bytes() == b"mine"
    os.close(folder)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_store_writes_and_closes_by_what_looks_at_the_outcome() -> None:
    """A short write, or a close that fails, is seen in one place; no other may leave it unseen."""
    package = ROOT / "aten_dump"
    bare = re.compile(r"\bos\.(write|pwrite|writev|pwritev|close|fdopen)\(")
    found = {
        str(path.relative_to(package))
        for room in ("store", "capture")
        for path in (package / room).rglob("*.py")
        if bare.search(path.read_text(encoding="utf-8"))
    }
    assert found <= {"store/regular_files.py", "store/control/control_files.py"}  # the last one reads


def test_what_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: 0)
    with open(tmp_path / "file", "wb") as file:
        write_all(file.fileno(), [b""], 0)
        with pytest.raises(OSError, match="writes nothing"):
            write_all(file.fileno(), [b"", b"ab"], 0)


def test_a_vector_that_the_system_writes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: real(fd, [b"".join(parts)[:3]], offset))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_all(fd, [b"ab", memoryview(b"cdefg"), b"", b"h"], 2)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"\0\0abcdefgh"
