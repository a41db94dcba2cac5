"""What `compare` takes and gives: steps, ranks, levels, rules, control, mapping, executors, recompute, the command line."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.checkpoint import checkpoint

from aten_dump import DumpConfig, DumpMode, MissingDataError, compare
from aten_dump.analysis.compare import compare_recompute
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.findings import Finding, Part, Place, RankEvidence, Row
from aten_dump.cli.main import main
from aten_dump.dump import RankDump
from tests.analysis.held_out.devices import Device


class Net(nn.Module):
    def __init__(self, name: str = "layers", checkpointed: bool = False, noisy: bool = False) -> None:
        super().__init__()
        self.add_module(
            name, nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(3))
        )
        self.name, self.checkpointed, self.noisy = name, checkpointed, noisy
        self.calls = 0

    def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return layer(x * (1.5 if self.noisy and self.calls > 3 else 1.0))  # recomputation does something else

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.get_submodule(self.name):
            x = checkpoint(self.block, layer, x, use_reentrant=False) if self.checkpointed else self.block(layer, x)
        return x


def record(
    path: Path,
    steps: int = 1,
    change: Callable[[nn.Module], Any] = lambda m: None,
    net: Net | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    torch.manual_seed(seed)
    model = net or Net()
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path=str(path), **({"data": "full"} | config)), model=model) as dump:
        for step in range(steps):
            torch.manual_seed(step)
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def shifted(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0.01)


def eps(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-2


@pytest.mark.parametrize("data", ["full", "tensor", "hash", "statistic"])
def test_equal_dumps_are_said_to_be_equal(data: str, tmp_path: Path) -> None:
    found = compare(record(tmp_path / "a", data=data), record(tmp_path / "b", data=data))
    level = "tensor" if data == "full" else data
    assert found.exit_code == 0 and found.ranks[0].level == level
    assert found.verdict == ("within" if data == "statistic" else "same")  # statistics cannot tell bits
    assert all(row.how for row in found.rows)


def test_equal_hashes_need_no_shard(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", data="full"), record(tmp_path / "b", data="full")
    for shard in [*a.rglob("*.safetensors"), *b.rglob("*.safetensors")]:
        shard.unlink()
    assert compare(a, b).verdict == "same"


class Rescaled(Net):
    """Computes the same, with two more calls."""

    def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return super().block(layer, x).neg().neg()


def structure(path: Path, **options: Any) -> Path:
    return record(path, 2, data="structure", **options)


def test_structure_alone_tells_that_the_programs_are_the_same_and_nothing_of_their_numbers(tmp_path: Path) -> None:
    found = compare(structure(tmp_path / "a"), structure(tmp_path / "b"))
    assert found.verdict == "incomparable" and found.exit_code == 2
    said = found.answer()
    assert "As programs they are the same" in said and 'data="statistic"' in said
    assert "proven" not in said and "nobody knows" not in said and "other arguments" not in said


def test_structure_alone_tells_which_arguments_differ(tmp_path: Path) -> None:
    found = compare(structure(tmp_path / "a", change=eps), structure(tmp_path / "b"))
    assert found.exit_code == 2, "what comes of it is not known"
    first, *lines = found.answer().splitlines()
    assert "As programs they differ: other arguments in 6 calls." in first  # three norms in each of two steps
    told = [line for line in lines if "called with other arguments" in line]
    assert "native_layer_norm.0.forward (layers.0.2, " in told[0] and told[0].endswith(
        "eps is 0.01, in the baseline 1e-05"
    )
    assert len(told) == 6 and all("native_layer_norm." in line for line in told)
    seen = {(row.place, row.seen) for row in found.rows if row.seen}
    assert len(seen) == 6 and {text for _, text in seen} == {"eps is 0.01, in the baseline 1e-05"}


def test_structure_alone_tells_which_calls_are_of_one_side(tmp_path: Path) -> None:
    found = compare(structure(tmp_path / "a", net=Rescaled()), structure(tmp_path / "b"))
    said = found.answer()
    assert found.exit_code == 2 and "As programs they differ: " in said and " calls of one side alone." in said
    assert "without a counterpart: Tensor.neg.0.forward of the target, Aten.neg.0.forward of the target, " in said


def test_what_the_calls_differ_in_is_not_repeated_where_data_tell(tmp_path: Path) -> None:
    found = compare(record(tmp_path / "a", change=eps), record(tmp_path / "b"))
    assert found.exit_code == 1 and not any(row.seen for row in found.rows)


def test_an_argument_is_found_at_every_level(tmp_path: Path) -> None:
    for data in ("tensor", "statistic", "hash"):
        found = compare(record(tmp_path / f"a{data}", change=eps, data=data), record(tmp_path / f"b{data}", data=data))
        assert found.cause is not None and found.cause.kind == "argument", found.answer()
        assert found.cause.row.place.op == "aten::native_layer_norm" and "eps is 0.01" in found.cause.text


def test_steps_and_ranks_are_paired(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", steps=3), record(tmp_path / "b", steps=2)
    found = compare(a, b)
    assert [e.steps for e in found.ranks] == [(0, 0), (1, 1)] and found.verdict == "same"
    assert "steps 2 are in one dump only" in found.answer()
    shifted_steps = compare(a, b, step="1:0")
    assert [e.steps for e in shifted_steps.ranks] == [(1, 0)] and shifted_steps.verdict == "different"
    with pytest.raises(MissingDataError, match="step 9"):
        compare(a, b, step="9:0")
    shutil.move(a / "step0", a / "step7")
    for step in (1, 2):
        shutil.rmtree(a / f"step{step}")
    shutil.rmtree(b / "step1")
    assert [e.steps for e in compare(a, b).ranks] == [(7, 0)]


def test_the_first_cause_is_told_per_rank_and_over_ranks(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b")
    wrong = record(tmp_path / "wrong", change=eps)
    for dump, source in ((a, wrong), (b, b)):
        shutil.copytree(source / "step0" / "rank0", dump / "step0" / "rank1")
    found = compare(a, b)
    assert found.first is not None and found.first[0].ranks == (1, 1)
    assert "no cause in step 0 rank 0" in found.answer()


@pytest.mark.parametrize("differs", [True, False])
def test_a_rank_without_a_cause_of_its_own_is_told_who_brought_what_differs(differs: bool) -> None:
    def rank(number: int, call: str, part: Part, *findings: Finding) -> RankEvidence:
        place = Place(0, number, part.call, call, "c10d::allreduce_", "aten", "backward", "", "", "", "")
        row = Row(place, place, "order", "output.0", "within", Closeness("tensor", bitwise=not differs, error=0.1))
        return RankEvidence(
            "t", "b", (0, 0), (number, number), "tensor", {}, (9, 9), {}, (row,), findings, {}, {}, meets=(part,)
        )  # fmt: skip

    place = Place(0, 1, 3, "Aten.tanh.0.forward", "aten::tanh", "aten", "forward", "", "", "", "")
    cause = Finding("op", Row(place, place, "order", "output.0", "different"), "it is wrong", "", (3, 1))
    meeting = [Part(("0", (0, 1), ""), 0, number, sends=True, receives=True) for number in (4, 5)]
    found = Comparison("t", "b", (rank(0, "allreduce_.7", meeting[0]), rank(1, "allreduce_.8", meeting[1], cause)))
    brought = "no cause of its own; what differs from allreduce_.7 on was brought by Aten.tanh.0.forward of rank 1"
    assert (f"step 0 rank 0: {brought}" in found.answer()) == differs
    assert ("no cause in step 0 rank 0" in found.answer()) != differs


@pytest.mark.slow  # in `make test`: test_executors.py
@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_an_executor_gives_the_same_evidence(pool: str, tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", steps=3, change=eps), record(tmp_path / "b", steps=3)
    alone = compare(a, b)
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) if pool == "threads" else ProcessPoolExecutor(2, get_context("spawn")) as executor:
        found = compare(a, b, executor=executor, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)] and found.verdict == alone.verdict
    named = [[(row.place.call, row.slot, row.status) for row in result.rows] for result in (found, alone)]
    assert named[0] == named[1] and [e.steps for e in found.ranks] == [(0, 0), (1, 1), (2, 2)]


def test_rules_decide_before_floors(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", change=eps), record(tmp_path / "b")
    assert compare(a, b, rules=[(".", "ignore")]).exit_code == 0
    strict = compare(a, b, rules=[("native_layer_norm.0", "rel_l2 < 1e-9")])
    assert strict.cause is not None and "is not met" in strict.cause.row.note


def test_renamed_modules_align_and_the_mapping_is_written_back(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", net=Net("blocks")), record(tmp_path / "b", net=_seeded("layers"))
    torch.manual_seed(0)
    found = compare(a, b)
    assert found.mapping.modules.get("blocks.0.0") or found.mapping.modules.get("blocks")
    path = tmp_path / "map.yaml"
    found.mapping.write(path)
    again = compare(a, b, mapping=path)
    assert again.ranks[0].pairs.get("only call of this module, op and shape here", 0) > found.ranks[0].pairs.get(
        "only call of this module, op and shape here", 0
    )


def _seeded(name: str) -> Net:
    torch.manual_seed(0)
    return Net(name)


def test_a_control_dump_gives_the_floor(tmp_path: Path) -> None:
    def noise(scale: float) -> Callable[[nn.Module], None]:
        def change(model: nn.Module) -> None:
            generator = torch.Generator().manual_seed(int(scale * 1e6))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(scale * torch.randn(parameter.shape, generator=generator))

        return change

    base, control = record(tmp_path / "b"), record(tmp_path / "c", change=noise(1e-3))
    target = record(tmp_path / "t", change=noise(1.1e-3))
    rows = list(compare(target, base, control=control, replay=False).rows)
    floors = {row.floor_from for row in rows if row.status == "within" and row.slot.startswith("output")}
    assert "control" in floors
    assert max(row.floor or 0 for row in rows if row.floor_from == "control") > 1e-3
    without = [row for row in compare(target, base, replay=False).rows if row.slot.startswith("output")]
    assert not [row for row in without if row.floor_from == "control"]


def test_recomputed_calls_are_compared_with_their_originals(tmp_path: Path) -> None:
    good = compare_recompute(record(tmp_path / "good", net=Net(checkpointed=True)))
    assert good.verdict == "same" and set(good.ranks[0].pairs) == {"recomputed call and its original"}
    bad = compare_recompute(record(tmp_path / "bad", net=Net(checkpointed=True, noisy=True)))
    assert bad.cause is not None and bad.cause.row.place.op == "aten::mul.Tensor", bad.answer()
    assert bad.cause.row.place.phase == "recompute"
    none = compare_recompute(record(tmp_path / "none"))
    assert none.exit_code == 2


def test_an_unmatched_call_is_never_a_pass(tmp_path: Path) -> None:
    class More(Net):
        def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return super().block(layer, x).clone()

    found = compare(record(tmp_path / "a", net=_more(More)), record(tmp_path / "b"))
    alone = [row for row in found.rows if row.status == "unmatched" and row.place.kind == "aten"]
    assert alone and all(row.baseline is None for row in alone)
    assert found.verdict == "within" and "calls exist in one dump only" in found.answer()


def _more(kind: type[Net]) -> Net:
    torch.manual_seed(0)
    return kind()


def test_the_command_line_answers_and_writes_tables(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", change=eps), record(tmp_path / "b")

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(main, ["compare", *map(str, arguments)])

    same = run(b, b)
    assert same.exit_code == 0 and same.stdout.startswith("The dumps are the same")
    different = run(a, b, "--format", "table", "--status", "different")
    assert different.exit_code == 1 and "First cause: Aten.native_layer_norm.0.forward" in different.stdout
    assert "status" in different.stdout
    assert run(a, tmp_path / "none").exit_code == 2
    assert run(a, b, "--step", "0:9").exit_code == 2
    assert run(a, b, "--rule", ".: ignore").exit_code == 0
    table = tmp_path / "rows.csv"
    run(a, b, "--format", "csv", "--output", table, "--write-mapping", tmp_path / "m.yaml")
    rows = list(csv.DictReader(table.open()))
    first = next(
        row for row in rows if row["status"] == "different" and row["slot"] == "output.0" and row["kind"] == "aten"
    )
    assert first["target"] == "Aten.native_layer_norm.0.forward" and float(first["rel_l2"]) > 0
    assert json.loads(run(a, b, "--format", "json").stdout)["rows"][0]["target"]
    assert (tmp_path / "m.yaml").exists()
    assert run("--recompute", a).exit_code == 2
    assert run(a).exit_code == 2


def test_work_on_ops_on_lists_grows_with_their_length_and_not_its_square(record: Callable[..., RankDump]) -> None:
    def steps(count: int) -> int:
        """Count the Python functions that comparing calls of lists of tensors runs."""
        weights, others = ([torch.full((3,), 1.0 + n) for n in range(count)] for _ in range(2))
        gradients = [torch.full((3,), n / count) for n in range(count)]
        baseline = record(lambda: torch._foreach_add_(weights, torch._foreach_exp(gradients)))
        with Device({"_foreach_exp": lambda func, xs: [x.exp().nextafter(torch.tensor(9.0)) for x in xs]}):
            target = record(lambda: torch._foreach_add_(others, torch._foreach_exp(gradients)))
        calls = 0

        def seen(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(seen)
        try:
            found = compare(target, baseline)
        finally:
            sys.setprofile(None)
        assert found.verdict == "within", found.answer()
        return calls

    steps(1)
    one, two = steps(60), steps(120)
    assert two < 2.05 * one, (one, two)
