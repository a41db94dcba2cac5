"""Processes that work on step-ranks side by side."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final, TypeVar

import click

from ..errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


_imported: Final[list[str]] = []  # what the user named, to be imported in workers too


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
    with ProcessPoolExecutor(jobs, _Workers(), _prepare, (threads, tuple(_imported))) as executor:
        try:
            yield executor
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()  # nobody waits for what they are at
            raise


def import_modules(names: Iterable[str]) -> None:
    """Import modules here, and in each worker from now on: they register ops.

    Args:
        names: as of ``python -m``, also of what lies in the working directory; or paths of ``.py`` files.

    Raises:
        ConfigError: one cannot be imported.
    """
    for name in names:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last: what lies there takes the place of no installed package
        try:
            if name.endswith(".py"):
                runpy.run_path(name, run_name=os.path.basename(name).removesuffix(".py"))
            else:
                importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: it would end the command as if all were well
            raise ConfigError(f"--import {name}: {type(error).__name__}: {error}") from error
        _imported.append(name)


def _prepare(threads: int, modules: tuple[str, ...]) -> None:
    _use_threads(threads)
    import_modules(modules)


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
