"""Tensors become values: one id per (storage, write version, geometry), and their data are kept once.

Theory of operation
    `ValueTable.value_of(tensor, keep)` is asked for the tensors of every call: of ops that write, for the inputs before
    they run, else for all when they have run. A geometry seen before at this version costs a dictionary look-up, or
    where it is compiled one question (`known_values`). A new one emits a Value record. With `keep`, the `Keeper` keeps
    the data that the configuration asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from ...store.records import NOTE, OPAQUE, TREE_VALUE, UNDEFINED, Note, Tree
from ...store.sink import Emit
from ..data.keeper import KEPT, Keeper
from ..memory.dtypes import ITEM_BYTES
from ..memory.geometry import Geometry, Row, is_a_row
from ..memory.sparse_parts import sparse_parts
from ..memory.storage_table import StorageTable
from ..naming.interned_tables import Interner
from ..torch_internals.engine import DISABLED_DISPATCH, has_storage, is_functional_tensor
from ..unseen import Coverage
from .known_values import FINDS, look
from .tensor_subclasses import describe_subclass
from .unseen_writes import UnseenWrites
from .value_ids import ValueIds
from .value_records import ValueRecords

ValueOf = Callable[[torch.Tensor, bool], int]

_TENSOR: Final = torch.Tensor
_MOST_GEOMETRIES: Final = 4096
_NOT_TO_KEEP: Final = KEPT | UNDEFINED | OPAQUE  # of a value whose data are kept, or cannot be
_DESCRIBED: Final = 7  # what is known of a tensor that is new; trees have two
_CPU: Final = torch.device("cpu")
_COMPLEX: Final = frozenset((torch.complex32, torch.complex64, torch.complex128))


class ValueTable(ValueIds):
    """The values of one step."""

    def __init__(
        self,
        emit: Emit,
        keeper: Keeper,
        interner: Interner,
        coverage: Coverage,
        unseen_writes: UnseenWrites | None = None,
    ) -> None:
        """Begin a step.

        Args:
            emit: takes Storage and Value records.
            keeper: keeps the data of the values; closed with this table.
            interner: of the step.
            coverage: takes tensors whose memory cannot be seen.
            unseen_writes: looks for writes that dispatch does not see; None: those of dispatch are believed.
        """
        self._emit = emit
        self._keeper = keeper
        self._keeps_data = not keeper.keeps_nothing
        self._marks = keeper.marks
        self._records = ValueRecords(emit, interner, keeper.marks, keeper.keeps_memory)
        self.storages = StorageTable(self._records.storage, self._records.shared)
        self._states = self.storages.states
        self._unseen_writes = unseen_writes
        self.finds_unseen_writes = unseen_writes is not None  # looks at contents for writes that dispatch does not see
        self._plain: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
        self._without_memory = TensorsWithoutMemory(self._records, coverage)
        # One of each for all values that lie so; with it the row, if they lie in one.
        self._geometries: dict[Geometry, tuple[Geometry, Row | None]] = {}

    @property
    def count(self) -> int:
        """How many values there are so far."""
        return self._records.count

    def keep_data(self, wanted: bool) -> None:
        """Keep the data of values from now on, as the configuration asks for; or their structure alone."""
        self._keeps_data = wanted and not self._keeper.keeps_nothing
        if self._unseen_writes is not None:
            self._unseen_writes.rests = not wanted

    def value_of(self, tensor: torch.Tensor, keep: bool) -> int:
        number: int = self.tree_of(tensor, keep)[1]
        return number

    def tree_of(self, tensor: torch.Tensor, keep: bool) -> Tree:
        kind = type(tensor)
        if kind is not _TENSOR and not self._plain.get(kind, False) and not self._is_plain(kind):
            return (TREE_VALUE, self._without_memory.of_subclass(tensor, keep, self.value_of))
        tree: tuple[Any, ...] | None
        try:
            if FINDS and self._unseen_writes is None:
                found: tuple[Any, ...] | None = look(tensor, self._states)
                if found is not None:
                    if len(found) == _DESCRIBED:
                        return self._add(tensor, found, keep)
                    if keep and self._keeps_data:
                        self._keep_known(tensor, found[1])
                    return found
            if not has_storage(tensor):  # to say so itself takes torch 25 us, as it looks at the stack of C++
                raise NotImplementedError
            storage = tensor.untyped_storage()
            dtype = tensor.dtype
            geometry: Geometry = (
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                dtype,
                dtype in _COMPLEX and tensor.is_conj(),
                tensor.is_neg(),
            )
            state = self._states.get(storage._cdata)
            if state is None:
                state = self.storages.add(storage, tensor)
            elif storage.nbytes() != state.nbytes:  # resized, by an op or unseen: the memory may be another
                self.storages.take_size(state, storage, state.nbytes)
        except (NotImplementedError, RuntimeError):  # sparse, nested, functorch wrappers: no storage or shape to name
            return (TREE_VALUE, self._without_memory.without_storage(tensor, keep, self.value_of))
        if self._unseen_writes is not None:
            self._unseen_writes.check(tensor, state)
        tree = None
        row: Row | None = None
        if geometry == state.place:
            tree = state.value
        elif state.others is not None:
            tree = state.others.get(geometry)
        if tree is None:
            if is_functional_tensor(tensor):
                return (TREE_VALUE, self._without_memory.opaque(tensor))  # it has a storage, but no memory
            geometry, row = self._geometries.get(geometry) or self._keep_geometry(geometry)
            tree = self._records.in_memory(tensor, state, geometry)
            state.add_value(geometry, tree)
        if keep and self._keeps_data and not self._marks[tree[1]] & _NOT_TO_KEEP:
            self._keeper.keep(tensor, state, tree[1], None, row)
        return tree

    def tree_again(self, tensor: torch.Tensor, seen: Tree, keep: bool) -> Tree:
        tree: Any = seen
        return tree if tree is not None and self._marks[tree[1]] & OPAQUE else self.tree_of(tensor, keep)

    def _add(self, tensor: torch.Tensor, described: tuple[Any, ...], keep: bool) -> Tree:
        """Take in a new value that has a key, as `look` has described it."""
        storage, address, nbytes, geometry, key, is_cpu, elements = described
        state = self._states.get(address)
        if state is None:
            state = self.storages.add_plain(storage, address, nbytes, _CPU if is_cpu else tensor.device)
        elif nbytes != state.nbytes:  # resized, by an op or unseen
            self.storages.take_size(state, storage, state.nbytes)
        tree = self._records.in_memory(tensor, state, geometry, is_plain=True)
        state.add_value(key, tree)
        if keep and self._keeps_data:
            number: int = tree[1]  # compiled, a number of C's
            if not self._marks[number] & _NOT_TO_KEEP:
                self._keeper.keep(tensor, state, number, elements)
        return tree

    def _keep_known(self, tensor: torch.Tensor, number: int) -> None:
        """Keep the data of a value that was seen before, unless they are kept, or cannot be."""
        if self._marks[number] & _NOT_TO_KEEP:
            return
        state = self.storages.state_of(tensor)
        assert state is not None, "it is where the value was found"
        self._keeper.keep(tensor, state, number)

    def hold(self) -> None:
        self._keeper.on_device.hold()

    def release(self) -> None:
        self._keeper.on_device.release()

    def unknown_sum(self, like: torch.Tensor) -> int:
        return self._without_memory.unknown_sum(like)

    def written_since(self, tensor: torch.Tensor, writes: int) -> bool:
        """Return True if the memory of `tensor` was written since `writes` was so much."""
        state = self.storages.state_of(tensor)
        if state is None:
            return False
        if self._unseen_writes is not None and self._is_plain(type(tensor)) and _has_extent(tensor):
            self._unseen_writes.check(tensor, state)  # others have a storage, but no memory or extent of their own
        return state.written_at > writes

    def flush(self) -> None:
        """Send on the data that was gathered."""
        self._keeper.flush()

    def clear(self) -> None:
        """Let go of everything."""
        try:
            if self._unseen_writes is not None and self._unseen_writes.count:
                message = "writes without an op (numpy, a custom kernel) were found by the contents of the memory"
                self._emit(Note(NOTE, "unseen_writes", message, self._unseen_writes.count))
            self._keeper.close()
        finally:
            self.storages.clear()

    def _keep_geometry(self, geometry: Geometry) -> tuple[Geometry, Row | None]:
        """Return a geometry to be kept: a plain tuple of plain tuples, which Python's collector need not walk."""
        offset, shape, strides, dtype, is_conj, is_neg = geometry
        plain: Geometry = (offset, tuple(shape), *geometry[2:])
        row: Row | None = None
        item_bytes = ITEM_BYTES.get(dtype)
        if item_bytes is not None and not is_conj and not is_neg and is_a_row(shape, strides):
            row = dtype, offset * item_bytes, math.prod(shape) * item_bytes
        if len(self._geometries) >= _MOST_GEOMETRIES:
            self._geometries.clear()
        self._geometries[plain] = plain, row
        return plain, row

    def _is_plain(self, kind: type) -> bool:
        """Return True if tensors of `kind` are memory like any other: no dispatch of their own."""
        plain = getattr(kind, "__torch_dispatch__", None) is DISABLED_DISPATCH or kind is torch.nn.Buffer
        self._plain[kind] = plain
        return plain


