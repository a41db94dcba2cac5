"""One object for each thread, found without a call of Python's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadLocal(threading.local, Generic[T]):
    """Holds in `state` what was made for the running thread when that first asked.

    A `threading.local` runs its __init__ once more on each thread that reads it, so that reading needs no question.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.state = make()
