"""Records only some tokens of an inference: calls of the model are counted, each makes one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..errors import ConfigError


class TokenRange:
    """Turns recording on and off by the number of the model's call since `begin`.

    Args:
        model: the model; a hook before and one after each of its calls are put on it.
        first: number of the first call to record, counted from 0.
        last: number of the last one.
        turn_on: is called before the first one; no call of the model is open then.
        turn_off: is called in the first one after the last.
    """

    def __init__(
        self, model: nn.Module, first: int, last: int, turn_on: Callable[[], None], turn_off: Callable[[], None]
    ) -> None:
        self._first, self._last = first, last
        self._turn_on, self._turn_off = turn_on, turn_off
        self._token = 0
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)

    def begin(self) -> None:
        """Count from 0 again."""
        self._token = 0
        if self._first == 0:
            self._turn_on()

    def _before(self, model: nn.Module, args: Any) -> None:
        if self._token == self._last + 1:
            self._turn_off()

    def _after(self, model: nn.Module, args: Any, result: Any) -> None:
        self._token += 1
        if self._token == self._first:  # now, not within the call: the model's own call is recorded whole
            self._turn_on()


def range_of(found: Sequence[int]) -> tuple[int, int]:
    """Return first and last.

    Raises:
        ConfigError: it is no pair of ints that go up from 0.
    """
    numbers = list(found) if isinstance(found, list | tuple) else []
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if len(numbers) != 2 or not whole or not 0 <= numbers[0] <= numbers[1]:
        raise ConfigError(f"token_range is {found!r}; allowed: [first, last], two ints with 0 <= first <= last")
    return numbers[0], numbers[1]
