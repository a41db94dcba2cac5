"""Measures what recording costs on a GPU, how often it makes the host wait, and how fast bytes come over.

    python -m benchmarks.on_gpu                                    everything, as `make bench-gpu` does
    python -m benchmarks.on_gpu --programs launch-bound --modes structure,debugmode

GPT-2 of 124 M parameters in bf16 with AdamW, three times: with a batch that fills a third of the card, with so few
tokens that the step waits for launches, and with few enough for all bytes of a step to go to memory. Rows are measured
against the bare step, A B A B, in this process; then one bare and one recorded step run under torch's profiler, which
counts what the host asked of the driver: a wait more is that of the benchmark itself.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from .measure import Measurement, Mode, discard, measure
from .rows import ROWS
from .spawn import TMPFS
from .table import header
from .workloads import Workload, language_model

_LENGTH = 1024
_VOCABULARY = 50257
_ASKED = {  # parts of the driver's names; events are what the writer's thread waits for
    "launches": ("LaunchKernel",),
    "copies": ("MemcpyAsync",),
    "waits": ("StreamSynchronize", "DeviceSynchronize"),
    "waits for events": ("EventSynchronize",),
}
_COLUMNS = (
    *("program", "mode", "wall x", "on file x", "us/op above bare", "GB per step"),
    *("of the driver, above bare", "GB/s of copies"),
)
_PINNED_BYTES = 256 << 20
_MODES = (
    *("empty-modes", "debugmode", "structure", "statistic", "statistic-all-12"),
    *("msprobe-L1-statistics", "msprobe-mix-statistics"),  # last, as their patches stay
)


class Program(NamedTuple):
    """What is measured: so many sequences of so many tokens, and in which modes."""

    batch: int | None  # None: as many as fill a third of the card
    length: int
    modes: tuple[str, ...]


PROGRAMS = {
    "third of the card": Program(None, _LENGTH, _MODES),
    "launch-bound": Program(1, 64, _MODES),
    "bytes": Program(2, _LENGTH, ("tensor-tmpfs", "full-tmpfs")),
}


class Asked(NamedTuple):
    """What a step asked of the driver, by name, and the seconds that copies to the host took on the device."""

    counts: Counter[str]
    copies_s: float


def gpt2(batch: int, length: int, layers: int = 12, width: int = 768) -> Workload:
    """GPT-2 from config, 124 M parameters, bf16, i64[batch, length]; forward, backward, AdamW (foreach)."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=width, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    return language_model(model, _VOCABULARY, length, batch, torch.optim.AdamW(model.parameters(), lr=1e-4))


def filling(share: float) -> int:
    """Return how many sequences fill such a share of the card: two small batches are measured."""
    peaks = [_peak_of_step(batch) for batch in (2, 4)]
    each = (peaks[1] - peaks[0]) / 2
    total = torch.cuda.get_device_properties(0).total_memory
    return max(1, int((share * total - peaks[0]) / each) + 2)


def _peak_of_step(batch: int) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        workload = gpt2(batch, _LENGTH)
    for _ in range(2):
        workload.step()
    return torch.cuda.max_memory_allocated()