def _has_extent(tensor: torch.Tensor) -> bool:
    return not tensor.is_nested and not is_lazy(tensor)  # which raises where it is asked for its shape


class TensorsWithoutMemory:
    """The values of one step's tensors without bytes of their own."""

    def __init__(self, records: ValueRecords, coverage: Coverage) -> None:
        """Begin a step.

        Args:
            records: emits their values.
            coverage: takes those that nothing is known of.
        """
        self._records = records
        self._coverage = coverage
        self._known: dict[tuple[Any, ...], int] = {}  # values of tensors made of other tensors

    def of_subclass(self, tensor: torch.Tensor, keep: bool, value_of: ValueOf) -> int:
        """Return the value of a tensor with a dispatch of its own.

        Args:
            tensor: if it stands on another one (a DTensor), that one is kept in its place.
            keep: keep the data of what it stands on.
            value_of: returns the value of that.
        """
        describe = describe_subclass(type(tensor))
        if describe is None:
            return self.opaque(tensor)
        inner, extra, identity = describe(tensor)
        local = value_of(inner, keep)
        key = (type(tensor), local, tensor.shape, tensor.stride(), tensor.requires_grad, identity)
        known = self._known.get(key)
        if known is None:
            extra = {**_class_and_device(tensor), **extra, "local": local}
            known = self._known[key] = self._records.without_storage(tensor, OPAQUE, extra)
        return known

    def without_storage(self, tensor: torch.Tensor, keep: bool, value_of: ValueOf) -> int:
        """Return the value of a tensor that has no storage; a sparse one is the same as long as its parts are."""
        parts = sparse_parts(tensor)
        if not parts:
            return self.opaque(tensor)
        ids = {name: value_of(part, keep) for name, part in parts.items()}
        is_coo = tensor.layout is torch.sparse_coo
        coalesced = is_coo and tensor.is_coalesced()
        key = (tensor.layout, tensor.shape, coalesced, *ids.values())
        known = self._known.get(key)
        if known is None:
            extra: dict[str, Any] = {"layout": str(tensor.layout)[len("torch.") :], "device": str(tensor.device)}
            extra["parts"] = ids
            if is_coo:
                extra |= {"coalesced": coalesced, "dense_dims": tensor.dense_dim()}
            known = self._known[key] = self._records.without_storage(tensor, 0, extra, strided=False)
        return known

    def opaque(self, tensor: torch.Tensor) -> int:
        """Return the value of a tensor of which the shape is all that can be recorded, if that."""
        extra = _class_and_device(tensor)
        self._coverage.add("wrapped_tensors", extra["class"])
        if tensor._has_symbolic_sizes_strides:
            return self._records.without_shape(extra)  # to ask a symbolic size for its number makes it a constant
        return self._of_shape(tensor, extra)

    def unknown_sum(self, like: torch.Tensor) -> int:
        """Return a new value with the geometry of `like` and no data: a sum that the recorder did not compute."""
        return self._of_shape(like, {"sum": True, "device": str(like.device)})

    def _of_shape(self, tensor: torch.Tensor, extra: dict[str, Any]) -> int:
        """Return a new value with the geometry of a tensor, if it has one that can be named, and no data."""
        try:
            return self._records.without_storage(tensor, OPAQUE, extra, tensor.layout is torch.strided)
        except (RuntimeError, TypeError, AttributeError):  # symbolic or nested sizes
            return self._records.without_shape(extra)


def _class_and_device(tensor: torch.Tensor) -> dict[str, Any]:
    kind = type(tensor)
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "device": str(tensor.device)}
