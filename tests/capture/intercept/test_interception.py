"""All that sees the program is put in place and taken away as one, in whatever order the program's own modes are."""

from __future__ import annotations

import threading

import pytest
import torch

from aten_dump.capture.intercept.interception import Interception
from aten_dump.capture.torch_internals.mode_stack import Modes
from tests.capture.intercept.modes import Asked, Passing


class Installed:
    """Notes what is done to it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def install(self) -> None:
        self.log.append(f"+{self.name}")

    def remove(self) -> None:
        self.log.append(f"-{self.name}")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def interception(log: list[str]) -> Interception:
    parts = ([Installed(name, log)] for name in ("traced", "other", "lasting"))
    return Interception(Modes(Asked(), Passing()), *parts)


def depths() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def test_installing_twice_is_installing_once(interception: Interception, log: list[str]) -> None:
    interception.install()
    interception.install()
    assert log == ["+traced", "+other", "+lasting"] and depths() == (1, 1)
    interception.remove_all()


def test_what_lasts_stays_until_all_goes(interception: Interception, log: list[str]) -> None:
    interception.install()
    log.clear()
    interception.remove()
    assert log == ["-traced", "-other"] and depths() == (0, 0)
    interception.remove()
    assert log == ["-traced", "-other"]
    interception.remove_all()
    assert log == ["-traced", "-other", "-lasting"]


def test_ours_goes_from_below_the_program_s_modes(interception: Interception) -> None:
    interception.install()
    with Asked() as asked, Passing() as passing:
        interception.remove_all()
        assert depths() == (1, 1)
        torch.ones(1)
    assert len(asked.calls) == 1 and passing.ops == ["aten::ones"]


def test_for_a_compiler_the_op_mode_alone_stays_and_all_comes_back_where_it_was(
    interception: Interception, log: list[str]
) -> None:
    interception.install()
    log.clear()
    with Asked() as above:
        back = interception.step_aside()
        assert log == ["-traced"] and depths() == (1, 1)
        back()
        assert log == ["-traced", "+traced"] and depths() == (2, 1)
        assert torch._C._get_function_stack_at(0) is interception.modes.function
        assert torch._C._get_function_stack_at(1) is above
    interception.remove_all()


def test_where_our_function_mode_was_not_on_the_stack_it_does_not_come_back(interception: Interception) -> None:
    back = interception.step_aside()
    back()
    assert depths() == (0, 0)


def test_another_thread_has_the_modes_inside_its_block_and_one_that_has_them_keeps_them(
    interception: Interception,
) -> None:
    found: list[tuple[int, int]] = []

    def other() -> None:
        with interception.on_this_thread():
            found.append(depths())
            with interception.on_this_thread():
                found.append(depths())
            found.append(depths())
        found.append(depths())

    interception.install()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [(1, 1), (1, 1), (1, 1), (0, 0)]
    with interception.on_this_thread():
        pass
    assert depths() == (1, 1)
    interception.remove_all()


def test_the_modes_go_from_another_thread_after_an_error(interception: Interception) -> None:
    def fails() -> None:
        with interception.on_this_thread():
            raise ValueError("the program's")

    with pytest.raises(ValueError, match="the program's"):
        fails()
    assert depths() == (0, 0)
