"""Calls of the system that fail, chosen for what was lost in silence before; `make torture` has every call of a program."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.sampling import slow_but_for
from tests.torture.failing import NEVER, SHORT_WRITE, Case, fail_one, library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here: neither cc nor gcc is on the path")

ALL = -1


@pytest.mark.parametrize("on_error", ["warn", "raise"])
@pytest.mark.parametrize("first", slow_but_for([6], range(5, 20)))
def test_two_closes_that_fail_are_told(tmp_path: Path, first: int, on_error: str) -> None:
    """A close that fails in what is done after an error has ended the writer's thread without a word."""
    fail_one(tmp_path / "dump", Case("on disk", "close", first, 2, errno.EDQUOT, on_error))


@pytest.mark.parametrize("program", ["short", "on disk"])
@pytest.mark.parametrize("first", [2, 3])
def test_a_first_write_that_fails_leaves_no_index_without_header(tmp_path: Path, program: str, first: int) -> None:
    assert fail_one(tmp_path / "dump", Case(program, "write", first, 1, errno.EIO))


@pytest.mark.parametrize("program", ["on disk", "many shards", "recover"])
def test_a_write_may_be_cut_short_anywhere(tmp_path: Path, program: str) -> None:
    assert not fail_one(tmp_path / "dump", Case(program, "write", 1, ALL, SHORT_WRITE))


@pytest.mark.parametrize("function", ["write", "close", "rename", "open", "ftruncate"])
def test_recovery_that_fails_may_be_run_again(tmp_path: Path, function: str) -> None:
    assert fail_one(tmp_path / "dump", Case("recover", function, 1, ALL, errno.EIO))


def test_the_library_lets_a_program_be_where_nothing_is_to_fail(tmp_path: Path) -> None:
    assert not fail_one(tmp_path / "dump", Case("short", "write", NEVER))
