"""Tensors and tables out of files that another tool wrote. Nothing that a file holds is run, no link is followed."""

from __future__ import annotations

import functools
import pickle
import zipfile
from pathlib import Path
from typing import Final, TextIO

import numpy as np
import torch

from ...errors import FormatError, MissingDataError, StoreError
from ...store.regular_files import open_inside
from .made_index import Load

_UNREADABLE: Final = (
    *(EOFError, MemoryError, RuntimeError, TypeError, ValueError),
    *(pickle.UnpicklingError, zipfile.BadZipFile),
)


def loader(folder: Path, name: str) -> Load:
    """Return what reads the tensor in a ``.pt`` or ``.npy`` file of a folder.

    Raises:
        FormatError: the name leads out of the folder.
    """
    if Path(name).name != name or name in ("", ".."):
        raise FormatError(f"{folder} names the file {name!r}; a name without folders is expected")
    return functools.partial(_load, folder / name)


def open_table(path: Path) -> TextIO:
    """Open a table of another tool's, a regular file.

    Raises:
        FormatError: it is a link, a FIFO or the like.
        OSError: it cannot be opened.
    """
    return open(open_inside(path), encoding="utf-8", newline="")


def _load(path: Path) -> torch.Tensor:
    try:
        if path.parent.is_symlink():
            raise FormatError(f"{path.parent} is a symbolic link, which is not followed; put its files there")
        with open(open_inside(path), "rb") as file:
            if path.suffix == ".npy":
                found = torch.from_numpy(np.load(file, allow_pickle=False))
            else:
                found = torch.load(file, map_location="cpu", weights_only=True)
    except FormatError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} is not there: copy it next to the table that names it") from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise FormatError(f"{path} holds no tensor that can be read safely: {error}") from error
    if not isinstance(found, torch.Tensor):
        raise FormatError(f"{path} holds a {type(found).__name__}; a tensor is expected")
    return found
