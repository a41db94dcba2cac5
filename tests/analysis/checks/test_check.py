"""`check`: no alarm on healthy programs, planted bugs found at their lines, and what cannot be judged is said."""

from __future__ import annotations

import json
import linecache
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

from aten_dump import ConfigError, DumpConfig, DumpMode, check, open_dump
from aten_dump.analysis.check import Finding
from aten_dump.analysis.checks.rules import RULES
from aten_dump.analysis.checks.step_facts import StepFacts
from aten_dump.cli.main import main
from tests.checkout import ROOT
from tests.distributed.launching import launch_once
from tests.sampling import slow_but_for

from . import planted_blind, planted_flow, planted_models, planted_more, ranks, ranks_models  # noqa: F401 - they add programs
from .healthy import HEALTHY
from .loops import LOOPS, batch, net
from .planted import PLANTED

IN_CI = [f"loop {name}" for name in list(LOOPS)[::4]] + [
    "trial gan",
    "held out resnet autocast",
    "rewritten momentum_queue",
]
SCHEMA = json.loads((ROOT / "docs" / "json" / "check.schema.json").read_text(encoding="utf-8"))


def told(findings: tuple[Finding, ...]) -> str:
    return "\n".join(map(str, findings))


def line_of(finding: Finding) -> str:
    file, _, line = finding.where.split(" in ")[0].rpartition(":")
    return linecache.getline(file, int(line))


@pytest.mark.parametrize("name", slow_but_for(IN_CI, HEALTHY))
def test_a_healthy_program_raises_no_alarm(name: str, tmp_path: Path) -> None:
    HEALTHY[name](tmp_path / "dump")
    found = check(tmp_path / "dump")
    assert not found.findings, told(found.findings)
    assert not found.not_run and not found.exit_code


SLOW = (planted_blind.__name__, planted_models.__name__, planted_more.__name__)
OF_FLOW = [name for name, one in PLANTED.items() if one.record.__module__ == planted_flow.__name__]
QUICK = {name for name, one in PLANTED.items() if one.record.__module__ not in SLOW} - set(OF_FLOW) | set(OF_FLOW[::2])


@pytest.mark.parametrize("name", slow_but_for(QUICK, PLANTED))
def test_a_planted_bug_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    PLANTED[name].record(tmp_path / "dump")
    found = check(tmp_path / "dump")
    assert {finding.rule for finding in found.findings} == {PLANTED[name].rule}, told(found.findings)
    assert any(line_of(finding).endswith("# bug\n") for finding in found.findings), told(found.findings)
    assert found.exit_code == 1


def test_a_rule_that_is_left_out_finds_nothing(tmp_path: Path) -> None:
    first = next(iter(PLANTED.values()))
    first.record(tmp_path / "dump")
    found = check(tmp_path / "dump", ignore=[first.rule])
    assert not found.findings and first.rule not in found.rules


def test_a_trunk_that_is_cut_off_is_one_finding(tmp_path: Path) -> None:
    PLANTED["trunk of a reward model detached"].record(tmp_path / "dump")
    (finding,) = check(tmp_path / "dump").findings
    assert finding.count == 28, "each parameter of the trunk"


def test_a_gradient_of_a_leaf_that_nobody_knows_is_no_error(tmp_path: Path) -> None:
    planted_models.SELECTED["training-in-eval: translator in evaluation over batches"][1](tmp_path / "dump")
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    assert not StepFacts(rank).applied("no parameter") and not check(rank).findings


def test_there_are_enough_programs() -> None:
    assert len(HEALTHY) >= 60
    planted = [one.rule for one in PLANTED.values()] + [rule for rule, _ in ranks.PLANTED.values()]
    planted += [rule for rule, _ in planted_models.SELECTED.values()] + ["repeated-batch"] * len(planted_flow.REPEATED)
    planted += ["labels-outside"] * len(LABELS)
    assert {name: planted.count(name) for name in RULES if planted.count(name) < 10} == {}


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_once("all", tmp_path_factory, module="tests.analysis.checks.ranks_models").folder


@pytest.mark.slow
@pytest.mark.timeout(
    1200
)  # who comes first records sixty programs on two ranks: a minute on a machine with nothing else to do
@pytest.mark.parametrize("name", ranks.HEALTHY)
def test_ranks_that_are_right_raise_no_alarm(name: str, launched: Path) -> None:
    found = check(launched / name)
    assert not found.findings, told(found.findings)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ranks.PLANTED)
