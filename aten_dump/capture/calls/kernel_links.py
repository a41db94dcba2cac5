"""Which kernel of a compiled forward a kernel of its backward belongs to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class KernelLinks:
    """The kernels of compiled forwards in one step.

    Each node of a compiled graph says of which autograd node it is, as that was numbered when the graph was traced: a
    kernel of the backward belongs to the forward kernel that has computed for the same autograd node, in the call of
    compiled code that the backward is of.
    """

    def __init__(self) -> None:
        self._regions: list[int] = []  # ids of calls of compiled code, ascending
        self._kernels: dict[tuple[int, str, int], int] = {}  # by region, graph and number of the node

    def add(self, region: int, graph: str, numbers: Iterable[int], call: int) -> None:
        """Note a kernel of a forward.

        Args:
            region: id of the call of compiled code that it is in.
            graph: what the names of the forward's and the backward's graph have in common.
            numbers: of the autograd nodes that it computes for.
            call: its id.
        """
        if not self._regions or self._regions[-1] < region:
            self._regions.append(region)
        for number in numbers:
            self._kernels.setdefault((region, graph, number), call)

    def forward_of(self, first: int, graph: str, numbers: Iterable[int]) -> int:
        """Return the id of the forward kernel that a kernel of a backward belongs to.

        Args:
            first: id of the first op in the call of compiled code that the backward is of, and what is returned where
                no kernel is known.
            graph: as `add` takes it.
            numbers: of the autograd nodes that it computes for, the most telling first.
        """
        place = bisect_right(self._regions, first) - 1
        region = self._regions[place] if place >= 0 else 0
        found = (self._kernels.get((region, graph, number)) for number in numbers)
        return next((call for call in found if call is not None), first)
