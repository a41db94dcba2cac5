"""docs/for-agents.md: its commands run, and lead to the line of a bug; what they print is as the schemas have it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli.main import COMMANDS, main
from tests.checkout import ROOT

PAGE = (ROOT / "docs" / "for-agents.md").read_text(encoding="utf-8")
SCHEMAS = ROOT / "docs" / "json"


class Net(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.first, self.second, self.bug = nn.Linear(6, 8), nn.Linear(8, 3), bug

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.bug == "nan":
            h = (h - 10).log()  # the line
        elif self.bug == "other":
            h = nn.functional.layer_norm(h, (8,), eps=1e-2)  # the line
        elif self.bug == "detached":
            h = h.detach()  # the line
        if self.bug != "other":
            h = nn.functional.layer_norm(h, (8,))
        return self.second(h)


def record(path: Path, bug: str, data: str = "tensor") -> None:
    torch.manual_seed(0)
    model = Net(bug)
    optimizer = torch.optim.AdamW(model.parameters())
    with DumpMode(DumpConfig(path=str(path), data=data), model=model) as dump:
        for _ in range(2):
            out = model(torch.randn(4, 6))
            dump.save("out", out)
            nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    for name, bug in (("dump", "nan"), ("detached", "detached"), ("target", "other"), ("baseline", "")):
        record(folder / name, bug)
    return folder


def run(line: str) -> Result:
    program, *arguments = shlex.split(line)
    assert program == "aten-dump"
    return CliRunner().invoke(main, arguments)


def line_at(source: str) -> str:
    match = re.search(r"([^ ]+\.py):(\d+)", source.rpartition("from ")[2] or source)
    assert match, source
    return Path(match[1]).read_text().splitlines()[int(match[2]) - 1]


@pytest.mark.parametrize(
    ("command", "name"), re.findall(r"^\| `(aten-dump [^`]+)` \| \[([a-z-]+)\]\(json/", PAGE, re.MULTILINE)
)
def test_what_a_command_prints_is_as_its_schema_has_it(
    command: str, name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    result = run(command)
    # The run of `ctl` has ended: it says so on stderr, and who did not answer on stdout.
    assert result.exit_code in ((2,) if name == "ctl" else (0, 1)), result.output
    jsonschema.validate(json.loads(result.stdout), schema)


def test_every_command_has_a_format_and_its_schema_is_in_the_table() -> None:
    listed = {command.split()[1] for command in re.findall(r"^\| `(aten-dump [^`]+)`.* \| \[", PAGE, re.MULTILINE)}
    assert listed == set(COMMANDS)
    for name in set(COMMANDS) - {"run"}:  # which becomes the program
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for one in command.commands.values() if isinstance(command, click.Group) else [command]:
            formats = [option.type.choices for option in one.params if option.name == "form"]  # type: ignore[attr-defined]
            assert formats and "json" in formats[0], f"{name} {one.name}"


def test_what_config_says_of_a_file_of_another_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "task": "statistics",
        "dump_path": "x",
        "rank": [0],
        "step": [1],
        "level": "L1",
        "enable_dataloader": True,
    }
    Path("config.json").write_text(json.dumps(settings))
    schema = json.loads((SCHEMAS / "config.schema.json").read_text(encoding="utf-8"))
    for command in ("check config.json", "convert config.json", "convert config.json --out config.toml"):
        found = json.loads(run(f"aten-dump config {command} --format json").stdout)
        jsonschema.validate(found, schema)
        assert (
            found["tool"] == "msprobe"
            and found["config"]["ranks"] == "0"
            and "enable_dataloader" in found["without_meaning"]
        )
    assert DumpConfig.from_file("config.toml").steps == "1"


def test_a_server_says_where_it_is_as_json(here: Path) -> None:
    command = [sys.executable, "-m", "aten_dump", "serve", str(here / "dump"), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = served.stdout.readline()
            assert line, served.stderr and served.stderr.read()
            text += line
        served.send_signal(signal.SIGINT)
        served.communicate()
    found = json.loads(text)
    jsonschema.validate(found, json.loads((SCHEMAS / "serve.schema.json").read_text(encoding="utf-8")))
    assert found["address"].startswith("http://127.0.0.1:")


def test_what_is_not_whole_is_said_beside_the_object(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "dump", tmp_path / "dump")
    index = tmp_path / "dump" / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-300])
    for command in (
        "show DUMP --step 1",
        "report DUMP --output REPORT",
        "export DUMP --to torch --out OUT",
        "recover DUMP",
    ):
        line = command
        for word in ("DUMP", "REPORT", "OUT"):
            line = line.replace(word, shlex.quote(str(tmp_path / word.lower())))
        result = run(f"aten-dump {line} --format json")
        assert json.loads(result.stdout)["schema"] == 1 and result.stderr, command
        assert result.exit_code == (0 if command.startswith("recover") else 2), command


def test_each_schema_is_in_the_table() -> None:
    assert {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()} >= set(
        re.findall(r"\[([a-z-]+)\]\(json/", PAGE)
    )
    for name in re.findall(r"\]\(json/([a-z-]+)\.schema\.json\)", PAGE):
        assert (SCHEMAS / f"{name}.schema.json").is_file()


def test_the_commands_of_the_page_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    blocks = re.findall(r"```\n(aten-dump .*)\n```", PAGE)
    assert len(blocks) == 5
    for command in [*blocks[1:], *re.findall(r"^\| [^|]+ \| `(aten-dump [^`]+)` \| `", PAGE, re.MULTILINE)]:
        result = run(command)
        assert result.exit_code in (0, 1), f"{command}: {result.output}"
    run_options = {option for one in main.get_command(None, "run").params for option in one.opts}  # type: ignore[arg-type, union-attr]
    assert {word for word in shlex.split(blocks[0].partition(" -- ")[0]) if word.startswith("--")} <= run_options
    assert {command.split()[1] for command in blocks} <= set(COMMANDS)


def test_the_commands_lead_to_the_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    found: dict[str, Any] = json.loads(run("aten-dump nonfinite dump --format json").stdout)
    assert line_at(found["first"]["source"]).endswith("# the line") and "logarithm" in found["first"]["why"]
    found = json.loads(run("aten-dump check detached --format json").stdout)
    assert [one["rule"] for one in found["findings"]] == ["no-gradient"]
    assert line_at(found["findings"][0]["where"]).endswith("# the line")
    found = json.loads(run("aten-dump compare target baseline --format summary").stdout)
    assert found["verdict"] == "different" and line_at(found["cause"]["source"]).endswith("# the line")
    found = json.loads(run("aten-dump compare baseline baseline --format summary").stdout)
    assert found["verdict"] == "same" and found["cause"] is None


def test_a_clean_dump_and_one_without_numbers(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    clean = run("aten-dump nonfinite baseline --format json")
    assert clean.exit_code == 0 and json.loads(clean.stdout)["first"] is None
    record(tmp_path / "structure", "", data="structure")
    result = run(f"aten-dump nonfinite {shlex.quote(str(tmp_path / 'structure'))} --format json")
    assert result.exit_code == 2 and 'record again with data="statistic"' in result.output


def test_the_page_is_a_skill_file() -> None:
    _, front, _ = PAGE.split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["name"] == "aten-dump" and "NaN" in found["description"]
