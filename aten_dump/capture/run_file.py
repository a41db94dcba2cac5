"""Opens the files of a dump and writes down what ran: run.json."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..config import DumpConfig
from ..errors import StoreError
from ..plain_text import without_secrets
from ..store.objects.url_path import UrlPath
from ..store.records import FORMAT_VERSION, Note
from ..store.run_json import RUN_FILE, RunFile, ranges_of
from ..store.spool.places import spool_folder
from ..store.spool.uploads import SpoolSettings, Uploads
from ..store.writing.settings import WriterSettings
from ..store.writing.step_files import LANES
from ..store.writing.writer import Writer
from ..variables import variables_that_matter
from . import IS_COMPILED
from .control import Control
from .data.host_memory import host_memory
from .devices import accelerator, has_spare_core, how_devices_compute
from .launcher_rank import attempts_before
from .naming.selection import Selection
from .pulse import PulseWriter
from .torch_internals.quiet import without_torch_functions
from .torch_threads import TEAM_END, bell_for_program

_PACKAGES = (
    *("aten-dump", "torch", "torch_npu", "numpy", "safetensors", "msgpack", "triton", "flash_attn", "xformers", "apex"),
    *("transformers", "accelerate", "lightning", "deepspeed", "peft", "trl", "diffusers", "datasets", "tokenizers"),
    *("torchvision", "torchaudio", "torchtitan", "transformer_engine", "bitsandbytes", "megatron-core", "mindspeed"),
)


class Run:
    """What one rank writes to the folder of a dump."""

    def __init__(self, config: DumpConfig, root: Path, rank: int, world_size: int, restarts: int = 0) -> None:
        self.config = config
        self._uploads: Uploads | None = None  # of a run that records to object storage
        self._shard_bytes = config.shard_bytes
        if isinstance(root, UrlPath):
            self._shard_bytes = min(config.shard_bytes, max(config.spool_bytes // (4 * LANES), 1 << 16))
            folder, growing_bytes = spool_folder(root, config.spool), self._shard_bytes * LANES
            settings = SpoolSettings(folder, root, config.spool_bytes, growing_bytes)
            root, self._uploads = folder, Uploads(settings, rank)
        self.root = root
        self.rank = rank
        self.world_size = world_size
        self.control: Control | None = None  # of a run that writes files
        self.pulse = PulseWriter(root, rank, world_size, config.stacks) if world_size > 1 else None
        first = next(r for r in range(world_size + 1) if r in config.rank_selection or r == world_size)
        self._restarts = restarts
        self._handled = id(sys.exc_info()[1])  # the error that the program handles as it begins, if any
        self._steps = 0
        self._calls = 0
        self.unseen: Counter[str] = Counter()  # notes of all steps, by code
        self._file = RunFile(root, describe_run(config, world_size, restarts)) if rank in (first, 0) else None

    def open_writer(self) -> Writer:
        """Make the directory of the dump, and run.json on the first recorded rank.

        Raises:
            StoreError: there is a dump already, or the directory cannot be written.
        """
        config = self.config
        TEAM_END.begin()
        ranks = [rank for rank in range(self.world_size) if rank in config.rank_selection]
        settings = WriterSettings(
            recording=ranks,
            overwrite=config.overwrite,
            queue_bytes=config.queue_bytes,
            shard_bytes=self._shard_bytes,
            max_bytes=config.max_bytes,
            allocate=host_memory,
            at_once=not has_spare_core(),
            bell=bell_for_program,
            to_disk=config.durability == "fsync",
            on_beat=self.pulse.beat if self.pulse is not None else None,
            on_steps=self._add_steps if self._file is not None else None,
            on_file=self._uploads.add if self._uploads is not None else None,
            room=self._uploads.room if self._uploads is not None else None,
        )
        if self._uploads is not None:
            self._uploads.begin(ranks, config.overwrite)
        try:
            return self._writer(settings, ranks)
        except BaseException:
            with contextlib.suppress(StoreError):  # the error before it is reported
                self.end(is_whole=True)
            raise

    def _writer(self, settings: WriterSettings, ranks: list[int]) -> Writer:
        writer = Writer(self.root, self.rank, settings)
        self.control = Control(self.root, self.rank, ranks, attempts_before(self.root, self._restarts))
        if self._file is not None:
            try:
                self._write_file()
            except BaseException:
                writer.close()
                raise
        return writer

    def count_step(self, calls: int, notes: Iterable[Note]) -> None:
        """Count a step that was recorded, its calls, and what could not be seen in it."""
        self._steps += 1
        self._calls += calls
        for note in notes:
            self.unseen[note.code] += note.count

    def say_if_no_rank(self) -> None:
        """Warn, on the first rank, where the configuration selects no rank of the run."""
        if self.rank == 0 and not any(rank in self.config.rank_selection for rank in range(self.world_size)):
            last = self.world_size - 1
            has = (
                f"has ranks 0 to {last}" if last else "has rank 0 alone; is init_process_group called before the block?"
            )
            warnings.warn(
                f"aten_dump records nothing: DumpConfig.ranks is {self.config.ranks!r}, and the run {has}", stacklevel=5
            )

    def say_if_empty(self, config: DumpConfig, last_step: int) -> None:
        """Warn where the configuration matched nothing of the program, unless an error of that is on its way.

        One that was being handled when the recording began is not.
        """
        why = self.why_empty(config, last_step)
        if why is not None and id(sys.exc_info()[1]) in (id(None), self._handled):
            warnings.warn(f"aten_dump recorded nothing: {why}", stacklevel=5)

    def why_empty(self, config: DumpConfig, last_step: int) -> str | None:
        """Return what of the configuration matched nothing of the program; None where it did match."""
        left_out = self.unseen["selection"]
        if not self._calls and left_out:
            names = "record it without them once, and `aten-dump show` lists its names"
            return f"of {left_out} calls none is selected by {Selection(config).text}; {names}"
        chosen = config.step_selection.ranges
        if not self._steps and chosen and last_step < chosen[0][0]:
            return f"DumpConfig.steps is {config.steps!r}, and the last step was {last_step}; is dump.step() called?"
        return None

    def finish(self) -> None:
        """Add to run.json what this rank could not see, where it is the rank that wrote it; `ls` has that of all.

        Raises:
            StoreError: run.json cannot be written.
        """
        if self._file is not None:
            self._write_file(coverage={"rank": self.rank, "steps": self._steps, "notes": dict(self.unseen)})

    def end(self, is_whole: bool) -> None:
        """Wait for uploads, where there are any; `is_whole` if all that was recorded was written.

        Raises:
            StoreError: not all could be uploaded.
        """
        if self._uploads is not None:
            self._uploads.close(is_whole)

    def _add_steps(self, steps: Iterable[int]) -> None:
        assert self._file is not None, "only the rank with run.json adds steps to it"
        self._file.add_steps(steps)
        self._upload_file()

    def _write_file(self, **more: Any) -> None:
        assert self._file is not None, "only the rank with run.json writes it"
        self._file.write(**more)
        self._upload_file()

    def _upload_file(self) -> None:
        if self._uploads is not None:
            self._uploads.add(self.root / RUN_FILE)


def describe_run(config: DumpConfig, world_size: int, restarts: int = 0) -> dict[str, Any]:
    """Return what run.json holds."""
    with without_torch_functions():  # torch asks itself by calls that the program's modes would see
        return {
            "format_version": FORMAT_VERSION,
            "world_size": world_size,
            "ranks": ranges_of(rank for rank in range(world_size) if rank in config.rank_selection),
            "restarts": restarts,
            "started_unix_ns": time.time_ns(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "recorder": "compiled" if IS_COMPILED else "pure Python",
            "packages": {name: version for name in _PACKAGES if (version := _version(name))},
            "devices": _devices(),
            "computing": how_devices_compute(),
            "threads": torch.get_num_threads(),
            "seed": torch.initial_seed(),
            **({"command": without_secrets(sys.argv), "variables": variables_that_matter()} if config.argv else {}),
            "config": config.as_dict(),
        }


def _version(name: str) -> str | None:
    if name == "torch":
        return str(torch.__version__)  # names the build, which the metadata of some wheels leaves out
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    device = accelerator()
    if device is None:
        return ["cpu"]
    kind = device.type
    names = getattr(torch.get_device_module(kind), "get_device_name", None)
    return [
        "cpu",
        *[f"{kind}:{i}" + (f" {names(i)}" if names else "") for i in range(torch.accelerator.device_count())],
    ]
