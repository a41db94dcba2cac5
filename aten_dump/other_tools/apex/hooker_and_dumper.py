"""`HookerAndDumper`: the class of apex for Ascend, recording with `DumpMode` and writing its HDF5 file."""

from __future__ import annotations

import os
from pathlib import Path

import click
from torch import nn

from ...capture.launcher_rank import rank_and_world_size
from ...capture.mode import DumpMode
from ...config import DumpConfig
from ...errors import CaptureError, MissingDataError
from ...export.job import Options, export_dump

_SUFFIX = ".hdf5"


class HookerAndDumper:
    """Record inputs, outputs and gradients of a model's children between `register_hooks` and `remove_hooks`.

    The file is ``{file_path}{epoch}-epoch_{step}-step_dump.hdf5``, with groups such as ``018_BatchNorm2d``. The
    recording that it is made from stays beside it, under the same name without the suffix; every tool here reads it.

    Args:
        file_path: what the file's name begins with; a folder ends in a slash.
        is_screen_display: say on the terminal what was written.
    """

    def __init__(self, file_path: str = "", is_screen_display: bool = False) -> None:
        self.file_path = file_path
        self._start_of_name = file_path
        self._is_screen_display = is_screen_display
        self._mode: DumpMode | None = None

    def register_hooks(self, model: nn.Module, epoch: int, step: int) -> None:
        """Record from now on.

        Raises:
            CaptureError: another recording is under way.
            StoreError: the recording cannot be written.
        """
        if self._mode is not None:
            raise CaptureError("HookerAndDumper.register_hooks: hooks are registered already; call remove_hooks first")
        self.file_path = f"{self._start_of_name}{epoch}-epoch_{step}-step_dump{_SUFFIX}"
        config = DumpConfig(self._recording(), level="module", data="tensor", stacks=False, overwrite=True)
        self._mode = DumpMode(config, model=model).start()

    def remove_hooks(self) -> None:
        """Record no more, and write the file.

        Raises:
            MissingDataError: the extra ``hdf5`` is not installed.
        """
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.close()
        export_dump(self._recording(), "apex", self.file_path, Options(ranks=rank_and_world_size()[0], overwrite=True))
        if self._is_screen_display:
            click.echo(f"wrote {self.file_path}")

    def read_h5py_data(self) -> None:
        """Print the groups and datasets of the file.

        Raises:
            MissingDataError: there is no file yet.
        """
        import h5py

        if not os.path.exists(self.file_path):
            raise MissingDataError(f"there is no file {self.file_path!r} yet: remove_hooks writes it")

        def show(name: str, found: object) -> None:
            click.echo(f"{name} {found.dtype} {found.shape}" if isinstance(found, h5py.Dataset) else name)

        with h5py.File(self.file_path, "r") as file:
            file.visititems(show)

    def _recording(self) -> Path:
        return Path(self.file_path.removesuffix(_SUFFIX))
