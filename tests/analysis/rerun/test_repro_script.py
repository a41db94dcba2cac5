"""``aten-dump replay``, and the scripts that it writes: they need torch and safetensors and nothing of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch.nn import functional as F

from aten_dump import ReplayError
from aten_dump.analysis.rerun.repro_script import repro_script
from aten_dump.cli.main import main
from tests.analysis.wrong_ops import Wrong, zeroed
from tests.models import build, train_step


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def alone(*commands: list[str]) -> list[str]:
    """Run scripts one after the other in a process in which aten_dump cannot be imported; return what each prints."""
    guard = (
        "import json, sys, runpy; sys.modules['aten_dump'] = None\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    sys.argv[:] = command; runpy.run_path(command[0]); print('-- next')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", guard, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("-- next\n")[:-1]


def test_the_command_finds_the_op_and_writes_a_script_of_it(record: Callable[..., Any], tmp_path: Path) -> None:
    program = build("gpt2")
    with Wrong(torch.ops.aten.mm.default, 7, result=lambda r: r * 1.02):
        rank = record(lambda: program.loss(program.model).backward(), program.model)
    dump = rank.directory.parent.parent
    found = run("replay", dump)
    assert found.exit_code == 1
    first, place = found.stdout.splitlines()[:2]
    assert first.startswith("Aten.mm.7.backward (aten::mm) is the first suspect")
    assert "belongs to Aten.addmm." in place
    assert "module transformer.h.1" in place
    script = tmp_path / "repro.py"
    assert run("replay", dump, "Aten.mm.7.backward", "--emit", script).exit_code == 0
    same, wide = alone([str(script)], [str(script), "--float64"])
    assert "output.0: different, relative L2 error 2.000e-02" in same
    assert "output.0: different, relative L2 error 2.000e-02" in wide
    good = run("replay", dump, "Aten.mm.6.backward", "--dtype", "recorded")
    assert good.exit_code == 0
    assert "1 ops replayed on cpu: 1 bit-equal" in good.stdout
    assert run("replay", dump, "Module.transformer.h.0.0.forward").exit_code == 0


def test_scripts_of_every_op_of_a_step_give_the_recorded_bits(
    record: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Run in this process for speed; the one above has a process of its own."""
    program = build("bert", "adamw_foreach")
    rank = record(lambda: train_step(program), program.model)
    one_of_each = {call.op: call for call in rank.calls if call.kind == "aten"}
    ran = 0
    for call in one_of_each.values():
        try:
            source = repro_script(call)
        except ReplayError:
            assert "empty" in call.op or "profiler" in call.op
            continue
        exec(compile(source, f"{call.name}.py", "exec"), {})
        printed = capsys.readouterr().out
        assert "different" not in printed, (call.name, printed)
        ran += "bit-equal" in printed
    assert ran >= 30


def test_a_script_has_aliases_strides_and_the_generator(record: Callable[..., Any], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)

    def body() -> None:
        x = torch.randn(6, 4).t()
        x.addcmul_(x, x)
        torch.rand(3, generator=generator)
        F.dropout(x, 0.5)
        x.masked_fill(x > 0, float("-inf"))

    rank = record(body)
    apis = ("addcmul_", "rand", "bernoulli_", "masked_fill")
    for api in apis:
        (tmp_path / f"{api}.py").write_text(repro_script(rank[f"Aten.{api}.0.forward"]))
    said = alone(*([str(tmp_path / f"{api}.py")] for api in apis))
    assert len(said) == len(apis)
    for printed in said:
        assert "bit-equal" in printed
        assert "different" not in printed
    assert "memory1" not in (tmp_path / "addcmul_.py").read_text().split("result")[0], "one memory for three arguments"


def test_errors_of_the_command(record: Callable[..., Any], tmp_path: Path) -> None:
    rank = record(lambda: zeroed(torch.ones(200)), data="statistic")
    dump = rank.directory.parent.parent
    assert run("replay", dump).exit_code == 2
    assert 'replay needs data="tensor"' in run("replay", dump).output
    assert run("replay", dump, "--emit", tmp_path / "x.py").exit_code == 2
    toaster = run("replay", dump, "--device", "toaster")
    assert toaster.exit_code == 2 and "device is 'toaster'" in toaster.output
