"""Runs something in a thread of its own, whose errors are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_thread(body: Callable[[], object]) -> None:
    """Run `body` in another thread, and raise what it raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
