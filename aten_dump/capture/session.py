"""A session of recording: begins and ends steps, has the program seen meanwhile, and answers for failures."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Final

from ..config import DumpConfig
from ..errors import AtenDumpError, CaptureError, ConfigError
from ..store.control.control_files import NOT_SELECTED
from ..store.records import FAILED, FORMAT_VERSION, HEADER, NOTE, Header, Note
from ..store.sink import Sink
from .intercept.interception import Interception
from .launcher_rank import folder_of_attempt, rank_and_world_size
from .pulse import Doing
from .recorder import StepRecorder, Surroundings, Watch
from .run_file import Run
from .step.collectives import Flight
from .step.live_optimizers import LiveOptimizers
from .step.module_paths import ModulePaths
from .step.step import text_of
from .torch_threads import TEAM_END
from .trigger.against import Difference
from .trigger.ring_sink import RingSink

_live: Final[weakref.WeakSet[Session]] = weakref.WeakSet()


class Session:
    """Records the steps of a run; what `DumpMode` does, it does.

    It has more than fifteen attributes, as what it knows of the run outlives the recorder of a step.
    """

    def __init__(
        self, config: DumpConfig, paths: ModulePaths, sink: Sink | None, watch: Watch, interception: Interception
    ) -> None:
        self.config = config
        self._described = config, config.as_dict()  # as a step's header has it
        self.current_step = 0
        self._watch = watch
        self._interception = interception
        self._sink = sink
        self._ring: RingSink | None = None
        self._writes_files = sink is None
        self._around = Surroundings(paths, LiveOptimizers(), interception.modes, self)
        self._run: Run | None = None  # None as long as it was not entered, and on a rank that is not selected
        self.unseen: dict[str, int] = {}  # the notes of the steps that have ended: how often, by code
        self.is_entered = False  # entered and not closed since, in this process
        self._in_flight: list[Flight] = []  # collectives that the step before has left under way
        self._recorder: StepRecorder | None = None  # of the step in progress, also while paused or after a failure
        self._failed: AtenDumpError | None = None  # what failed first, as said to the program, without its traceback
        self._unreported: str | None = None  # of a failure that was raised, or came where nothing can be said
        self._thread = 0  # ident of the thread that entered

    # -- the block

    @property
    def is_recording(self) -> bool:
        """True if it was entered on a rank that is selected, and neither closed nor failed."""
        return self.is_entered and self._run is not None and self._failed is None

    @property
    def first_difference(self) -> Difference | None:
        """The first call that is not as the golden has it."""
        return None if self._ring is None or self._ring.against is None else self._ring.against.difference

    def enter(self) -> None:
        """Begin to record.

        Raises:
            CaptureError: a session is entered already.
            StoreError: the dump cannot be written.
        """
        if self.is_entered:
            raise CaptureError("this DumpMode is already entered; make a new DumpMode for another block")
        for other in _live:
            raise CaptureError(
                f"a DumpMode that writes to {other.config.path!r} is still entered in this process; leave its block or "
                "call its close() first: only one can record at a time (dump.thread() records further threads)"
            )
        root, restarts = folder_of_attempt(self.config.path)
        run = Run(self.config, root, *rank_and_world_size(), restarts)
        run.say_if_no_rank()
        self.is_entered = True
        self._thread = threading.get_ident()
        if run.rank not in self.config.rank_selection:
            return
        self._run = run
        self.unseen = run.unseen
        _live.add(self)
        try:
            self._open_sink(run)
            self._begin_step()
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            try:
                self._give_up(error)
            except AtenDumpError:
                with contextlib.suppress(AtenDumpError):  # the same error, as a rule
                    self.close()
                raise
        except BaseException:
            self.close()
            raise

    def _open_sink(self, run: Run) -> None:
        if self._sink is None:
            self._sink = run.open_writer()
            if run.control is not None:
                self.config = run.control.at_start(self.config)
            if run.pulse is not None:
                run.pulse.begin(self._seen)
        if self.config.holds_back:
            shared = run.root if self._writes_files and run.world_size > 1 else None
            ring = self._sink = self._ring = RingSink(self._sink, self.config, shared, run.rank)
            self._around = self._around._replace(observe=ring.observe)

    def step(self, number: int | None = None, *, paused: bool = False) -> None:
        """End the step in progress and begin the next one, or that of a number above it; `paused`: with `resume`."""
        _check_thread(self, "step")
        following = self.current_step + 1
        if number is not None:
            in_order = f"step {self.current_step} is in progress, and steps are written in order; "
            following = step_number("step", number, following, in_order)
        if self.is_recording:
            self._guarded(lambda: self._heed_requests(following))
        stays = self._watch.recorder is not None and following in self.config.step_selection and not paused
        try:
            self._end_step(stays)
            self.current_step = following
            if self.is_recording and not paused:
                self._guarded(self._begin_step)
        finally:
            if stays and self._watch.recorder is None:  # the next step did not begin
                self._interception.remove_all()

    def _heed_requests(self, step: int) -> None:
        """Record the coming step, and those after it, as was asked for from outside."""
        if self._run is not None and self._run.control is not None:
            self.config = self._run.control.before_step(step, self.config)

    def pause(self, *, keep_backward: bool = False) -> None:
        """Stop recording until `resume`; the step goes on. With `keep_backward` that of what was recorded does too."""
        _check_thread(self, "pause")
        recorder = self._watch.recorder
        if recorder is not None and keep_backward:
            recorder.step.selection.only_backward_of(recorder.step.next_id())
        elif recorder is not None:
            self._watch.turn_off()
            self._interception.remove()
            recorder.go_unobserved()

    def resume(self) -> None:
        """Record again after `pause`, within the same step; begin one that was to wait for this."""
        _check_thread(self, "resume")
        if self._recorder is None and self.is_recording:
            self._guarded(self._begin_step)
            return
        if self._recorder is not None:
            self._recorder.step.selection.only_backward_of(None)
        if self._watch.recorder is None and self._recorder is not None and self._failed is None:
            self._recorder.trust_no_memory()
            self._interception.install()
            self._watch.turn_on(self._recorder)

    def flush(self) -> None:
        """Wait until all that was recorded is on file; raise or warn where something has failed, now or before."""
        _check_thread(self, "flush")
        sink, recorder = self._sink, self._recorder
        if sink is None:
            return
        if self._failed is not None:
            if self.config.on_error == "raise":
                raise copy.copy(self._failed)
            warnings.warn(f"aten_dump: not all is on file: {self._failed}", stacklevel=3)
            return
        if recorder is not None:
            self._guarded(recorder.flush)
        self._guarded(sink.flush)

    def settle(self) -> None:
        """Wait until nothing that was recorded waits for a device."""
        for waits in (self._recorder, self._sink):
            if waits is not None and self._failed is None:
                self._guarded(waits.flush)

    def close(self) -> None:
        """Commit the step in progress and wait until all of it is on file. Idempotent."""
        if not self.is_entered:
            return
        _check_thread(self, "close")
        first: BaseException | None = None  # whatever fails, the rest is done; what failed first is raised
        for action in (functools.partial(self._end_step, is_last=True), self._close_files):
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - raised below
                if first is not None:
                    error.__context__ = None
                    warnings.warn(f"aten_dump: then {type(error).__name__}: {error}", stacklevel=2)
                first = first or error
        if first is not None:
            raise first
        if self._run is not None and self._failed is None:
            self._run.say_if_empty(self.config, self.current_step)

    def _close_files(self) -> None:
        self.is_entered = False
        _live.discard(self)
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                self._guarded(sink.close)
            finally:
                TEAM_END.end()
                if self._run is not None and self._run.pulse is not None:
                    self._run.pulse.end()
        run = self._run
        if run is not None and self._writes_files:
            if self._failed is None:
                self._guarded(run.finish)
            self._guarded(functools.partial(run.end, is_whole=self._failed is None))

    # -- steps

    def _begin_step(self) -> None:
        in_flight, self._in_flight = self._in_flight, []
        run, sink = self._run, self._sink
        if self.current_step not in self.config.step_selection or sink is None or run is None:
            return
        if self._described[0] is not self.config:
            self._described = self.config, self.config.as_dict()
        config = self._described[1]
        now, process = time.time_ns(), os.getpid()
        header = Header(HEADER, FORMAT_VERSION, self.current_step, run.rank, run.world_size, now, process, config)
        sink.begin_step(header)
        recorder = self._recorder = StepRecorder(self.config, sink, self._around)
        recorder.begin_with(in_flight)
        self._around.paths.refresh()
        self._interception.install()
        self._watch.turn_on(recorder)

    def _end_step(self, stays: bool = False, is_last: bool = False) -> None:
        """End the step in progress.

        Args:
            stays: all that watches the program is left in place for the next step.
            is_last: the program did not end it: it leaves no files if nothing was recorded.
        """
        if (
            self._unreported is not None
        ):  # one that was raised may have been taken for the program's ("skip this batch")
            ends_program = isinstance(sys.exc_info()[1], AtenDumpError)  # which then says so
            _report_failure(self, self._unreported, warns=not ends_program)
        recorder = self._recorder
        if recorder is None:
            return
        self._watch.turn_off()
        if not stays:
            self._interception.remove_all()
        self._recorder = self._watch.in_step = None
        self._guarded(lambda: self._finish_step(recorder, is_last))

    def _finish_step(self, recorder: StepRecorder, is_last: bool) -> None:
        recorder.close()
        self._in_flight = recorder.flights.left
        step, sink = recorder.step, self._sink
        notes = list(step.coverage.notes())
        if is_last and sink is not None and not (step.calls or recorder.values.count or notes):
            sink.drop_step()
            return
        if self._run is not None:
            self._run.count_step(step.calls, notes)
        if sink is not None:
            sink.end_step(step.calls, recorder.values.count, recorder.seconds)
            if self.config.durability != "async":
                sink.flush()

    # -- failures

    def failed(self, error: Exception) -> None:
        """The recorder failed: raise the error, or warn once and record no more."""
        self._watch.turn_off()  # what is installed stays until the step ends, and passes everything through
        self._give_up(error)

    def failed_quietly(self, error: Exception) -> None:
        """The recorder failed while an error of the program is on its way: stop recording and warn, never raise."""
        self._watch.turn_off()
        self._give_up(error, may_raise=False)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self._give_up(error)

    def _give_up(self, error: Exception, may_raise: bool = True) -> None:
        first = self._failed is None
        self._watch.in_step = None
        # Or in the words alone, as ctypes gives them; reported later. One that began in our code is ours.
        if RecursionError.__name__ in text_of(error) and not _began_in_recorder(error):
            if first:
                self._unreported = (
                    f"the program ran into Python's recursion limit, where nothing can be recorded: {error}"
                )
                self._failed = CaptureError(self._unreported)
            return
        if not isinstance(error, AtenDumpError):
            where = f"step {self.current_step}, rank {0 if self._run is None else self._run.rank}"
            wrapped = CaptureError(
                f"the recorder failed at {where}: {text_of(error)}; please report this, the program is not at fault"
            )
            wrapped.__cause__ = error
            error = wrapped
        if first:
            self._failed = copy.copy(error)  # the frames of its traceback hold tensors of the program's
            self._unreported = str(error)
        if self.config.on_error == "raise" and may_raise:
            raise error
        if first:
            _report_failure(self, str(error))

    def note(self, code: str, message: str) -> None:
        """Write a note into the step in progress, if there is one."""
        if self._sink is not None and self._recorder is not None:
            with contextlib.suppress(AtenDumpError):  # it may be the sink that failed; the warning says so
                self._sink.emit(Note(NOTE, code, message, 1))

    def ended_by(self, error: BaseException) -> None:
        """Keep that an error of the program ends the recording."""
        self.note("exception", f"{text_of(error)} ended the block")
        if self._run is not None and self._run.pulse is not None:
            self._run.pulse.ended_by(error)

    def _seen(self) -> Doing:
        """Return what the program is at, as any thread may ask."""
        recorder = self._watch.in_step
        if recorder is None:
            return Doing(state_of(self), -1, ())
        waits = tuple(flight.op.id for flight in recorder.flights.under_way if flight.waiting and flight.op is not None)
        return Doing(state_of(self), recorder.step.calls, waits)

    def forget(self) -> None:
        """Record nothing any more, and touch no file: this is another process."""
        self._watch.turn_off()
        self._recorder = self._watch.in_step = None
        self._sink = None
        self.is_entered = False


def _report_failure(session: Session, why: str, warns: bool = True) -> None:
    session._unreported = None
    session.note(FAILED, why)
    if warns:
        warnings.warn(f"aten_dump records no more, the program goes on: {why}", stacklevel=4)


def step_number(method: str, number: object, least: int = 0, why: str = "") -> int:
    """Return the number of a step that a method of DumpMode was given.

    Args:
        method: its name.
        number: what it was given; a number of numpy's or a tensor will do.
        least: allowed.
        why: no less.

    Raises:
        ConfigError: it is no such number; an index holds none of more than 64 bits.
    """
    try:
        found = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        found = -1
    if not least <= found < 10**18:
        above = f"a number above {least - 1}" if least else "an int of 0 or more"
        raise ConfigError(f"DumpMode.{method}({number!r:.100}): {why}allowed: {above}, of 18 digits at most")
    return found


def state_of(session: Session) -> str:
    """Return what a session does, in words."""
    if not session.is_entered:
        return "not entered" if session._run is None else f"closed after step {session.current_step}"
    if session._failed is not None:
        return f"failed in step {session.current_step}"
    if session._run is None:
        return "records nothing on this rank"
    if session.current_step not in session.config.step_selection:
        return f"step {session.current_step}, {NOT_SELECTED}"
    if session._recorder is None:
        return f"step {session.current_step}, which begins with resume()"
    return f"{'paused in' if session._watch.recorder is None else 'records'} step {session.current_step}"


def _began_in_recorder(error: BaseException) -> bool:
    """Return True if most of the frames that Python has room for were entered below the recorder's own."""
    frames, link = 0, error.__traceback__
    while link is not None:  # no function that needs frames of its own: there may be none left
        frames, link = frames + 1, link.tb_next
    return frames > sys.getrecursionlimit() // 2


def _check_thread(session: Session, what: str) -> None:
    """Raise where a session is asked to do something in another thread than the one that entered it."""
    if session.is_entered and threading.get_ident() != session._thread:
        raise CaptureError(
            f"DumpMode.{what}() was called in thread {threading.current_thread().name!r}; "
            "call it in the thread that entered the mode: torch keeps its modes per thread"
        )


def _forget_in_child() -> None:
    """A forked child (a DataLoader's worker) inherits the modes but not the writer's thread: it records nothing."""
    for session in list(_live):
        session.forget()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
