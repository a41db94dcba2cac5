"""Changes Python-level torch calls of a forward pass: what a program would do that was written otherwise.

`Rewriting` is entered around each forward pass inside the recorder's block, so that the recorder sees what the changed
program calls. A *slip* changes the n-th call that it applies to; an honest *form* changes all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aten_dump import DumpMode

BEGIN, END = "slip begins", "slip ends"


@dataclass(frozen=True)
class Site:
    """One Python-level call."""

    func: Any
    name: str  # without underscores: "matmul", "rsub"
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def arg(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    def changed(self, place: int, name: str, value: Any) -> Any:
        """Run it with another argument."""
        if place < len(self.args):
            return self.func(*self.args[:place], value, *self.args[place + 1 :], **self.kwargs)
        return self.func(*self.args, **{**self.kwargs, name: value})


Edit = Callable[[Site], Any]


@dataclass(frozen=True)
class Slip:
    """A change of calls of some names; `applies` tells where it can be made."""

    name: str
    functions: frozenset[str]
    applies: Callable[[Site], bool]
    edit: Edit

    def fits(self, site: Site) -> bool:
        return site.name in self.functions and self.applies(site)


class Rewriting(TorchFunctionMode):
    """Makes a change at one call, or at all it applies to; counts those."""

    def __init__(self, slip: Slip, number: int | None, *, marks: bool) -> None:
        super().__init__()
        self.slip, self.number, self.marks = slip, number, marks
        self.seen = 0

    def __enter__(self) -> Rewriting:
        self.seen = 0
        super().__enter__()
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        site = Site(func, getattr(func, "__name__", "").strip("_"), tuple(args), kwargs or {})
        if site.name == "get" or not self.slip.fits(site):
            return site.run()
        self.seen += 1
        if self.number is not None and self.seen - 1 != self.number:
            return site.run()
        self._mark(BEGIN)
        result = self.slip.edit(site)
        self._mark(END)
        return result

    def _mark(self, text: str) -> None:
        dump = DumpMode.current() if self.marks else None
        if dump is not None:
            dump.mark(text)


def is_floating(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dtype.is_floating_point


def same_shape(one: Any, two: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape and one.dtype == two.dtype


def first_size(site: Site) -> torch.Size:
    return site.args[0].shape if site.args and isinstance(site.args[0], Tensor) else torch.Size()
