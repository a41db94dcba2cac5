"""What already lies where a dump is to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store.writing.existing import prepare_root
from tests.store.recording import small_step, writer


def old(root: Path, *ranks: int) -> None:
    for rank in ranks:
        sink = writer(root, rank=rank)
        small_step(sink)
        sink.close()


def folders(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    prepare_root(tmp_path / "a" / "b", 0, range(1), overwrite=False)
    assert (tmp_path / "a" / "b").is_dir()


def test_a_dump_of_this_rank_is_refused_and_one_of_another_is_not(tmp_path: Path) -> None:
    old(tmp_path, 1)
    with pytest.raises(StoreError, match="already holds a dump: found step0/rank1; pass overwrite=True"):
        prepare_root(tmp_path, 1, range(2), overwrite=False)
    prepare_root(tmp_path, 0, range(2), overwrite=False)


def test_rank_0_answers_for_ranks_that_this_run_does_not_have(tmp_path: Path) -> None:
    old(tmp_path, 1, 2)
    with pytest.raises(StoreError, match="found step0/rank2"):
        prepare_root(tmp_path, 0, range(2), overwrite=False)
    with pytest.raises(StoreError, match="found step0/rank1 and 1 more"):
        prepare_root(tmp_path, 0, range(1), overwrite=False)
    prepare_root(tmp_path, 0, range(2), overwrite=True)
    assert folders(tmp_path) == ["step0/rank1"]


def test_overwrite_removes_what_is_ours(tmp_path: Path) -> None:
    old(tmp_path, 0, 1)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    prepare_root(tmp_path, 1, range(2), overwrite=True)
    assert folders(tmp_path) == ["step0/rank0"] and (tmp_path / "run.json").exists()
    prepare_root(tmp_path, 0, range(2), overwrite=True)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["mine.txt"]


@pytest.mark.parametrize("name", ["notes.txt", "shard-00000.safetensors.bak", "index.msgpack.old"])
def test_files_of_others_stop_it_before_anything_is_removed(tmp_path: Path, name: str) -> None:
    old(tmp_path, 0)
    (tmp_path / "step0" / "rank0" / name).write_text("keep")
    before = sorted(path.name for path in (tmp_path / "step0" / "rank0").iterdir())
    with pytest.raises(StoreError):
        prepare_root(tmp_path, 0, range(1), overwrite=True)
    assert sorted(path.name for path in (tmp_path / "step0" / "rank0").iterdir()) == before


def test_a_file_where_the_folder_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot create the folder .*choose another path"):
        prepare_root(tmp_path / "file", 0, range(1), overwrite=True)


def test_a_run_json_that_is_a_folder_is_told_of_before_anything_is_removed(tmp_path: Path) -> None:
    old(tmp_path, 0)
    (tmp_path / "run.json").mkdir()
    with pytest.raises(StoreError, match=r"cannot remove the old dump at .*run\.json: Is a directory"):
        prepare_root(tmp_path, 0, range(1), overwrite=True)
    assert folders(tmp_path) == ["step0/rank0"]


def test_the_first_rank_that_records_answers_for_those_that_do_not(tmp_path: Path) -> None:
    old(tmp_path, 0, 1, 2)
    (tmp_path / "run.json").write_text("{}")
    prepare_root(tmp_path, 2, [1, 2], overwrite=True)
    assert folders(tmp_path) == ["step0/rank0", "step0/rank1"] and (tmp_path / "run.json").exists()
    with pytest.raises(StoreError, match="found step0/rank0 and 1 more"):
        prepare_root(tmp_path, 1, [1, 2], overwrite=False)
    prepare_root(tmp_path, 1, [1, 2], overwrite=True)
    assert folders(tmp_path) == [] and not (tmp_path / "run.json").exists()
