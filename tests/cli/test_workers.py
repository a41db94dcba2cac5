"""Processes that share the cores; one job needs none."""

from __future__ import annotations

import os
import signal
import time

import click
import pytest
from click.testing import CliRunner

from aten_dump.cli.workers import jobs_option, workers


def threads_and_process() -> tuple[int, int]:
    import torch

    return torch.get_num_threads(), os.getpid()


def test_one_job_is_the_process_itself() -> None:
    with workers(1) as executor:
        assert executor is None


def test_workers_are_other_processes_that_share_the_cores() -> None:
    jobs = (os.cpu_count() or 1) + 1
    with workers(jobs) as executor:
        assert executor is not None
        threads, process = executor.submit(threads_and_process).result()
    assert threads == 1 and process != os.getpid()


def interrupted_at_work() -> None:
    with workers(2) as executor:
        assert executor is not None
        assert signal.SIGINT in executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        executor.submit(time.sleep, 3600)
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_answered_by_one_process_and_waits_for_no_worker() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_at_work()


@pytest.mark.parametrize(("text", "code"), [("4", 0), ("1", 0), ("0", 2), ("many", 2)])
def test_so_many_jobs_as_asked_and_at_least_one(text: str, code: int) -> None:
    found: list[int] = []

    @click.command()
    @jobs_option
    def command(jobs: int) -> None:
        found.append(jobs)

    result = CliRunner().invoke(command, ["--jobs", text])
    assert result.exit_code == code and found == ([int(text)] if code == 0 else [])
    CliRunner().invoke(command, [])
    assert found[-1] == 1