def test_a_planted_bug_of_ranks_is_found(name: str, launched: Path) -> None:
    rule, _ = ranks.PLANTED[name]
    found = check(launched / name, select=[rule])
    assert {finding.rule for finding in found.findings} == {rule}
    if RULES[rule].is_default:
        assert check(launched / name).findings == found.findings


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_rank_alone_says_that_others_are_needed(launched: Path, tmp_path: Path) -> None:
    shutil.copytree(launched / "begun_from_other_seeds", tmp_path / "dump")
    shutil.rmtree(tmp_path / "dump" / "step0" / "rank1")
    shutil.rmtree(tmp_path / "dump" / "step1" / "rank1")
    found = check(tmp_path / "dump")
    assert {one.rule for one in found.not_run if "several ranks" in one.why} == {
        "replicas-apart",
        "not-reduced",
        "same-batch",
    }


LABELS = {
    "one is minus one": lambda logits: F.cross_entropy(logits, torch.tensor([0, 1, -1, 3])),
    "counted from one": lambda logits: F.cross_entropy(logits, torch.tensor([1, 2, 3, 4])),
    "padding of another number": lambda logits: F.cross_entropy(logits, torch.tensor([0, -1, 2, -1]), ignore_index=-2),
    "ids of a larger vocabulary": lambda logits: F.nll_loss(logits.log_softmax(-1), torch.tensor([7, 1, 900, 2])),
    "weighted": lambda logits: F.cross_entropy(logits, torch.tensor([0, 5, 1, 2]), weight=torch.ones(3)),
    "smoothed": lambda logits: nn.CrossEntropyLoss(label_smoothing=0.1)(logits, torch.tensor([0, 3, 1, 2])),
    "a map of an image": lambda logits: F.cross_entropy(logits.reshape(1, 3, 2, 2), torch.tensor([[[0, 255], [1, 2]]])),
    "sequences": lambda logits: F.cross_entropy(logits.T.reshape(1, 3, 4), torch.tensor([[0, 3, 1, 2]])),
    "summed": lambda logits: F.cross_entropy(logits, torch.tensor([0, 1, 2, 99]), reduction="sum"),
    "each alone": lambda logits: F.cross_entropy(logits, torch.tensor([3, 1, 2, 0]), reduction="none"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_torch_refuses_are_named(name: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 3)
    with (
        pytest.raises((IndexError, RuntimeError)),
        DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor"), model=model),
    ):
        LABELS[name](model(torch.randn(4, 6)))
    (finding,) = check(tmp_path / "dump").findings
    assert finding.rule == "labels-outside" and "of the 3 classes" in finding.text


# -- what is not certain runs where it is selected ----------------------------------------------------------------------


def _step(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> None:
    config = DumpConfig(path=str(path), **{"data": "tensor", **options})  # type: ignore[arg-type]
    with DumpMode(config, model=model):
        x, y = batch()
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y).backward()
        optimizer.zero_grad()
        optimizer.step()


@pytest.mark.parametrize("name", slow_but_for(list(planted_models.SELECTED)[::5], planted_models.SELECTED))
def test_a_rule_that_is_not_certain_is_selected(name: str, tmp_path: Path) -> None:
    rule, record = planted_models.SELECTED[name]
    record(tmp_path / "dump")
    assert not check(tmp_path / "dump").findings
    assert {finding.rule for finding in check(tmp_path / "dump", select=[rule]).findings} == {rule}
    assert rule in {finding.rule for finding in check(tmp_path / "dump", select=["all"]).findings}


@pytest.mark.parametrize("name", slow_but_for(["workers that are seeded alike"], planted_flow.REPEATED))
def test_a_batch_that_comes_again_is_selected(name: str, tmp_path: Path) -> None:
    planted_flow.REPEATED[name](tmp_path / "dump")
    assert not check(tmp_path / "dump").findings
    assert [finding.rule for finding in check(tmp_path / "dump", select=["repeated-batch"]).findings] == [
        "repeated-batch"
    ]


# -- less data, wrong names, dumps that are not whole -------------------------------------------------------------------


@pytest.mark.parametrize("data", ["structure", "hash", "statistic"])
def test_a_dump_with_less_data_says_which_rules_did_not_run(data: str, tmp_path: Path) -> None:
    model = net()
    _step(tmp_path / "dump", model, torch.optim.SGD(model.parameters(), 0.1), data=data)
    found = check(tmp_path / "dump")
    assert {finding.rule for finding in found.findings} == {"gradient-dropped"}
    needs = {"bytes"} if data == "statistic" else {"bytes", "contents"}
    expected = {name for name, rule in RULES.items() if rule.is_default and needs & {*rule.needs}}
    assert {one.rule for one in found.not_run} == expected
    assert all('data="tensor"' in one.why for one in found.not_run)


def test_a_dump_of_modules_alone_cannot_be_judged(tmp_path: Path) -> None:
    model = net()
    _step(tmp_path / "dump", model, torch.optim.SGD(model.parameters(), 0.1), level="module")
    result = CliRunner().invoke(main, ["check", str(tmp_path / "dump")])
    assert result.exit_code == 2 and "no rule could judge" in result.output


def test_what_is_not_whole_never_passes(tmp_path: Path) -> None:
    HEALTHY["loop regression"](tmp_path / "dump")
    index = tmp_path / "dump" / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-300])
    found = check(tmp_path / "dump")
    assert found.not_whole and found.exit_code == 2
    assert not found.findings, "what was cut off may be what is missed"
    assert "gradient-dropped" in {one.rule for one in found.not_run if "is not whole" in one.why}


