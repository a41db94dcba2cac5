"""Tensors out of files that another tool wrote. Nothing that a file holds is run."""

from __future__ import annotations

import functools
import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch

from ...errors import FormatError, MissingDataError, StoreError
from .made_index import Load


def loader(folder: Path, name: str) -> Load:
    """Return what reads the tensor in a ``.pt`` or ``.npy`` file of a folder.

    Raises:
        FormatError: the name leads out of the folder.
    """
    if Path(name).name != name or name in ("", ".."):
        raise FormatError(f"{folder} names the file {name!r}; a name without folders is expected")
    return functools.partial(_load, folder / name)


def _load(path: Path) -> torch.Tensor:
    try:
        if path.suffix == ".npy":
            found = torch.from_numpy(np.load(path, allow_pickle=False))
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} is not there: copy it next to the table that names it") from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} holds no tensor that can be read safely: {error}") from error
    if not isinstance(found, torch.Tensor):
        raise FormatError(f"{path} holds a {type(found).__name__}; a tensor is expected")
    return found
