"""A session: which steps are recorded, who may end them, and what becomes of the program when the recorder fails."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import CaptureError, ConfigError, DumpConfig, StoreError
from aten_dump.capture.intercept.interception import Interception
from aten_dump.capture.recorder import Watch
from aten_dump.capture.session import Session
from aten_dump.capture.step.module_paths import ModulePaths
from aten_dump.capture.torch_internals.mode_stack import Modes
from aten_dump.store import records as r
from aten_dump.store.run_json import read_run
from tests.capture.intercept.modes import Asked, Passing
from tests.store.memory_sink import MemorySink


class FailingSink(MemorySink):
    """Fails in one of its methods, as a disk that is full does."""

    def __init__(self, method: str) -> None:
        super().__init__()

        def fail(*args: Any) -> Any:
            raise StoreError(f"no room in {method}")

        setattr(self, method, fail)


class Entered:
    """A session whose modes see nothing, on a sink in memory or in files."""

    def __init__(self, sink: MemorySink | None = None, path: Any = "unused", **config: Any) -> None:
        self.watch = Watch()
        self.interception = Interception(Modes(Asked(), Passing()), [], [], [])
        self.session = Session(DumpConfig(path=path, **config), ModulePaths(), sink, self.watch, self.interception)
        self.sink = sink

    def steps(self) -> list[int]:
        assert self.sink is not None
        return [header.step for header in self.sink.of(r.HEADER)]

    def call(self) -> None:
        """Record a call by hand, so that the step is not empty."""
        assert self.watch.recorder is not None
        self.watch.recorder.step.emit_call((r.CALL, *range(1, len(r.Call._fields))))


@pytest.fixture
def make() -> Iterator[Callable[..., Entered]]:
    made: list[Entered] = []

    def new(*args: Any, **kwargs: Any) -> Entered:
        made.append(Entered(*args, **kwargs))
        return made[-1]

    yield new
    for one in made:
        with contextlib.suppress(StoreError, CaptureError):
            one.session.close()


def depth() -> int:
    return torch._C._len_torch_dispatch_stack()


# -- steps


def test_selected_steps_are_recorded_and_nothing_is_installed_in_others(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), steps="0|2-3")
    entered.session.enter()
    installed = []
    for _ in range(5):
        installed.append((depth(), entered.watch.recorder is not None))
        entered.session.step()
    entered.session.close()
    assert installed == [(1, True), (0, False), (1, True), (1, True), (0, False)]
    assert entered.steps() == [0, 2, 3] and entered.session.current_step == 5
    assert len(entered.sink.of(r.COMMIT)) == 3 and entered.sink.closed and depth() == 0  # type: ignore[union-attr]


def test_a_step_may_be_given_a_later_number(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), steps="all")
    entered.session.enter()
    entered.session.step(10)
    with pytest.raises(ConfigError, match="a number above 10"):
        entered.session.step(10)
    entered.session.step()
    entered.session.close()
    assert entered.steps() == [0, 10, 11]


def test_modes_stay_in_place_from_one_selected_step_to_the_next(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), steps="0-1")
    entered.session.enter()
    with Passing():  # above ours: to take ours off and put it back would change the order
        entered.session.step()
        assert torch._C._get_dispatch_stack_at(0) is entered.interception.modes.dispatch
    entered.session.close()


def test_pause_and_resume_within_a_step(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink())
    entered.session.enter()
    recorder = entered.watch.recorder
    entered.session.pause()
    entered.session.pause()
    assert (depth(), entered.watch.recorder, entered.watch.in_step) == (0, None, recorder)
    entered.session.resume()
    entered.session.resume()
    assert (depth(), entered.watch.recorder) == (1, recorder)
    entered.session.pause()
    entered.session.step()
    assert entered.watch.recorder is not recorder and entered.watch.recorder is not None
    entered.session.close()
    assert entered.steps() == [0, 1]


def test_memory_is_not_trusted_after_a_pause(make: Callable[..., Entered]) -> None:
    entered, x = make(MemorySink()), torch.ones(2)
    entered.session.enter()
    assert entered.watch.recorder is not None
    values = entered.watch.recorder.values
    before = values.value_of(x, False)
    entered.session.pause()
    entered.session.resume()
    assert values.value_of(x, False) != before
    entered.session.close()


def test_resume_does_nothing_in_a_step_that_is_not_recorded(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), steps="3")
    entered.session.enter()
    entered.session.resume()
    assert entered.watch.recorder is None and depth() == 0
    entered.session.close()


# -- who


def test_one_session_at_a_time_and_each_once(make: Callable[..., Entered]) -> None:
    first, second = make(MemorySink(), path="one"), make(MemorySink(), path="two")
    first.session.enter()
    with pytest.raises(CaptureError, match="already entered"):
        first.session.enter()
    with pytest.raises(CaptureError, match="writes to 'one' is still entered"):
        second.session.enter()
    first.session.close()
    second.session.enter()
    second.session.close()
    second.session.close()


def test_steps_are_ended_by_the_thread_that_entered(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink())
    entered.session.enter()
    errors: list[str] = []

    def other() -> None:
        for name in ("step", "pause", "resume", "close"):
            try:
                getattr(entered.session, name)()
            except CaptureError as error:
                errors.append(str(error).partition("(")[0])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert errors == [f"DumpMode.{name}" for name in ("step", "pause", "resume", "close")]
    entered.session.close()


def test_a_rank_that_is_not_selected_records_nothing(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), ranks="1")
    entered.session.enter()
    assert entered.session.is_entered and not entered.session.is_recording and depth() == 0
    entered.session.step()
    entered.session.close()
    assert entered.sink.records == []  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_records_nothing_and_touches_no_file(make: Callable[..., Entered], tmp_path: Path) -> None:
    entered = make(path=tmp_path / "dump")
    entered.session.enter()
    child = os.fork()
    if child == 0:
        os._exit(10 * entered.session.is_entered + (entered.watch.recorder is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert entered.session.is_recording and entered.watch.recorder is not None
    entered.session.close()


# -- what is told at the end


def test_run_json_counts_the_steps_and_what_was_not_seen(make: Callable[..., Entered], tmp_path: Path) -> None:
    entered = make(path=tmp_path / "dump")
    entered.session.enter()
    for count in (1, 0, 2):
        for _ in range(count):
            entered.call()
            entered.watch.recorder.step.coverage.add("traced")  # type: ignore[union-attr]
        entered.session.step()
    entered.session.close()
    coverage: Any = read_run(tmp_path / "dump")["coverage"]
    assert coverage == {"rank": 0, "steps": 3, "notes": {"traced": 3}}


# -- failures


@pytest.mark.parametrize("method", ["begin_step", "end_step", "close"])
def test_a_failure_is_raised_once_and_leaves_nothing_in_place(make: Callable[..., Entered], method: str) -> None:
    entered = make(FailingSink(method))

    def program() -> None:
        entered.session.enter()
        entered.session.step()
        entered.session.close()

    with pytest.raises(StoreError, match=f"no room in {method}"):
        program()
    if entered.session.is_entered:
        entered.session.close()
    assert depth() == 0 and not entered.session.is_recording
    other = make(MemorySink())
    other.session.enter()
    other.session.close()


@pytest.mark.parametrize("method", ["begin_step", "end_step", "close"])
def test_with_warn_the_program_goes_on_and_is_told_once(make: Callable[..., Entered], method: str) -> None:
    entered = make(FailingSink(method), on_error="warn")

    def program() -> None:
        entered.session.enter()
        for _ in range(3):
            entered.session.step()
        entered.session.close()

    with pytest.warns(UserWarning, match=f"records no more, the program goes on: no room in {method}") as told:
        program()
    assert len(told) == 1 and depth() == 0


def test_an_error_that_is_no_error_of_ours_says_that_the_program_is_not_at_fault(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink())
    entered.session.enter()
    entered.session.step(7)
    assert entered.session._run is not None
    entered.session._run.rank = 5
    with pytest.raises(CaptureError, match=r"failed at step 7, rank 5: KeyError: 'x'; please report") as raised:
        entered.session.failed(KeyError("x"))
    assert isinstance(raised.value.__cause__, KeyError)
    assert entered.watch.recorder is None and not entered.session.is_recording
    entered.session.close()


def test_a_failure_that_the_program_takes_for_its_own_is_in_the_dump_and_told_as_the_step_ends(
    make: Callable[..., Entered],
) -> None:
    entered = make(MemorySink())
    entered.session.enter()

    def program() -> None:
        for _ in range(3):
            with contextlib.suppress(RuntimeError):  # "skip this batch"
                if entered.session.is_recording:
                    entered.session.failed(KeyError("x"))
            entered.session.step()
        entered.session.close()

    with pytest.warns(UserWarning, match="records no more, .*: the recorder failed at step 0") as told:
        program()
    assert len(told) == 1
    (note,) = entered.sink.of(r.NOTE)  # type: ignore[union-attr]
    assert note.code == "failed" and "KeyError: 'x'" in note.message
    assert entered.steps() == [0]


def test_a_failure_that_ends_the_program_is_not_told_again(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink())

    def program() -> None:
        entered.session.enter()
        try:
            entered.session.failed(KeyError("x"))
        finally:
            entered.session.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CaptureError, match="KeyError"):
            program()
    assert not entered.session.is_entered


@pytest.mark.filterwarnings("ignore:aten_dump")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("own", [StoreError(28, "no room"), KeyError("x")])
def test_a_failure_keeps_nothing_of_the_program_alive(
    make: Callable[..., Entered], own: Exception, on_error: str
) -> None:
    entered = make(MemorySink(), on_error=on_error)
    entered.session.enter()

    def batch() -> weakref.ref[torch.Tensor]:
        tensor = torch.ones(2)
        try:
            raise type(own)(*own.args)
        except (StoreError, KeyError) as error:
            with contextlib.suppress(StoreError, CaptureError):
                entered.session.failed(error)
        return weakref.ref(tensor)

    tensor = batch()
    gc.collect()
    assert tensor() is None
    if on_error == "raise":
        for _ in range(2):
            with pytest.raises((StoreError, CaptureError), match=r"no room|KeyError: 'x'") as raised:
                entered.session.flush()
            assert isinstance(raised.value, StoreError) == isinstance(own, StoreError)
            assert len(raised.traceback) == 2, "it is raised anew each time"
    entered.session.step()
    entered.session.close()


def test_beside_an_error_of_the_program_a_failure_is_a_warning(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink())
    entered.session.enter()
    with pytest.warns(UserWarning, match="records no more"):
        entered.session.failed_quietly(StoreError("full"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entered.session.failed_quietly(StoreError("still full"))
    assert [note.code for note in entered.sink.of(r.NOTE)] == ["failed"]  # type: ignore[union-attr]
    entered.session.close()


def test_a_failure_ends_the_watch_but_what_is_installed_stays_until_the_step_ends(make: Callable[..., Entered]) -> None:
    """It may come in the midst of a call that our mode handles."""
    entered = make(MemorySink(), on_error="warn")
    entered.session.enter()
    with pytest.warns(UserWarning, match="full"):
        entered.session.failed(StoreError("full"))
    assert depth() == 1 and entered.watch.recorder is None
    entered.session.resume()
    assert entered.watch.recorder is None
    entered.session.step()
    assert depth() == 0
    entered.session.close()


def test_a_note_is_written_into_the_step_in_progress_only(make: Callable[..., Entered]) -> None:
    entered = make(MemorySink(), steps="0")
    entered.session.enter()
    entered.session.note("exception", "one")
    entered.session.step()
    entered.session.note("exception", "two")
    entered.session.close()
    assert [note.message for note in entered.sink.of(r.NOTE)] == ["one"]  # type: ignore[union-attr]
