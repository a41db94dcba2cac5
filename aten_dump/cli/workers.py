"""Processes that work on step-ranks side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def jobs_option(function: Function) -> Function:
    """Add --jobs."""
    text = "Processes; each works on one step-rank at a time."
    return click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help=text)(function)


class _Worker(SpawnProcess):
    """A process that Ctrl-C, which a terminal sends to all at once, leaves to the one that started it."""

    def start(self) -> None:
        """Start; the process has SIGINT blocked from its first instruction on, also while it imports torch."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers(SpawnContext):
    Process = _Worker


@contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """Return an executor of so many processes that share the cores; None for one, the process itself."""
    if jobs == 1:
        yield None
        return
    # Spawned, not forked: torch and the progress bar have threads, whose locks a fork would copy.
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, _Workers(), _use_threads, (threads,)) as executor:
        try:
            yield executor
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()  # nobody waits for what they are at
            raise


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
