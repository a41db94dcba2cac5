from __future__ import annotations

import threading
from itertools import count

from aten_dump.capture.step.thread_local import ThreadLocal


def test_each_thread_gets_a_state_of_its_own_when_it_first_asks() -> None:
    numbers = count()
    here = ThreadLocal(lambda: next(numbers))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend((here.state, here.state)))
    assert here.state == 0
    thread.start()
    thread.join()
    assert found == [1, 1]
    assert (here.state, next(numbers)) == (0, 2)
