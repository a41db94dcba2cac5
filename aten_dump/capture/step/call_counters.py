"""How often each thing was called in a step: the numbers in the names of calls."""

from __future__ import annotations

from ..naming.call_name import CallName


class Counter:
    """Counts the calls of one prefix and api in a step: the n of their names."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def next(self) -> int:
        """Return how many came before, and count one more."""
        n = self.n
        self.n = n + 1
        return n


class CallCounters:
    """The counters of one step."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}

    def of(self, name: CallName) -> Counter:
        """Return what counts the calls of this prefix and api."""
        key = (name.prefix, name.api)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = Counter()
        return counter

    def custom_ops(self) -> list[tuple[str, int]]:
        """Return the ops of other namespaces than torch's own that were called, and how often."""
        return [
            (api, counter.n)
            for (prefix, api), counter in self._counters.items()
            if prefix == "Custom" and not api.startswith("_record_function")
        ]
