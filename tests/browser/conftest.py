"""A real browser over real reports. Without one the tests are skipped, or fail where ATEN_DUMP_BROWSER is "required"."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aten_dump import open_dump
from aten_dump.cli.main import main
from tests.browser import dumps
from tests.browser.opened import CHROMIUM_ARGUMENTS, Opened
from tests.distributed.launching import launch_once

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".page-tools" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def unavailable(what: str) -> None:
    """Skip, or fail where the browser tests are asked for."""
    if os.environ.get("ATEN_DUMP_BROWSER") == "required":
        pytest.fail(f"{what}; `make test-browser` says how to get it", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed")
    executable = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if executable is None:
        unavailable(f"none of {', '.join(CHROMIUMS)} is on the PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core."""
    if not AXE.exists():
        unavailable("axe-core is not installed")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Return the folder for screenshots, to be looked at."""
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def recorded(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record every dump; return their folder."""
    return dumps.record_all(tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="session")
def distributed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two ranks, and one process that does the same."""
    return launch_once("ddp", tmp_path_factory, "tests.browser.two_ranks").folder


@pytest.fixture(scope="session")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what writes a report of dumps, once for each."""
    folder = tmp_path_factory.mktemp("reports")
    written: dict[tuple[Path, ...], Path] = {}

    def write(*paths: Path) -> Path:
        if paths not in written:
            output = folder / f"{len(written)}.html"
            result = CliRunner().invoke(main, ["report", *map(str, paths), "-o", str(output)])
            assert result.exit_code == (0 if all(map(_is_complete, paths)) else 2), result.output
            written[paths] = output
        return written[paths]

    return write


def _is_complete(path: Path) -> bool:
    dump = open_dump(path)
    return all(dump.rank(step, rank).complete for step in dump.steps for rank in dump.step(step).ranks)


@pytest.fixture
def open_report(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Return what opens a report; in the end nothing may have gone wrong in any."""
    opened: list[Opened] = []

    def open_one(path: Path | str, address: str = "", **options: Any) -> Opened:
        url = path if isinstance(path, str) else path.as_uri()
        opened.append(Opened(browser, url, address, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
