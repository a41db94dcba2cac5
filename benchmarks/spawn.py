"""Runs one row in a process of its own, on the disk or the tmpfs that it asks for."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .growth import lacking
from .measure import Mode, empty

PEERS_PYTHON = Path(".bench-peers/bin/python")
TMPFS = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all rows."""

    repeats: int
    device: str
    disk: Path  # directory to write to
    timeout_s: float


def run_row(workload: str, mode: Mode, settings: Settings, marks: tuple[int, ...] = ()) -> dict[str, Any]:
    """Measure a row; `marks` asks for the curve of steps instead.

    Returns:
        the fields of `Measurement` and `index`, or `curve`; or `error`, a sentence, where there is none.
    """
    python = str(PEERS_PYTHON) if mode.group == "msprobe" else sys.executable
    free = shutil.disk_usage(_place(mode, settings.disk)).free
    missing = _missing(mode) or lacking(workload, mode, free, available_memory_bytes())
    if missing:
        return {"error": missing}
    folder = new_folder(mode, settings.disk)
    with tempfile.TemporaryDirectory() as answers:
        result = Path(answers) / "result.json"
        spec = {
            "workload": workload,
            "mode": mode.name,
            "folder": str(folder),
            "repeats": settings.repeats,
            "device": settings.device,
            "marks": marks,
        }
        command = [python, "-m", "benchmarks.child", json.dumps(spec), str(result)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=settings.timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {settings.timeout_s:.0f} s"}
        finally:
            empty(folder)
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or ["no message"]
            return {"error": f"failed with exit code {ended.returncode}: {lines[-1]}"}
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def new_folder(mode: Mode, disk: Path) -> Path:
    """Make a folder for a mode to write to, which goes when this process ends: see `measure.empty`."""
    folder = tempfile.mkdtemp(prefix="bench-", dir=_place(mode, disk))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _place(mode: Mode, disk: Path) -> Path:
    return TMPFS if mode.is_tmpfs else disk


def _missing(mode: Mode) -> str | None:
    if mode.is_tmpfs and not TMPFS.is_dir():
        return f"there is no {TMPFS} here"
    if mode.group == "msprobe" and not PEERS_PYTHON.exists():
        return "not installed; `make bench-peers` installs it"
    return None


def available_memory_bytes() -> int | None:
    """Return the memory that programs can still ask for; None where the system does not tell."""
    return _number_of("/proc/meminfo", "MemAvailable:")


def environment(settings: Settings) -> dict[str, Any]:
    """Return what the table must say of where it was measured."""
    import torch

    return {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "processor": _text_of("/proc/cpuinfo", "model name") or "unknown",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _number_of("/proc/meminfo", "MemTotal:"),
        "disk": _filesystem(settings.disk),
        **{k: str(v) for k, v in dataclasses.asdict(settings).items() if k in ("repeats", "device")},
    }


def _filesystem(directory: Path) -> str:
    """Return the kind of the file system that holds a directory."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [(len(point), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(holding, default=(0, "unknown"))[1]


def _text_of(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def _number_of(path: str, name: str) -> int | None:
    text = _text_of(path, name.rstrip(":"))
    return None if text is None else int(text.split()[0]) * 1024
