"""The mode of each call: that of the last record of its thread, for backward calls that of their forward."""

from __future__ import annotations

import msgpack
import pytest

from aten_dump.dump.index.call_modes import CallModes
from aten_dump.dump.index.call_table import CallTable
from aten_dump.errors import ConfigError
from aten_dump.store import records as r
from aten_dump.store.raw_rows import split_records
from tests.store.recording import call, header


def modes_of(*records: object) -> CallModes:
    rows, _ = split_records(b"".join(map(msgpack.packb, [header(), *records])), "the index")
    return CallModes(rows[r.MODE], CallTable(rows[r.CALL]))


def mode(thread: int, first_call: int, grad: bool = True, training: bool | None = None) -> r.Mode:
    return r.Mode(r.MODE, thread, first_call, grad, training)


def test_a_record_holds_until_the_next_one_of_its_thread() -> None:
    # Calls are written when they end: 2 ended before 1, which it ran in.
    modes = modes_of(
        mode(0, 1, True, True), mode(7, 3, False, None), mode(0, 4, False, False),
        call(2), call(1), call(3, thread=7), call(4), call(5, thread=7), call(6),
    )  # fmt: skip
    assert [modes.grad(at) for at in range(6)] == [True, True, False, False, False, False]
    assert [modes.training(at) for at in range(6)] == [True, True, None, False, None, False]
    assert modes.are("training").tolist() == [True, True, False, False, False, False]
    assert modes.are("no_grad").tolist() == [False, False, True, True, True, True]


def test_what_no_record_tells_is_unknown() -> None:
    modes = modes_of(mode(0, 2), call(1), call(2), call(3, thread=1))
    assert [modes.grad(at) for at in range(3)] == [None, True, None]
    assert not modes.are("evaluation").any(), "unknown is no evaluation"


def test_a_backward_call_is_in_training_if_its_forward_was() -> None:
    modes = modes_of(
        mode(0, 1, True, True), mode(0, 2, True, False), mode(0, 3, False, None),
        call(1), call(2), call(3, forward=2), call(4, forward=1), call(5, forward=4), call(6),
    )  # fmt: skip
    assert [modes.training(at) for at in range(6)] == [True, False, False, True, True, None]
    assert modes.grad(3) is False, "grad mode is its own"


def test_records_that_name_one_call_the_last_counts_and_other_threads_cost_nothing() -> None:
    strange = [mode(thread, 1) for thread in range(100, 5000)]
    modes = modes_of(mode(0, 3, False), mode(0, 3, True), mode(0, 1, False), *strange, call(2), call(3))
    assert [modes.grad(at) for at in range(2)] == [False, True]


def test_a_wrong_mode_is_an_error() -> None:
    with pytest.raises(ConfigError, match="mode is 'eval'; allowed: training, evaluation, grad, no_grad"):
        modes_of(call(1)).are("eval")
