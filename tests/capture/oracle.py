"""An independent record of the aten ops of a program: names and clones, no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # the first call of any dispatch mode imports it, and importing it runs ops
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.capture.bits import raw, tensors


@dataclass
class Seen:
    """A tensor as it was at one moment."""

    copy: Tensor
    stride: tuple[int, ...]


@dataclass
class Step:
    """One op: its inputs before it ran, its outputs and written arguments after."""

    op: str
    inputs: list[Seen]
    outputs: list[Seen]
    written: dict[str, list[Seen]]


def _see(tree: Any) -> list[Seen]:
    # Also modes further out must not see these clones.
    with torch._C._DisableTorchDispatch():
        return [Seen(t.detach().clone(), t.stride()) for t in tensors(tree)]


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an op so that modes further out see what the program does, no more.

    An older torch copies what a mode detaches by a `detach` more, unless that runs below autograd.
    """
    if func is not torch.ops.aten.detach.default:
        return func(*args, **kwargs)
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return func(*args, **kwargs)


def written_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments that the schema says the op writes to, by name."""
    found = {}
    for position, argument in enumerate(func._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and tensors(given):
            found[argument.name] = given
    return found


class Oracle(TorchDispatchMode):
    """Records every op it sees in `steps`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    @property
    def ops(self) -> list[str]:
        return [step.op for step in self.steps]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _see((args, kwargs))
        out = run(func, args, kwargs)
        written = {name: _see(given) for name, given in written_arguments(func, args, kwargs).items()}
        self.steps.append(Step(func.name(), inputs, _see(out), written))
        return out


class Lifetimes(TorchDispatchMode):
    """Notes at every op which storages made so far are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[StorageWeakRef] = []
        self.alive: list[tuple[str, int]] = []  # op, set of the storages alive before it as a bit mask

    def mask(self) -> int:
        return sum(1 << i for i, ref in enumerate(self.made) if not ref.expired())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.alive.append((func.name(), self.mask()))
        out = func(*args, **(kwargs or {}))
        known = {ref.cdata for ref in self.made if not ref.expired()}
        for tensor in tensors(out):
            ref = StorageWeakRef(tensor.untyped_storage())
            if ref.cdata not in known:
                known.add(ref.cdata)
                self.made.append(ref)
        return out


class Contents(TorchDispatchMode):
    """Measures the bytes of distinct (storage, write version) contents that the ops read and make."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, StorageWeakRef] = {}
        self.versions: dict[int, int] = {}
        self.spans: dict[tuple[int, int], tuple[int, int]] = {}  # (storage, version) -> bytes [start, end) seen
        self.undefined: set[tuple[int, int]] = set()

    @property
    def nbytes(self) -> int:
        return sum(end - start for key, (start, end) in self.spans.items() if key not in self.undefined)

    def _key(self, tensor: Tensor) -> tuple[int, int]:
        # Holding the weak reference keeps the address from being used again.
        ref = StorageWeakRef(tensor.untyped_storage())
        self.refs.setdefault(ref.cdata, ref)
        return ref.cdata, self.versions.get(ref.cdata, 0)

    def _note(self, tensor: Tensor) -> None:
        if tensor.numel() == 0:
            return
        size = tensor.element_size()
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        start, end = tensor.storage_offset() * size, (tensor.storage_offset() + last + 1) * size
        key = self._key(tensor)
        known = self.spans.get(key, (start, end))
        self.spans[key] = min(start, known[0]), max(end, known[1])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors((args, kwargs)):
            self._note(tensor)
        before = [
            (t, raw(t))
            for t in tensors((args, kwargs))
            if "batch_norm" in func.name() and "backward" not in func.name()
        ]
        out = func(*args, **kwargs)
        changed = [t for given in written_arguments(func, args, kwargs).values() for t in tensors(given)]
        changed += [t for t, bits in before if raw(t) != bits]  # batch norm does not declare its running statistics
        for cdata in {self._key(tensor)[0] for tensor in changed}:
            self.versions[cdata] = self.versions.get(cdata, 0) + 1
        for tensor in changed + tensors(out):
            self._note(tensor)
            if "empty" in func.name():
                self.undefined.add(self._key(tensor))
        return out