def pinned_copy_s() -> float:
    """Return the seconds of a copy of 256 MiB to pinned memory: the best of ten."""
    source = torch.ones(_PINNED_BYTES, dtype=torch.uint8, device="cuda")
    host = torch.empty(_PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    times = []
    for _ in range(10):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        host.copy_(source, non_blocking=True)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return min(times)


def asked_by(run: Callable[[], object]) -> Asked:
    """Run under torch's profiler; all threads are seen."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        run()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    counts: Counter[str] = Counter()
    copies_us = 0.0
    for event in profiler.key_averages():
        if event.key.startswith("cu"):
            counts.update({w: event.count for w, parts in _ASKED.items() if any(part in event.key for part in parts)})
        if event.key.startswith("Memcpy DtoH"):
            copies_us += event.self_device_time_total
    return Asked(counts, copies_us / 1e6)


def row_of(name: str, workload: Workload, mode: Mode, repeats: int, folder: Path) -> str:
    """Measure a mode on a program; return its row."""
    bare = asked_by(workload.step)
    found = measure(workload, mode, folder, repeats, lambda written: None)
    recorded, nbytes = _profiled(workload, mode, folder)
    return _row(name, mode, found, bare, recorded, nbytes)


def _profiled(workload: Workload, mode: Mode, folder: Path) -> tuple[Asked, int]:
    """Run a step in a mode under the profiler; return what it asked, and how many bytes it wrote to shards."""
    shutil.rmtree(folder)
    folder.mkdir()
    nbytes = 0
    with mode.start(workload, folder) as sampler:
        discard(sampler(1))

        def run() -> None:
            nonlocal nbytes
            sample = sampler(1)
            nbytes = sum(f.stat().st_size for path in sample.written for f in path.rglob("*.safetensors"))
            discard(sample)

        return asked_by(run), nbytes


def _row(name: str, mode: Mode, found: Measurement, bare: Asked, recorded: Asked, nbytes: int) -> str:
    above = {what: recorded.counts[what] - bare.counts[what] for what in _ASKED}
    seconds = recorded.copies_s - bare.copies_s
    copies = f"{nbytes / seconds / 1e9:.1f}" if nbytes > _PINNED_BYTES and seconds > 0 else ""
    cells = (
        f"{name} ({found.ops} ops, {found.bare_s * 1e3:.1f} ms)",
        mode.name,
        f"{found.wall_ratio:.3f} ±{found.wall_spread:.3f}",
        f"{found.on_file_ratio:.2f}" if found.written_bytes else "",
        f"{found.above_s / found.ops * 1e6:.1f}",
        f"{found.written_bytes / 1e9:.2f}" if found.written_bytes else "",
        ", ".join(f"{count} {what}" for what, count in above.items()),
        copies,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    arguments = _parse()
    print(_sentence(arguments), flush=True)
    if arguments.device == "cuda":
        print(f"A copy of 256 MiB to pinned memory: {_PINNED_BYTES / pinned_copy_s() / 1e9:.1f} GB/s.\n")
    print(header(_COLUMNS), flush=True)
    for name in arguments.programs:
        program = PROGRAMS[name]
        batch = program.batch or filling(1 / 3)
        small = {"layers": 2, "width": 24} if arguments.device == "cpu" else {}
        with torch.device(arguments.device):
            workload = gpt2(batch, program.length, **small)
        for _ in range(2):  # the first of all makes the optimizer's state
            workload.step()
        title = f"{name}, {batch} x {program.length} tokens"
        for mode in (ROWS[mode] for mode in program.modes if mode in arguments.modes or not arguments.modes):
            print(f"{title}, {mode.name} ...", time.strftime("%T"), file=sys.stderr, flush=True)
            folder = Path(tempfile.mkdtemp(prefix="bench-", dir=TMPFS if mode.is_tmpfs else None))
            try:
                print(row_of(title, workload, mode, arguments.repeats, folder), flush=True)
            except Exception as error:  # noqa: BLE001 - a peer may raise anything; the other rows are wanted
                print(f"| {title} | {mode.name} | {type(error).__name__}: {str(error)[:300]!r} |||||||", flush=True)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=lambda text: text.split(","), default=list(PROGRAMS), help="default: all")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=[], help="default: all of each program")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of batches per row (default: %(default)s)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny model, to try the command"
    )
    return parser.parse_args()


def _sentence(arguments: argparse.Namespace) -> str:
    import aten_dump

    device = torch.cuda.get_device_name(0) if arguments.device == "cuda" else "cpu"
    build = "compiled" if aten_dump.IS_COMPILED else "pure"
    return (
        f"{datetime.date.today().isoformat()}, {device}, torch {torch.__version__}, Python {sys.version.split()[0]}, "
        f"{os.cpu_count()} CPUs, {build}, medians of {arguments.repeats} pairs.\n"
    )


if __name__ == "__main__":
    main()
