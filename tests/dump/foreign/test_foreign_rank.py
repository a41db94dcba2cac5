"""A step and rank of another tool, as a RankDump."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump.dump.foreign.foreign_rank import ForeignRank
from aten_dump.dump.foreign.formats import foreign_ranks
from aten_dump.dump.foreign.made_index import MadeCall, MadeIndex, MadeTensor
from aten_dump.errors import FormatError, MissingDataError, StoreError

CONFIG = {"statistics": ["min"], "source": "msprobe"}


def rank_of(path: Path, load: Callable[[], torch.Tensor], dtype: str = "float32", times: int = 1) -> ForeignRank:
    def read(directory: Path, step: int, rank: int, world_size: int) -> MadeIndex:
        made = MadeIndex(directory, step, rank, world_size, CONFIG)
        trees = [made.tensor(MadeTensor(dtype, (2, 2), load=load)) for _ in range(times)]
        made.call(MadeCall("api", "torch.relu", "Torch", "relu", 0, "forward"), args=trees)
        return made

    return ForeignRank(read, path, 4, 2, 8)


def test_it_says_where_it_is(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, lambda: torch.ones(2, 2))
    assert (rank.step, rank.rank, rank.header.world_size) == (4, 2, 8)
    assert rank.where == f"{tmp_path} (step 4, rank 2)"
    again = rank.anew()
    assert again is not rank and again.where == rank.where and again.header.world_size == 8
    assert (rank.missing, rank.summary().shard_bytes) == ([], 16)


@pytest.mark.parametrize(
    ("held", "dtype"),
    [
        (torch.arange(4.0).view(2, 2), "float32"),
        (torch.arange(4.0).view(2, 2).t(), "float32"),
        (torch.arange(4.0).view(2, 2), "bfloat16"),
        (torch.tensor([[1 + 2j, 3], [4, 5j]]).conj(), "complex64"),
        (torch.tensor([[True, False], [True, True]]), "bool"),
    ],
)
def test_files_become_tensors_of_the_recorded_dtype(tmp_path: Path, held: torch.Tensor, dtype: str) -> None:
    (value,) = rank_of(tmp_path, lambda: held, dtype)["Torch.relu.0.forward"].inputs[0]
    found = value.tensor()
    assert found.dtype == getattr(torch, dtype) and found.is_contiguous()
    assert torch.equal(found, held.to(found.dtype).resolve_conj())


def test_a_file_of_another_shape_is_of_another_run(tmp_path: Path) -> None:
    (value,) = rank_of(tmp_path, lambda: torch.ones(4))["Torch.relu.0.forward"].inputs[0]
    with pytest.raises(
        FormatError, match=r"holds shape \[4\]; its table says \[2, 2\]: the files are of different runs"
    ):
        value.tensor()


def test_what_a_user_writes_into_a_tensor_stays_there(tmp_path: Path) -> None:
    held = torch.ones(2, 2)
    (value,) = rank_of(tmp_path, lambda: held)["Torch.relu.0.forward"].inputs[0]
    value.tensor().zero_()
    assert value.tensor().tolist() == held.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "error", [AttributeError("x"), IndexError("x"), KeyError("x"), RecursionError("x"), TypeError("x"), ValueError("x")]
)
def test_tables_that_are_none_are_told(tmp_path: Path, error: Exception) -> None:
    def read(*place: object) -> MadeIndex:
        raise error

    with pytest.raises(FormatError, match=f"is not what its tool writes: {type(error).__name__}"):
        ForeignRank(read, tmp_path, 0, 0, 1).calls


def test_errors_that_say_what_is_wrong_stay_what_they_are(tmp_path: Path) -> None:
    def read_of(error: Exception) -> ForeignRank:
        def read(*place: object) -> MadeIndex:
            raise error

        return ForeignRank(read, tmp_path, 0, 0, 1)

    with pytest.raises(FormatError, match=r"^a table holds a list$"):
        read_of(FormatError("a table holds a list")).calls
    with pytest.raises(StoreError, match=r"cannot read .*: No space"):
        read_of(OSError(28, "No space left")).calls


def test_ranks_of_other_tools_are_not_put_together(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, lambda: torch.ones(2, 2))
    with pytest.raises(MissingDataError, match="it was recorded by another tool"):
        rank.source.changed_tables(rank.where, [], [])
    assert not rank.source.lost_blobs(rank.tables)


# -- formats -------------------------------------------------------------------------------------------------------


def test_the_format_is_known_by_what_lies_there(tmp_path: Path) -> None:
    assert foreign_ranks(tmp_path) == {}
    for step, rank in ((2, 1), (2, 0), (0, 0)):
        folder = tmp_path / f"step{step}" / f"rank{rank}"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_text('{"task": "statistics", "data": {}}')
    found = foreign_ranks(tmp_path)
    assert [(step, list(ranks)) for step, ranks in found.items()] == [(0, [0]), (2, [0, 1])], "in order"
    assert found[2][1].header.world_size == 2 and found[0][0].header.world_size == 1
    assert found[2][1].config["source"] == "msprobe"


def test_mindspore_is_known_too(tmp_path: Path) -> None:
    folder = tmp_path / "rank_3" / "net" / "0" / "5"
    folder.mkdir(parents=True)
    (folder / "statistic.csv").write_text("Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Type,Shape\n")
    found = foreign_ranks(tmp_path)
    assert [(step, list(ranks)) for step, ranks in found.items()] == [(5, [3])]
    assert found[5][3].config["source"] == "MindSpore"
