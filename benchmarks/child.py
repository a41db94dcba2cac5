"""Measures one row in this process: `python -m benchmarks.child SPEC RESULT`, both JSON (see `spawn.py`)."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from .growth import steps_curve
from .measure import measure
from .modes import IndexCosts
from .rows import ROWS
from .workloads import workload_named


def main() -> None:
    spec, result = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(0)
    with torch.device(spec["device"]):
        workload = workload_named(spec["workload"])
    mode, folder = ROWS[spec["mode"]], Path(spec["folder"])
    if spec["marks"]:
        found: dict[str, Any] = {"curve": steps_curve(workload, mode, folder, spec["marks"])}
    else:
        costs = IndexCosts()
        measurement = measure(workload, mode, folder, spec["repeats"], costs.look)
        found = {**dataclasses.asdict(measurement), "index": costs.found()}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