@pytest.mark.parametrize(
    "options", [{"exclude_ops": ["regex:addcdiv"]}, {"ops": ["regex:mm|step|Accumulate"]}, {"io": "input"}]
)
def test_what_was_left_out_is_not_missed(options: dict[str, object], tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", **options), model=model) as dump:  # type: ignore[arg-type]
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    found = check(tmp_path / "dump")
    assert not found.findings and "gradient-dropped" in {one.rule for one in found.not_run}


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ConfigError, match="there is no rule 'no-such'; there are no-gradient, "):
        check("anywhere", select=["no-such"])


def test_a_rank_or_a_step_can_be_given(tmp_path: Path) -> None:
    PLANTED["column against row"].record(tmp_path / "dump")
    dump = open_dump(tmp_path / "dump")
    one = check(dump.rank(1, 0)).findings
    assert [finding.step for finding in one] == [1]
    assert check(dump.step(1)).findings == one == check(dump, steps=[1]).findings


# -- the command and its page -------------------------------------------------------------------------------------------


def test_the_command_and_its_json(tmp_path: Path) -> None:
    PLANTED["cleared before the step"].record(tmp_path / "dump")
    path = str(tmp_path / "dump")
    text = CliRunner().invoke(main, ["check", path])
    assert text.exit_code == 1
    assert "planted.py" in text.output and "gradient-dropped: AdamW.step() does not apply" in text.output
    assert re.search(r"^Next: aten-dump show .* --step 0 --rank 0$", text.output, re.MULTILINE)
    told_as_json = CliRunner().invoke(main, ["check", path, "--format", "json"])
    found = json.loads(told_as_json.stdout)
    jsonschema.validate(found, SCHEMA)
    assert told_as_json.exit_code == 1 and found["findings"][0]["rule"] == "gradient-dropped"
    assert found == json.loads(json.dumps(check(path).to_json()))
    ignored = CliRunner().invoke(main, ["check", path, "--ignore", "gradient-dropped,dead-layer"])
    assert ignored.exit_code == 0 and "Nothing found" in ignored.output
    other = CliRunner().invoke(main, ["check", path, "--select", "broadcast-loss", "--step", "1"])
    assert other.exit_code == 0 and "by 1 rules" in other.output
    assert CliRunner().invoke(main, ["check", path, "--step", "9"]).exit_code == 2


def test_the_page_has_the_table_of_rules() -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (yes|no) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(rule.name, "yes" if rule.is_default else "no", rule.summary) for rule in RULES.values()]
    listed = CliRunner().invoke(main, ["check", "--rules"]).output
    assert all(name in listed for name, _, _ in rows)
    assert f"{len(HEALTHY)} correct programs" in page


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PLANTED["column against row"].record(tmp_path / "dump")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "check.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "check.md", "exec"), {})
    assert "broadcast-loss" in capsys.readouterr().out
