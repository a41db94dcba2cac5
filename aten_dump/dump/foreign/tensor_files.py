"""Files that another tool wrote: tables, tensors, and what is wrong with them.

Theory of operation
    Their bytes may be anything. Nothing that a file holds is run, no link is followed, and nothing is taken at its
    word: a tensor is no longer than its file, a file no longer than what is on the disk of it. Whatever a parser
    raises on such bytes becomes a `FormatError` that names the folder: see `format_errors`.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TextIO

import numpy as np
import torch

from ...errors import AtenDumpError, FormatError, MissingDataError, StoreError
from ...store.regular_files import open_inside
from ...torch_names import tree_leaves
from .made_index import Load

# What parsers and our readers raise on what no tool writes.
_SENSELESS: Final = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, RuntimeError, TypeError, ValueError),
    csv.Error,
)
_BLOCK_BYTES: Final = 512  # of st_blocks
_MOST_PACKED: Final = 64  # how much smaller a file system that compresses may make a file
_SMALL_BYTES: Final = 1 << 20
_SHOWN: Final = 200  # characters of an error of a parser's


@contextmanager
def format_errors(folder: Path) -> Iterator[None]:
    """Turn any error of a block that reads a folder of another tool into a `FormatError`.

    Raises:
        FormatError: the files are not what that tool writes.
        StoreError: they cannot be read.
    """
    try:
        yield
    except AtenDumpError:
        raise
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {folder}: {error.strerror or error}") from error
    except _SENSELESS as error:
        text = f"{type(error).__name__}: {error}"
        raise FormatError(f"{folder} is not what its tool writes: {text:.{_SHOWN}}") from error


def is_folder(path: Path) -> bool:
    """True if it is a folder and no link to one."""
    return path.is_dir() and not path.is_symlink()


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
        FormatError: it is a link, a FIFO or the like, or claims more bytes than are on the disk.
        OSError: it cannot be opened.
    """
    return open(_opened(path), encoding="utf-8", newline="")


def _opened(path: Path) -> int:
    fd = open_inside(path)
    found = os.fstat(fd)
    on_disk = getattr(found, "st_blocks", found.st_size) * _BLOCK_BYTES
    if found.st_size > _SMALL_BYTES and found.st_size > _MOST_PACKED * on_disk:
        os.close(fd)
        raise FormatError(f"{path} claims {found.st_size} bytes, of which {on_disk} are on the disk: copy it again")
    return fd


def load_torch(path: Path) -> object:
    """Read what `torch.save` has written: tensors, and containers of them. They are mapped into memory.

    Raises:
        FormatError: it is something else, needs code to be run, or claims more elements than it has bytes.
        StoreError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return _of_torch(file, path)
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # as in _load
        raise FormatError(f"{path} cannot be read safely: {error!s:.{_SHOWN}}") from error


def _load(path: Path) -> torch.Tensor:
    try:
        if path.parent.is_symlink():
            raise FormatError(f"{path.parent} is a symbolic link, which is not followed; put its files there")
        with open(_opened(path), "rb") as file:
            found = _of_numpy(file) if path.suffix == ".npy" else _of_torch(file)
    except FormatError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} is not there: copy it next to the table that names it") from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # numpy, zipfile, pickle and torch raise whatever they like on such bytes
        raise FormatError(f"{path} holds no tensor that can be read safely: {error!s:.{_SHOWN}}") from error
    if not isinstance(found, torch.Tensor):
        raise FormatError(f"{path} holds a {type(found).__name__}; a tensor is expected")
    return found


def _of_numpy(file: BinaryIO) -> torch.Tensor:
    """Read a tensor that numpy has written: its header claims no more elements than follow it."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"its header claims {math.prod(shape)} elements of {dtype}, and {left} bytes follow")
    file.seek(0)
    return torch.from_numpy(np.load(file, allow_pickle=False))


def _of_torch(file: BinaryIO, mapped: Path | None = None) -> object:
    """Read what `torch.save` has written: no more elements than bytes, no calls but those that make tensors.

    Of a file whose path is given, tensors are mapped into memory and read where they are looked at.
    """
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("it is packed, which torch.save does not do")
        for entry in entries:
            if entry.filename.endswith("data.pkl"):
                _refuse_calls(archive.read(entry))
    file.seek(0)
    given = file if mapped is None else str(mapped)
    found: object = torch.load(given, map_location="cpu", weights_only=True, mmap=mapped is not None)
    for one in tree_leaves(found):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and one.numel() * one.itemsize > size:
            raise ValueError(f"it claims {one.numel()} elements in a file of {size} bytes")
    return found


def _refuse_calls(pickled: bytes) -> None:
    """Refuse Python's own functions, which torch would call: ``bytearray(10 ** 12)`` is memory that no file has."""
    for op, argument, _ in pickletools.genops(pickled):
        if "GLOBAL" in op.name and str(argument).partition(" ")[0] in ("builtins", "__builtin__", "None"):
            raise ValueError(f"it calls {argument}, which makes no tensor")
