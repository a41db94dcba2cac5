"""Processes that work on step-ranks side by side."""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Any, Final, TypeVar

import click

from ..errors import ConfigError
from .worker_processes import Workers

Function = TypeVar("Function", bound=Callable[..., Any])


_SCHEDULER: Final = "aten_dump.scheduler"  # in what the context of a command keeps
_CONNECT_SECONDS: Final = 20
_imported: Final[list[str]] = []  # what the user named, to be imported in workers too


def jobs_option(function: Function) -> Function:
    """Add --jobs and --scheduler."""
    text = "Number of processes; each works on one step and rank at a time."
    jobs = click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help=text)
    text = "Dask scheduler whose workers share the work; they must see the dumps under the same paths."
    scheduler = click.option("--scheduler", metavar="ADDRESS", expose_value=False, callback=_keep_scheduler, help=text)
    return jobs(scheduler(function))


def _keep_scheduler(context: click.Context, parameter: click.Parameter, address: str | None) -> None:
    context.meta[_SCHEDULER] = address


def is_shared_out(jobs: int) -> bool:
    """Return True if the command is to use several processes: its own, or those of a scheduler."""
    return jobs > 1 or _scheduler() is not None


def _scheduler() -> str | None:
    context = click.get_current_context(silent=True)
    found: str | None = None if context is None else context.meta.get(_SCHEDULER)
    return found


@contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """Return an executor of so many processes that share the cores, or of a scheduler's workers where one was named;
    None for one, the process itself.

    Raises:
        ConfigError: the scheduler cannot be reached, or dask is not installed.
    """
    address = _scheduler()
    if address is not None:
        with _cluster(address) as cluster:
            yield cluster
        return
    if jobs == 1:
        yield None
        return
    # Spawned, not forked: torch and the progress bar have threads, whose locks a fork would copy.
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, Workers(), _prepare, (threads, tuple(_imported))) as executor:
        try:
            yield executor
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()  # nobody waits for what they are at
            raise


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """Return an executor of the workers that a scheduler of dask's has now and later."""
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise ConfigError(
            "--scheduler needs dask: pip install 'aten-dump[cluster]', here and for its workers"
        ) from error
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"--scheduler {address}: cannot be reached ({error}); allowed: what `dask scheduler` prints, as "
            "tcp://10.0.0.1:8786"
        ) from error
    with client:
        if _imported:
            client.register_worker_callbacks(functools.partial(import_modules, tuple(_imported)))
        with client.get_executor() as executor:
            yield executor


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
    import torch

    torch.set_num_threads(threads)
    import_modules(modules)
