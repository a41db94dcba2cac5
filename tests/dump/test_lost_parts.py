"""What is missing of a dump is said: a rank's folder, an index, run.json or its truth; and the rest stays readable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.cli.main import main
from aten_dump.store.run_json import RUN_FILE, ranges_of, read_ranges, read_run, write_run
from tests.dump.building import Builder
from tests.forked import run
from tests.torch_features import needs_saved_tensors


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    with DumpMode(DumpConfig(path=tmp_path / "dump", steps="0-1|3")) as mode:
        for step in range(4):
            torch.ones(2).add(step)
            mode.step()
    return tmp_path / "dump"


def outcome(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_run_json_lists_the_steps_and_ranks(dump: Path) -> None:
    run = read_run(dump)
    assert (run["steps"], run["ranks"], run["world_size"]) == ("0-1|3", "0", 1)
    assert open_dump(dump).problems == []


@pytest.mark.parametrize("lost", ["step1/rank0/index.msgpack", "step1/rank0", "step1", "step3"])
def test_a_lost_index_or_folder_is_noticed(dump: Path, lost: str) -> None:
    path = dump / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    (said,) = open_dump(dump).problems
    assert said.startswith(f"step {lost[4]} of rank 0 is not in")
    code, text = outcome("verify", dump)
    assert code == 1 and said in text
    for command in (["ls", dump], ["nonfinite", dump], ["export", dump, "--to", "graph", "--out", dump.parent / "out"]):
        code, text = outcome(*command)
        assert code == 2 and text.splitlines()[0].endswith(said), command


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:100],
    "empty": lambda data: b"",
    "another number": lambda data: data.replace(b'"world_size": 1', b'"world_size": 2'),
    "a list": lambda data: b"[1]",
    "deep": lambda data: b"[" * 100_000,
    "noise": lambda data: bytes(range(256)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_json_costs_only_what_it_held(dump: Path, damage: str) -> None:
    file = dump / RUN_FILE
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    opened = open_dump(dump)
    assert opened.run == {} and len(opened.problems) == 1 and RUN_FILE in opened.problems[0]
    assert opened.rank(3, 0)["Aten.add.0.forward"].op == "aten::add.Tensor"
    assert outcome("verify", dump)[0] == 1
    assert outcome("ls", dump)[0] == 2
    assert outcome("show", dump)[0] == 0, "the step that is shown is whole"


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_run_json_that_is_no_file_is_not_read(dump: Path, kind: str) -> None:
    file = dump / RUN_FILE
    file.unlink()
    {"fifo": os.mkfifo, "link": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](file)
    opened = open_dump(dump)
    assert opened.run == {} and len(opened.problems) == 1


def test_a_killed_run_has_listed_the_step_it_was_in(tmp_path: Path) -> None:
    script = (
        "import json, os, sys, time, torch\n"
        "from aten_dump import DumpConfig, DumpMode\n"
        "with DumpMode(DumpConfig(path=sys.argv[1])) as mode:\n"
        "    torch.ones(2).add(1)\n"
        "    mode.step()\n"
        "    torch.ones(2).add(1)\n"
        "    deadline = time.monotonic() + 60\n"
        "    while json.load(open(sys.argv[1] + '/run.json'))['steps'] != '0-1' and time.monotonic() < deadline:\n"
        "        time.sleep(0.05)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    run(["-c", script, str(tmp_path / "dump")], tmp_path / "said")
    assert read_run(tmp_path / "dump")["steps"] == "0-1"


def test_earlier_files_without_checksum_are_read(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text('{"world_size": 2}\n')
    assert read_run(tmp_path) == {"world_size": 2}


@pytest.mark.parametrize("info", [{}, {"a": 1, "checksums": "x"}, {"path": "\udcff", "n": [1.5, None]}])
def test_what_is_written_is_read(tmp_path: Path, info: dict[str, object]) -> None:
    write_run(tmp_path, info)
    assert read_run(tmp_path) == info
    assert json.loads((tmp_path / RUN_FILE).read_bytes()).keys() == info.keys() | {"checksum"}


def test_ranges() -> None:
    for numbers in ([], [0], [0, 1, 2], [0, 2, 3, 9], [5, 7]):
        text = ranges_of(numbers)
        assert [n for low, high in read_ranges(text) for n in range(low, high + 1)] == numbers
    assert read_ranges(3) == read_ranges("1-") == read_ranges("9" * 30) == []


def test_a_path_that_is_not_utf8_holds_a_dump(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    with DumpMode(DumpConfig(path=path, data="tensor")) as mode:
        torch.ones(2).add(1 << 100_000 > 0)
        mode.step()
    assert open_dump(path).problems == []
    for command in (("ls",), ("verify",), ("show",), ("stats", "--format", "csv"), ("saved",)):
        code, text = outcome(command[0], path, *command[1:])
        assert code == 0, text


def test_an_int_of_any_length_is_an_argument(tmp_path: Path) -> None:
    long = -(7**20_000)
    with DumpMode(DumpConfig(path=tmp_path / "dump")) as mode:
        torch.nn.functional.threshold(torch.ones(2), 0.5, 0.0)
        torch.zeros(3)[slice(0, 10**5000)]
        mode.step()
    calls = open_dump(tmp_path / "dump").rank(0, 0).calls
    assert len(calls) > 1
    from aten_dump.capture.values.argument_encoding import encode

    class NoValues:
        def value_of(self, tensor: torch.Tensor, keep: bool) -> int:
            raise AssertionError

    assert encode(long, NoValues(), False)[1] == hex(long)  # type: ignore[arg-type]
    assert encode(1 << 70, NoValues(), False)[1] == str(1 << 70)  # type: ignore[arg-type]


@needs_saved_tensors
def test_saved_takes_a_dump_whose_calls_were_filtered(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(DumpConfig(path=tmp_path / "dump", ops=("aten::sum",))) as mode:
        x.exp().sum().backward()
        mode.step()
    saved = open_dump(tmp_path / "dump").rank(0, 0).saved_for_backward()
    assert [one.node for one in saved if one.call is None]
    code, text = outcome("saved", tmp_path / "dump")
    assert code == 0 and "(not recorded)" in text


def test_what_many_ranks_lack_is_one_sentence(tmp_path: Path) -> None:
    """A copy of eight ranks of a thousand is looked at more often than all of them."""
    for step in range(3):
        for rank in range(2 if step < 2 else 1):
            builder = Builder(tmp_path / "dump", step, rank)
            builder.finish()
    write_run(tmp_path / "dump", {"steps": "0-2", "ranks": "0-999"})
    said = open_dump(tmp_path / "dump").problems
    assert [one.partition(" not in ")[0] for one in said] == [
        "steps 0-1 of ranks 2-999 are",
        "step 2 of ranks 1-999 are",
    ]


def test_compare_does_not_say_that_what_lacks_a_step_agrees(dump: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(dump, other)
    assert outcome("compare", dump, other)[0] == 0
    shutil.rmtree(other / "step3")
    code, text = outcome("compare", dump, other)
    assert code != 0 and "step 3 of rank 0 is not in" in text
    shutil.rmtree(dump / "step3")
    code, text = outcome("compare", dump, other)
    assert code == 2 and "step 3 of rank 0 is not in" in text
