"""`env --compare`: what two runs differ in beside the program, most relevant first, secrets masked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from aten_dump import DumpConfig, DumpMode
from aten_dump.analysis.environments import compare_environments, describe_environment
from aten_dump.cli.main import main
from aten_dump.store.run_json import read_run, write_run
from tests.checkout import ROOT


def schema(name: str) -> Any:
    return json.loads((ROOT / "docs" / "json" / f"{name}.schema.json").read_text(encoding="utf-8"))


def record(
    path: Path, *, seed: int = 0, lr: float = 1e-3, decay: float = 1.0, batch: int = 3, model: nn.Module | None = None,
    data: str = "hash",
) -> Path:  # fmt: skip
    torch.manual_seed(5)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    generator = torch.Generator().manual_seed(batch)
    torch.manual_seed(seed)
    with DumpMode(DumpConfig(path=str(path), data=data), model=model) as dump:
        for _ in range(2):
            model(torch.randn(4, 6, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            dump.step()
    return path


def edit(path: Path, **members: Any) -> None:
    """Write other members into run.json, as another machine would have."""
    write_run(path, {**{n: m for n, m in read_run(path).items() if n != "checksum"}, **members})


def aspects(target: Path, baseline: Path) -> dict[str, str]:
    return {one.aspect: one.text for one in compare_environments(target, baseline).differences}


def test_equal_runs_have_no_difference(tmp_path: Path) -> None:
    found = compare_environments(record(tmp_path / "a"), record(tmp_path / "b"))
    assert not found.differences and not found.unknown


@pytest.mark.parametrize(
    ("options", "aspect", "text"),
    [
        ({"lr": 2e-3}, "hyperparameters", "step 0 rank 0: AdamW group 0: lr 0.002, in the baseline 0.001"),
        ({"decay": 0.5}, "hyperparameters", "AdamW group 0 after: lr 0.0005, in the baseline 0.001"),
        ({"batch": 4}, "data", "data at step 0 rank 0: the model is given another batch (float32[4, 6])"),
        ({"seed": 1}, "seed", "seed: 1, in the baseline 0"),
        ({"seed": 1, "data": "tensor"}, "random numbers", "draws from another state"),
        (
            {"model": nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3, bias=False))},
            "model",
            "parameter 2.bias: none, in the baseline float32[3]",
        ),
        ({"model": nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.2), nn.Linear(8, 3))}, "model", "dropout.AlphaDropout"),
        ({"model": nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2).eval(), nn.Linear(8, 3))}, "model", "in evaluation"),
    ],
)  # fmt: skip
def test_what_the_steps_differ_in(options: dict[str, Any], aspect: str, text: str, tmp_path: Path) -> None:
    found = compare_environments(
        record(tmp_path / "a", **options), record(tmp_path / "b", data=options.get("data", "hash"))
    ).differences
    assert any(one.aspect == aspect and text in one.text for one in found), found


def test_what_the_machines_differ_in_comes_behind_and_in_order(tmp_path: Path) -> None:
    target, baseline = record(tmp_path / "a", lr=0.1), record(tmp_path / "b")
    edit(
        target,
        packages={"torch": "2.9.0", "numpy": "1.26.0"},
        computing={"deterministic": True, "deterministic_warn_only": False, "float32_matmul_precision": "highest"},
        threads=7,
        variables={"OMP_NUM_THREADS": "7", "NCCL_ALGO": "Ring"},
        python="3.10.1",
    )
    edit(baseline, variables={"OMP_NUM_THREADS": "1"}, threads=1)
    found = compare_environments(target, baseline).differences
    names = [one.aspect for one in found]
    assert list(dict.fromkeys(names)) == [
        "hyperparameters", "torch", "switches", "threads", "variables", "packages", "python"
    ]  # fmt: skip
    texts = [one.text for one in found]
    assert "switches: deterministic on, in the baseline off" in texts
    assert "variables: NCCL_ALGO Ring, in the baseline not set" in texts
    assert texts[1].startswith("torch: 2.9.0, in the baseline 2.")


def test_secrets_are_masked_where_they_are_recorded_and_where_they_are_shown(tmp_path: Path) -> None:
    code = (
        "import torch; from aten_dump import DumpConfig, DumpMode\n"
        f"with DumpMode(DumpConfig(path={str(tmp_path / 'a')!r})): torch.ones(1) + 1"
    )
    environment = {
        "PYTHONPATH": str(ROOT),
        "TORCH_HUB_TOKEN": "hunter2",
        "OMP_NUM_THREADS": "1",
        "HOME_SECRET": "hunter3",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    variables = read_run(tmp_path / "a")["variables"]
    assert (
        variables["TORCH_HUB_TOKEN"] == "***" and variables["OMP_NUM_THREADS"] == "1" and "HOME_SECRET" not in variables
    )
    other = record(tmp_path / "b")
    edit(other, variables={"TORCH_HUB_TOKEN": "hunter4"})
    told = "\n".join([*describe_environment(other), *map(str, compare_environments(tmp_path / "a", other).differences)])
    assert "hunter" not in told and "TORCH_HUB_TOKEN ***" in told


def test_without_argv_neither_command_nor_variables_are_kept(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "a"), argv=False)):
        torch.ones(1) + 1
    assert not {"command", "variables"} & read_run(tmp_path / "a").keys()
    found = compare_environments(tmp_path / "a", record(tmp_path / "b"))
    assert "variables: the target does not say" in found.unknown


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    found = compare_environments(
        record(tmp_path / "a", data="statistic"), record(tmp_path / "b", data="statistic", batch=4)
    )
    assert "data" not in {one.aspect for one in found.differences}
    assert any(text.startswith("data: neither bytes nor hashes") for text in found.unknown)


def scaled(path: Path, scale: float, interval: int, casts: bool) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                loss = model(torch.ones(4, 6)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()
    return path


def test_scalers_and_autocast_are_compared(tmp_path: Path) -> None:
    one, other = scaled(tmp_path / "a", 1024.0, 2000, True), scaled(tmp_path / "b", 256.0, 100, False)
    texts = [difference.text for difference in compare_environments(one, other).differences]
    at = "step 0 rank 0: "
    assert f"hyperparameters at {at}gradient scaler: scale 1024, in the baseline 256" in texts
    assert f"hyperparameters at {at}gradient scaler: growth_interval 2000, in the baseline 100" in texts
    assert (
        f"model at {at}dtype of the result of module 0, module 1, module 2: bfloat16, in the baseline float32" in texts
    )
    assert not compare_environments(one, one).differences


def test_settings_of_modules_are_compared(tmp_path: Path) -> None:
    def build(p: float, eps: float) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(p), nn.LayerNorm(8, eps=eps), nn.Linear(8, 3))

    one = record(tmp_path / "a", model=build(0.3, 1e-5))
    texts = [d.text for d in compare_environments(one, record(tmp_path / "b", model=build(0.1, 1e-6))).differences]
    at = "model at step 0 rank 0: argument"
    assert f"{at} p of torch.nn.functional.dropout in module 1: 0.3, in the baseline 0.1" in texts
    assert f"{at} eps of torch.nn.functional.layer_norm in module 2: 1e-05, in the baseline 1e-06" in texts


def step_of(path: Path, **options: Any) -> Path:
    """Record two steps of a loop whose settings lie outside the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    if options.get("scaled"):
        with torch.no_grad():
            model[1].weight.mul_(1.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(3, 4, 6)[options.get("order", slice(None))]
    with DumpMode(DumpConfig(path=str(path), data="hash"), model=model) as dump:
        for batch in batches:
            for part in batch.chunk(options.get("parts", 1)):
                loss = nn.functional.mse_loss(
                    model(part), torch.ones(len(part), 3), reduction=options.get("loss", "mean")
                )
                loss.backward()
            if options.get("clip", 1.0):
                nn.utils.clip_grad_norm_(model.parameters(), options.get("clip", 1.0))
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scaled": True}, ["weights at step 0 rank 0: module 1 begins with other parameters or buffers"]),
        ({"order": [1, 0, 2]}, ["data at step 0 rank 0: the model is given another batch (float32[4, 6]), that of step 1 in "]),
        ({"parts": 2}, ["data at step 0 rank 0: the model is called 2 times in a step, in the baseline 1", "data at"]),
        ({"loss": "sum"}, ["model at step 0 rank 0: argument reduction of torch.nn.functional.mse_loss in function step_of: sum, "]),
        ({"clip": 0.5}, ["model at step 0 rank 0: argument 1 of torch.Tensor.__rdiv__ in function _clip_grads_with_norm_: 0.5"]),
        ({"clip": None}, ["model at step 0 rank 0: calls outside modules: none in the target alone, "]),
    ],
)  # fmt: skip
def test_weights_order_of_data_and_settings_of_the_loop_are_named(
    options: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    found = compare_environments(step_of(tmp_path / "a", **options), step_of(tmp_path / "b")).differences
    assert len(found) == len(expected), found
    for one, text in zip(found, expected, strict=True):
        assert one.text.startswith(text), one.text


def parts_of(path: Path, *, wide: float = 1.0, seed: int = 0) -> Path:
    """Call the parts of a model one by one, as a program does that has no module around them."""
    torch.manual_seed(5)
    parts = nn.ModuleDict({"trunk": nn.Linear(6, 8), "head": nn.Linear(8, 3)})
    torch.manual_seed(seed)
    batch = torch.randn(4, 6)
    with DumpMode(DumpConfig(path=str(path), data="hash"), model=parts):
        hidden = torch.relu(parts["trunk"](batch)) * wide
        parts["head"](hidden).square().mean().backward()
    return path


def test_what_one_module_hands_to_the_next_is_no_batch(tmp_path: Path) -> None:
    baseline = parts_of(tmp_path / "b")
    assert "data" not in aspects(parts_of(tmp_path / "t", wide=2.0), baseline)
    assert "another batch (float32[4, 6])" in aspects(parts_of(tmp_path / "s", seed=1), baseline)["data"]


def test_what_many_modules_have_in_common_is_one_line(tmp_path: Path) -> None:
    def build(p: float) -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Dropout(p)) for _ in range(8)), nn.Linear(6, 3))

    found = compare_environments(record(tmp_path / "a", model=build(0.3)), record(tmp_path / "b", model=build(0.1)))
    assert [one.text.partition(": argument ")[2] for one in found.differences if one.aspect == "model"] == [
        "p of torch.nn.functional.dropout in module 0.1, module 1.1, module 2.1, module 3.1, module 4.1 and 3 more: "
        "0.3, in the baseline 0.1"
    ]


def test_the_command_and_its_json(tmp_path: Path) -> None:
    target, baseline = str(record(tmp_path / "a", lr=0.1)), str(record(tmp_path / "b"))
    text = CliRunner().invoke(main, ["env", "--compare", target, baseline])
    assert text.exit_code == 1 and text.output.splitlines()[-1] == "1 difference"
    assert "hyperparameters at step 0 rank 0: AdamW group 0: lr 0.1, in the baseline 0.001" in text.output
    same = CliRunner().invoke(main, ["env", "--compare", baseline, baseline])
    assert same.exit_code == 0 and "No difference." in same.output
    found = CliRunner().invoke(main, ["env", "--compare", target, baseline, "--format", "json"])
    jsonschema.validate(json.loads(found.stdout), schema("env-compare"))
    one = CliRunner().invoke(main, ["env", target])
    assert one.exit_code == 0 and "hyperparameters: AdamW group 0: lr 0.1" in one.output and "seed: 0" in one.output
    for arguments in (["env", target], ["env"]):
        jsonschema.validate(
            json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).stdout), schema("env")
        )
    assert CliRunner().invoke(main, ["env", "--compare", target, str(tmp_path / "none")]).exit_code == 2
