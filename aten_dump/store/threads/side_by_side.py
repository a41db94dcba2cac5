"""Several functions at once, where threads are to be had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Work = Callable[[], None]


def side_by_side(works: Sequence[Work]) -> None:
    """Call each, all but the first on a thread of its own; return when all have ended.

    Raises:
        BaseException: what the first of those that failed has raised.
    """
    errors: dict[int, BaseException] = {}

    def call(number: int) -> None:
        try:
            works[number]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors[number] = error

    threads = []
    own = list(range(len(works)))[:1]
    for number in range(1, len(works)):
        thread = threading.Thread(target=call, args=(number,), daemon=True)  # who hangs keeps no program from its end
        try:
            thread.start()
        except RuntimeError:  # none is left, or Python is about to end
            own.append(number)
        else:
            threads.append(thread)
    for number in own:
        call(number)
    for thread in threads:
        thread.join()
    for _, error in sorted(errors.items()):
        raise error
