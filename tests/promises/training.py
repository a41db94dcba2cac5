"""A real training program under DumpMode, to be killed or starved of disk: python -m tests.promises.training.

Reads a JSON object of options from the first argument. With "log" it writes one line per aten op, told by the oracle:
step, op and checksums of the outputs; a line is in the kernel before the next op runs.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import warnings
import zlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode
from tests import devices
from tests.capture.bits import raw, tensors
from tests.capture.oracle import run
from tests.models import build, outcome_of, run_steps, train, train_step


class Log(TorchDispatchMode):
    """Writes what it sees to an unbuffered file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115
        self.step = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = run(func, args, kwargs or {})
        with torch._C._DisableTorchDispatch():
            sums = [zlib.crc32(raw(t)) for t in tensors(out)]
        self.file.write(json.dumps([self.step, func.name(), sums]).encode() + b"\n")
        return out


def _limit_files(nbytes: int) -> None:
    """Make writes beyond `nbytes` of a file fail as on a full disk (EFBIG; Python ignores the signal)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def _digest(outcome: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(outcome.tensors().items()):
        digest.update(name.encode() + raw(tensor))
    return digest.hexdigest()


def logged(options: dict[str, Any]) -> None:
    """Train for ever, logging every op."""
    program = build(options["model"], "adamw_foreach")
    log = Log(options["log"])
    with DumpMode(DumpConfig(**options["config"]), model=program.model) as dump:
        while True:
            with log:
                train_step(program)
            dump.step()
            log.step += 1


def measured(options: dict[str, Any]) -> None:
    """Train two steps, bare or dumped, and print what they left."""
    program = build(options["model"], "adamw_foreach")
    report: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if options.get("config"):
                if "file_bytes" in options:
                    _limit_files(options["file_bytes"])
                with DumpMode(DumpConfig(**options["config"]), model=program.model) as dump:
                    losses = run_steps(program, 2, dump.step)
                report["digest"] = _digest(outcome_of(program, losses))
            else:
                report["digest"] = _digest(train(program, 2))
        except Exception as error:
            report["error"] = [type(error).__name__, str(error), [c.__name__ for c in type(error).__mro__]]
    _limit_files(resource.RLIM_INFINITY)  # what is printed may go to a file
    report["warnings"] = [str(w.message) for w in caught if "dump" in str(w.message).lower()]
    report["modes"] = list(devices.modes_on_the_stacks())
    print(json.dumps(report))


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    devices.use(given.get("device", "cpu"))
    {"logged": logged, "measured": measured}[given["run"]](given)
