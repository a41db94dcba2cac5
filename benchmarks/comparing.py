"""What comparing costs, over what recording both sides costs.

    python -m benchmarks.comparing                    all programs, some ten minutes
    python -m benchmarks.comparing qwen3 width        those whose names have one of these words

Each program is recorded, two steps, and compared with two other runs: an equal one, and one whose every sum is made in
another order (*split*), so that all numbers differ by noise, which is the most that there is to do. What is told is
processor time of the process, which other work on the machine changes little; the first round is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from tests.analysis.held_out.devices import SPLIT, Device
from tests.trial.programs import PROGRAMS
from tests.trial.training import STEPS, Training


def llama(layers: int, width: int) -> Training:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=64, max_position_embeddings=64, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    tokens = [torch.randint(0, 64, (2, 16)) for _ in range(STEPS)]
    batches = [{"input_ids": t, "labels": t} for t in tokens]
    return Training(LlamaForCausalLM(config).train(), batches, lambda model, batch: model(**batch).loss)


def rows() -> dict[str, Callable[[], Training]]:
    found: dict[str, Callable[[], Training]] = {name: program.build for name, program in PROGRAMS.items()}
    return found | {f"llama, 48 layers of width {width}": partial(llama, 48, width) for width in (256, 32)}


def record(training: Training, path: Path, data: str, device: AbstractContextManager[Any] | None = None) -> float:
    """Record a program; return the seconds of processor time."""
    begun = time.process_time()
    with device or nullcontext(), DumpMode(DumpConfig(path=str(path), data=data), model=training.model) as dump:
        training.run(dump.step)
    return time.process_time() - begun


def compared(target: Path, baseline: Path) -> float:
    begun = time.process_time()
    found = compare(target, baseline)
    assert found.exit_code == 0, found.answer()
    return time.process_time() - begun


def measured(build: Callable[[], Training], folder: Path, data: str) -> tuple[float, float, float, int]:
    """Return the seconds of recording both sides of equal runs, those of two comparisons, and the calls in a step."""
    paths = {name: folder / name for name in ("baseline", "equal", "split")}
    recording = [record(build(), paths[name], data) for name in ("baseline", "equal")]
    record(build(), paths["split"], data, Device(SPLIT))
    equal, split = (compared(paths[name], paths["baseline"]) for name in ("equal", "split"))
    return sum(recording), equal, split, len(open_dump(paths["baseline"]).rank(0, 0).calls)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparing", description=__doc__)
    parser.add_argument("words", nargs="*", help="only programs whose names have one of these")
    parser.add_argument("--data", default="full", help="what is recorded (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the medians are taken (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| program (calls in a step) | recording both, s | equal runs | split |\n|---|---|---|---|")
    for name, build in rows().items():
        if options.words and not any(word in name for word in options.words):
            continue
        found = []
        for _ in range(options.repeats + 1):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(build, Path(folder), options.data))
        recording, equal, split, calls = (statistics.median(numbers) for numbers in zip(*found[1:], strict=True))
        row = f"{recording:.2f} | {equal / recording:.1f} | {split / recording:.1f}"
        print(f"| {name} ({calls:,.0f}) | {row} |", flush=True)


if __name__ == "__main__":
    main()
