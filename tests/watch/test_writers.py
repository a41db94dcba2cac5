"""What is written is read back by TensorBoard's own reader, by W&B's own messages of an offline run, and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from aten_dump import ConfigError, Watch
from tests.checkout import ROOT

SCHEMA = json.loads((ROOT / "docs" / "json" / "watch.schema.json").read_text(encoding="utf-8"))


def train(to: Any, **options: Any) -> Watch:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Watch(every=2, to=to, model=model, modules="*", **options) as watch:
        for step in range(5):
            model(torch.randn(3, 4) * (float("nan") if step == 4 else 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch


def test_tensorboard_reads_the_curves_and_the_alerts(tmp_path: Path) -> None:
    watch = train(f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= {"loss", "lr/group0", "update.ratio/weight", "activation.norm/(model)"}
    curve = events.Scalars("gradient.norm/weight")
    assert [point.step for point in curve] == [0, 2, 4]
    assert curve[0].value > 0 and curve[2].value != curve[2].value
    assert watch.numbers["lr/group0"] == pytest.approx(events.Scalars("lr/group0")[2].value)
    assert [tag for tag in events.Tags()["tensors"] if tag.startswith("alert/nonfinite")]


def test_the_users_own_writer_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        train(writer)
        writer.add_scalar("mine", 1.0, 0)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"mine", "loss"} <= set(events.Tags()["scalars"])


def test_lines_of_json_have_the_schema_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "watch.jsonl"
    train([path])
    train(path, rules=None)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        jsonschema.validate(row, SCHEMA)
    assert [row["step"] for row in rows] == [0, 2, 4, 0, 2, 4]
    assert rows[2]["numbers"]["loss"] == "NaN" and rows[0]["numbers"]["loss"] == rows[3]["numbers"]["loss"]
    assert [alert["rule"] for row in rows for alert in row["alerts"]] == ["nonfinite"]


@pytest.mark.parametrize("to", [None, 3, "", ["w", 3]])
def test_what_cannot_be_written_to_is_an_error(to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="allowed: 'tensorboard', 'tensorboard:FOLDER', 'wandb', a path"):
        train(to)


def test_a_path_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to"):
        train(tmp_path / "file" / "watch.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_leaves_the_other_targets_and_the_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="JsonLines cannot write step 0"):
        watch = train(["/dev/full", tmp_path / "good.jsonl"])
    assert len((tmp_path / "good.jsonl").read_text().splitlines()) == 3 and watch.current_step == 5


WANDB = """
import sys, torch, wandb
from torch import nn
from aten_dump import Watch
own = sys.argv[1] == "own"
run = None if own else wandb.init(project="p", mode="offline", dir=".")
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Watch(every=2, to="wandb", model=model) as watch:
    for step in range(5):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if sys.argv[1] == "logs":
            run.log({"mine": step})
if run is not None:
    assert wandb.run is run and (sys.argv[1] != "logs" or run.step == 5), run.step
    run.finish()
"""
# The file of an offline run is a log as of LevelDB, of W&B's own messages; newer versions have no reader in Python.
READ_WANDB = """
import glob, json, struct
from wandb.proto import wandb_internal_pb2
data = open(glob.glob("wandb/offline-run-*/*.wandb")[0], "rb").read()
at, message, rows = 7, b"", []
while at + 7 <= len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    _, length, kind = struct.unpack("<IHB", data[at:at + 7])
    message += data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        message = b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
print(json.dumps(rows))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["own", "active", "logs"])
def test_wandb_reads_an_offline_run(how: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    for program in (WANDB, READ_WANDB):
        done = subprocess.run(
            [sys.executable, "-c", program, how],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout.splitlines()[-1]) if "watch/step" in row]
    assert [row["watch/step"] for row in rows] == [0, 2, 4]
    assert all(row["watch/gradient.norm/weight"] > 0 and row["watch/lr/group0"] == 0.1 for row in rows)
    if how == "logs":
        assert [row["mine"] for row in rows] == [0, 2, 4], "in the rows of the program's own logs"
