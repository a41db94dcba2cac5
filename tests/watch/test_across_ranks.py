"""Two real ranks on gloo: one file of numbers for both, and an alert of one rank has both recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.watch.across_ranks import Ranks
from aten_dump.watch.measurements import Key, Tally
from tests.distributed.launching import Launched, launch_once

from .programs import net


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("together", tmp_path_factory, module="tests.watch.programs")


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def alone() -> dict[str, Any]:
    """Compute the first step of both ranks here."""
    model = net()
    losses, logits = [], []
    for rank in range(2):
        torch.manual_seed(rank)
        logits.append(model(torch.randn(4, 6)))
        losses.append(logits[-1].square().mean())
    (sum(losses) / 2).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"losses": losses, "logits": torch.cat(logits), "gradients": gradients, "model": model}


@pytest.mark.slow
def test_ranks_are_one_run(launched: Launched) -> None:
    expected = alone()
    for name in ("ddp", "fsdp"):
        rows = lines(launched.folder, f"{name}.jsonl")
        assert [row["step"] for row in rows] == [0, 2, 4]
        found = rows[0]["numbers"]
        assert found["loss"] == pytest.approx(sum(expected["losses"]).item() / 2)
        for parameter, gradient in expected["gradients"].items():
            assert found[f"gradient.norm/{parameter}"] == pytest.approx(gradient.norm().item(), rel=1e-5), name
            assert found[f"gradient.max/{parameter}"] == pytest.approx(gradient.abs().max().item(), rel=1e-5), name
        weight = dict(expected["model"].named_parameters())["0.weight"]
        assert found["parameter.norm/0.weight"] == pytest.approx(weight.norm().item(), rel=1e-5)
        assert found["update.ratio/0.weight"] == pytest.approx(
            0.1 * (expected["gradients"]["0.weight"].norm() / weight.norm()).item(), rel=1e-4
        )
    first = lines(launched.folder, "ddp.jsonl")[0]["numbers"]
    assert first["activation.max/2"] == pytest.approx(expected["logits"].abs().max().item())
    assert first["activation.mean/2"] == pytest.approx(expected["logits"].mean().item(), rel=1e-5)


@pytest.mark.slow
def test_an_alert_of_one_rank_has_both_recorded(launched: Launched) -> None:
    for name in ("ddp", "fsdp"):
        (alert,) = launched.results[0][name]["alerts"]
        assert (alert["step"], alert["rule"], alert["names"]) == (2, "nonfinite", ["loss/"])
        assert launched.results[1][name]["alerts"] == [] == list(launched.results[1][name]["numbers"])
        dump = open_dump(launched.folder / f"dump-{name}")
        assert dump.steps == [3] and dump.step(3).ranks == [0, 1]
        assert all(dump.step(3).rank(rank).complete for rank in (0, 1))


@pytest.mark.slow
def test_each_rank_can_be_watched_for_itself(launched: Launched) -> None:
    losses = [lines(launched.folder, f"each.rank{rank}.jsonl")[0]["numbers"]["loss"] for rank in (0, 1)]
    assert losses == pytest.approx([loss.item() for loss in alone()["losses"]])


def test_one_process_needs_no_group() -> None:
    tallies = {Key("loss", ""): Tally(count=1)}
    ranks = Ranks(together=True)
    assert ranks.added_up(tallies) is tallies and ranks.from_first(True) and ranks.writes(0) and not ranks.writes(1)
