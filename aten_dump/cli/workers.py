"""Processes that work on step-ranks side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def jobs_option(function: Function) -> Function:
    """Add --jobs."""
    text = "Processes; each works on one step-rank at a time."
    return click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help=text)(function)


@contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """Return an executor of so many processes that share the cores; None for one, the process itself."""
    if jobs == 1:
        yield None
        return
    # Spawned, not forked: torch and the progress bar have threads, whose locks a fork would copy.
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker, (threads,)) as executor:
        try:
            yield executor
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()  # nobody waits for what they are at
            raise


def _begin_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes: one of them answers
    import torch

    torch.set_num_threads(threads)
