"""Tensors out of files that another tool wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from aten_dump.dump.foreign.tensor_files import loader, open_table
from aten_dump.errors import FormatError, MissingDataError


def test_both_kinds_of_files(tmp_path: Path) -> None:
    torch.save(torch.arange(4.0).bfloat16(), tmp_path / "a.pt")
    np.save(tmp_path / "a.npy", np.arange(3, dtype=np.int16))
    found = loader(tmp_path, "a.pt")()
    assert (found.dtype, found.tolist()) == (torch.bfloat16, [0.0, 1.0, 2.0, 3.0])
    found = loader(tmp_path, "a.npy")()
    assert (found.dtype, found.tolist()) == (torch.int16, [0, 1, 2])


@pytest.mark.parametrize("name", ["../a.pt", "b/a.pt", "/etc/passwd", "..", ".", ""])
def test_names_lead_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="a name without folders is expected"):
        loader(tmp_path, name)


def test_a_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    load = loader(tmp_path, "late.pt")
    with pytest.raises(MissingDataError, match="is not there: copy it next to the table that names it"):
        load()
    torch.save(torch.ones(1), tmp_path / "late.pt")
    assert load().tolist() == [1.0]


def test_files_that_hold_no_tensor(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="holds a list; a tensor is expected"):
        loader(tmp_path, "list.pt")()
    for name, content in (("a.pt", b""), ("b.pt", b"no tensor"), ("a.npy", b""), ("b.npy", b"no array")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="holds no tensor that can be read safely"):
            loader(tmp_path, name)()
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="holds no tensor that can be read safely"):
        loader(tmp_path, "object.npy")()
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(FormatError, match="holds no tensor that can be read safely"):
        loader(tmp_path, "text.npy")()
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(FormatError, match="folder"):
        loader(tmp_path, "folder.pt")()


@pytest.mark.parametrize("name", ["a.pt", "a.npy"])
def test_links_and_fifos_are_not_followed(tmp_path: Path, name: str) -> None:
    outside, inside = tmp_path / name, tmp_path / "dump"
    torch.save(torch.ones(2), outside) if name == "a.pt" else np.save(outside, np.ones(2))
    inside.mkdir()
    (inside / name).symlink_to(outside)
    with pytest.raises(FormatError, match="symbolic link"):
        loader(inside, name)()
    (inside / name).unlink()
    os.mkfifo(inside / name)
    with pytest.raises(FormatError, match="FIFO"):
        loader(inside, name)()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FormatError, match="symbolic link"):
        loader(tmp_path / "link", name)()


def test_an_array_that_no_memory_holds_is_no_tensor(tmp_path: Path) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (1 << 42,)}
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, shape)
    with pytest.raises(FormatError, match="holds no tensor that can be read safely"):
        loader(tmp_path, "a.npy")()


def test_tables_are_regular_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with open_table(tmp_path / "a.json") as file:
        assert file.read() == "{}"
    os.mkfifo(tmp_path / "b.json")
    (tmp_path / "c.json").symlink_to(tmp_path / "a.json")
    for name in ("b.json", "c.json"):
        with pytest.raises(FormatError):
            open_table(tmp_path / name)
