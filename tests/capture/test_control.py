"""Ranks that read requests between their steps: all change at one step that lies ahead of each."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture import control
from aten_dump.capture.control import Control
from aten_dump.store.control.control_files import Answer, ControlFiles, Decision, Request


class Ranks:
    """Ranks of one run, each at a step of its own."""

    def __init__(self, root: Path, count: int, **config: object) -> None:
        self.files = ControlFiles(root)
        self.config = [DumpConfig(root, **config)] * count  # type: ignore[arg-type]
        self.step = [0] * count
        self.controls = [Control(root, rank, range(count)) for rank in range(count)]

    def go(self, rank: int, steps: int = 1) -> DumpConfig:
        for _ in range(steps):
            self.step[rank] += 1
            self.config[rank] = self.controls[rank].before_step(self.step[rank], self.config[rank])
        return self.config[rank]

    def ask(self, number: int = 1, **wanted: str) -> None:
        self.files.write(Request(number, time.time_ns(), **wanted))

    def step_of_change(self, rank: int, field: str, value: str) -> int:
        while getattr(self.config[rank], field) != value:
            self.go(rank)
            assert self.step[rank] < 100_000
        return self.step[rank]


def test_ranks_that_are_apart_change_at_one_step_ahead_of_both(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.go(0, 3)
    ranks.go(1, 40)
    ranks.ask(steps="none")
    ranks.go(0, 5)
    assert ranks.files.decision() is None  # the other has not answered
    ranks.go(1)
    assert ranks.files.answer(1) == Answer(1, 1, 41, "all", "mix")
    first = ranks.step_of_change(0, "steps", "none")
    assert ranks.step_of_change(1, "steps", "none") == first > 41 + control._STEPS_AHEAD
    decision = ranks.files.decision()
    assert decision is not None and (decision.from_step, decision.silent) == (first, ())
    assert [ranks.files.answer(rank) for rank in (0, 1)] == [
        Answer(rank, 1, first, "none", "mix", done=True) for rank in (0, 1)
    ]
    assert ranks.go(1, 10).steps == "none"


def test_the_step_lies_a_second_ahead_at_the_pace_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ranks = Ranks(tmp_path, 2)
    ranks.ask(level="api")
    for _ in range(2):
        now[0] += 0.1
        ranks.go(1)
        ranks.go(0)
    decision = ranks.files.decision()
    assert decision is not None and decision.from_step == 1 + control._STEPS_AHEAD + 10


def test_one_rank_changes_at_once(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 1)
    ranks.ask(steps="5-7", level="module")
    assert ranks.go(0).steps == "5-7"
    assert ranks.config[0].level == "module"
    assert 6 in ranks.config[0].step_selection and 1 not in ranks.config[0].step_selection


def test_a_question_is_answered_and_changes_nothing(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, steps=(1, 3), level="api")
    ranks.ask()
    ranks.go(0)
    ranks.go(1, 2)
    assert [ranks.files.answer(rank) for rank in (0, 1)] == [Answer(r, 1, 1, "(1, 3)", "api") for r in (0, 1)]
    assert ranks.files.decision() is None


def test_the_last_request_counts(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.ask(1, steps="none")
    ranks.go(0)
    ranks.ask(2, level="api")
    ranks.go(1)
    found = ranks.step_of_change(0, "level", "api"), ranks.step_of_change(1, "level", "api")
    assert found[0] == found[1]
    assert ranks.config[0].steps == ranks.config[1].steps == "all"


def test_a_rank_that_never_answers_holds_nobody_up_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PATIENCE_S", 1000.0)
    ranks = Ranks(tmp_path, 3)
    ranks.ask(steps="none")
    ranks.go(0)
    ranks.go(1)
    assert ranks.files.decision() is None
    monkeypatch.setattr(control, "_PATIENCE_S", 0.0)
    assert ranks.step_of_change(0, "steps", "none") == ranks.step_of_change(1, "steps", "none")
    decision = ranks.files.decision()
    assert decision is not None and decision.silent == (2,)


def test_requests_of_an_earlier_run_are_not_read(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 1)
    ranks.files.write(Request(9, control._BEGAN_UNIX_NS - 1, steps="none"))
    assert ranks.go(0, 3).steps == "all"
    assert ranks.files.answer(0) is None


def test_what_cannot_be_is_answered_with_the_reason(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 1, trigger="loss_spike")
    ranks.ask(level="aten")
    assert ranks.go(0, 2).level == "mix"
    answer = ranks.files.answer(0)
    assert answer is not None and "level is 'aten'" in answer.error
    assert ranks.files.decision() is None


def test_a_mode_that_runs_is_switched_on_and_off(tmp_path: Path) -> None:
    files = ControlFiles(tmp_path / "dump")
    with DumpMode(DumpConfig(tmp_path / "dump", steps="none")) as dump:
        for step in range(9):
            asked = {2: {"steps": "all"}, 3: {"level": "aten"}, 5: {"steps": "none"}, 6: {"steps": "8"}}.get(step)
            if asked:
                files.write(Request(step, time.time_ns(), **asked))
            torch.ones(2).exp()
            dump.step()
        assert torch._C._len_torch_dispatch_stack() == 0
    found = open_dump(tmp_path / "dump")
    assert found.steps == [3, 4, 5, 8]
    assert [found.step(step).rank(0).config["level"] for step in (3, 4)] == ["mix", "aten"]
    assert found.problems == []


def test_without_requests_a_boundary_costs_one_look_at_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, 1)
    looks: list[str] = []
    monkeypatch.setattr(control, "os", SimpleNamespace(stat=lambda path: looks.append(path) or os.stat(path)))
    ranks.go(0, 3)
    assert looks == [ranks.files.request_path] * 3
    assert not (tmp_path / "control").exists()


def test_a_restart_goes_on_with_what_was_decided_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, 1, steps="none")
    ranks.ask(1, steps="all")
    ranks.go(0)
    ranks.ask(2, level="api")
    ranks.go(0)
    config = DumpConfig(tmp_path, steps="none")
    assert Control(tmp_path / "restart1", 0, [0]).at_start(config) == config, "no attempts are named"
    for attempts in ([tmp_path], [tmp_path / "restart1", tmp_path]):
        found = Control(tmp_path / "restart2", 0, [0], attempts).at_start(config)
        assert (found.steps, found.level) == ("all", "api")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with DumpMode(config) as dump:
        torch.ones(2).add(1)
        dump.step()
    attempt = open_dump(tmp_path / "restart1")
    assert attempt.step(0).rank(0).config["level"] == "api" and len(attempt.step(0).rank(0).calls) > 0
    ControlFiles(tmp_path / "restart1").write(Decision(3, 0, steps="7"))
    found = Control(tmp_path / "restart2", 0, [0], [tmp_path / "restart1", tmp_path]).at_start(config)
    assert (found.steps, found.level) == ("7", "mix"), "the last attempt in which anything was decided"
