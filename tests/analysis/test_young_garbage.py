"""Thresholds of the garbage collector while comparisons run, and after."""

from __future__ import annotations

import gc
import weakref

import pytest

from aten_dump.analysis.young_garbage import young_garbage_only


def test_the_last_block_that_ends_puts_the_thresholds_back() -> None:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    try:
        one, other = young_garbage_only(), young_garbage_only()
        one.__enter__()
        assert gc.get_threshold()[:2] == (701, 11) and gc.get_threshold()[2] > 1 << 20
        other.__enter__()
        one.__exit__(None, None, None)
        assert gc.get_threshold()[2] > 1 << 20
        other.__exit__(None, None, None)
        assert gc.get_threshold() == (701, 11, 12)
        with pytest.raises(KeyError), young_garbage_only():
            raise KeyError
        assert gc.get_threshold() == (701, 11, 12)
    finally:
        gc.set_threshold(*before)


class _Ring:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_a_block_made_and_left_is_gone_at_its_end_and_what_was_frozen_stays(is_frozen: bool) -> None:
    gc.unfreeze()
    if is_frozen:
        gc.freeze()  # the program's own affair
    with young_garbage_only():
        ring = _Ring()
        left = weakref.ref(ring)
        gc.collect(1)  # it is young no longer
        del ring
    assert left() is None
    assert bool(gc.get_freeze_count()) == is_frozen
