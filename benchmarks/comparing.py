"""What comparing costs, over what recording both sides costs.

    python -m benchmarks.comparing                    all programs, half an hour
    python -m benchmarks.comparing qwen3 width        those whose names have one of these words

Each program is recorded, two steps, and compared with other runs: an equal one; one whose every sum is made in another
order (*split*), so that all numbers differ by noise; an honest rewriting and a mistake of the trial's, drawn by a seed.
The times are processor time of the process, which other work on the machine changes little; the first round is not
counted. The last two lines are the median of all programs, and the ratio that nine in ten stay below.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from tests.analysis.held_out.devices import SPLIT, Device
from tests.trial.cases import Case, of_program
from tests.trial.examine import prepare
from tests.trial.programs import PROGRAMS
from tests.trial.training import STEPS, Training

COMPARED = ("equal", "split", "honest", "mistake")
SEED = 1
Drawn = dict[str, Case]


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


def compared(target: Path, baseline: Path, *, agrees: bool | None = True) -> float:
    begun = time.process_time()
    found = compare(target, baseline)
    assert agrees is None or (found.exit_code == 0) == agrees, found.answer()
    return time.process_time() - begun


def measured(build: Callable[[], Training], folder: Path, options: argparse.Namespace, drawn: Drawn) -> list[float]:
    """Return the calls in a step, the seconds of recording both sides, and those of each comparison; NaN of none."""
    paths = {name: folder / name for name in ("baseline", *COMPARED)}
    recording = [record(build(), paths[name], options.data) for name in ("baseline", "equal")]
    record(build(), paths["split"], options.data, Device(SPLIT))
    found = [compared(paths[name], paths["baseline"]) for name in ("equal", "split")]
    for name in ("honest", "mistake"):
        case = drawn.get(name)
        found.append(math.nan if case is None else _of_case(case, paths[name], paths["baseline"], options.data))
    return [len(open_dump(paths["baseline"]).rank(0, 0).calls), sum(recording), *found]


def _of_case(case: Case, path: Path, baseline: Path, data: str) -> float:
    """Record a case of the trial beside its unchanged twin, and compare them."""
    training = PROGRAMS[case.program].on(case.target)
    device, _ = prepare(case, training)
    try:
        record(training, path, data, device)
    except (RuntimeError, ValueError, IndexError, TypeError):  # a mistake may end the program
        return math.nan
    return compared(path, baseline, agrees=True if case.group == "honest" else None)


def drawn_for(program: str) -> Drawn:
    """Draw an honest rewriting and a mistake of a program; none of what is no program of the trial's."""
    lot = random.Random(f"{program} {SEED}")
    found: Drawn = {}
    for name, group in (("honest", "honest"), ("mistake", "bug")) if program in PROGRAMS else ():
        known = [case for case in of_program(program) if case.group == group and case.of != "device"]
        if known:
            found[name] = lot.choice(known)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparing", description=__doc__)
    parser.add_argument("words", nargs="*", help="only programs whose names have one of these")
    parser.add_argument("--data", default="full", help="what is recorded (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the medians are taken (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        f"| program (calls in a step) | recording both, s | {' | '.join(COMPARED)} |\n|---|---|{'---|' * len(COMPARED)}"
    )
    ratios: list[list[float]] = []
    for name, build in rows().items():
        if options.words and not any(word in name for word in options.words):
            continue
        found, drawn = [], drawn_for(name)
        for _ in range(options.repeats + 1):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(build, Path(folder), options, drawn))
        calls, recording, *seconds = (statistics.median(numbers) for numbers in zip(*found[1:], strict=True))
        ratios.append([one / recording for one in seconds])
        print(f"| {name} ({calls:,.0f}) | {recording:.2f} | {row(ratios[-1])} |", flush=True)
    columns = [sorted(one for one in column if not math.isnan(one)) for column in zip(*ratios, strict=True)]
    print(f"| median | | {row([statistics.median(column) if column else math.nan for column in columns])} |")
    print(f"| nine in ten | | {row([column[9 * len(column) // 10] if column else math.nan for column in columns])} |")


def row(ratios: Sequence[float]) -> str:
    return " | ".join("" if math.isnan(one) else f"{one:.1f}" for one in ratios)


if __name__ == "__main__":
    main()
