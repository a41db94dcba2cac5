"""Runs one recorded aten op again.

Theory of operation
    The op is found by name, its tensors are made anew (`shared_memory.py`), its other arguments as recorded. On
    another device, device arguments follow; with `cast`, dtype arguments do, also those that were left to torch's
    default (`run_op.py`). A random op draws from a generator in the recorded state; it cannot be cast, as other
    dtypes draw other numbers, unless it turns out to draw nothing (attention with dropout 0). An op that was given
    undefined memory runs twice, with different bytes there: if the results differ it read them, and nothing can be said
    about it.

    Ops that are given floating tensors follow these. A factory without a dtype makes torch's default, and so does what
    makes floating numbers of integers: in a float64 replay both would be float32 among tensors of float64, which some
    ops refuse and which rounds what should be exact. In the recorded dtype a factory would draw other numbers where
    the program had set another default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from ...dump import Call, GeneratorRef, ObjectRef, ReprRef, Value
from ...dump.argument_decoding import UnknownDevice
from ...errors import AtenDumpError, ReplayError
from ...store.op_names import UNDEFINED_OUTPUT_OPS, is_collective, read_op_name
from ..composed_ops import composed
from .allowed_ops import allowed_op, is_by_element
from .argument_checks import check_arguments
from .kernel_ops import KernelOp, behind_unknown, kernel_op, unknown_slots
from .memory_need import arguments_of, check_given
from .on_device import on_device
from .shared_memory import Moment, Surroundings, tensors_of, wide

_drawing: Final = threading.Lock()  # held while the process's own generators are in a recorded state

_NO_COMPUTATION: Final = frozenset(("profiler", "prim", "inductor_prims", "higher_order"))
_ABOUT_STORAGES: Final = frozenset(("aten::_has_same_storage_numel",))
_REINTERPRET: Final = frozenset(
    ("aten::view.dtype", "aten::nextafter", "aten::frexp.Tensor", "aten::_fused_sdp_choice")
)
_ON_LOW_PRECISION_ONLY: Final = {"aten::_softmax": 2, "aten::_log_softmax": 2}  # op -> position of half_to_float
SECOND_FILL: Final = 0x5C  # as floats: large numbers, in which no sum loses them; as indices: out of range


@dataclass(frozen=True, slots=True)
class Run:
    """What an op returned and wrote."""

    outputs: Any  # tree of tensors and plain values
    mutated: dict[str, Any]
    drew: bool = False  # it took random numbers


def find_op(call: Call) -> Any:
    """Return the OpOverload of an aten call.

    Raises:
        ReplayError: it is a collective or no computation, it may not be run, or this process does not have it.
    """
    parts = read_op_name(call.op)
    if call.kind != "aten":
        raise ReplayError(f"{call.name} is a call of kind {call.kind}; replay the aten ops inside it")
    if is_collective(call.op):
        raise ReplayError("a collective: it needs the other ranks")
    if parts.namespace in _NO_COMPUTATION:
        raise ReplayError(f"{parts.namespace} ops compute nothing that is recorded")
    if parts.without_overload in _ABOUT_STORAGES:
        raise ReplayError("it asks about storages, and of those the elements of its tensors are all that is made anew")
    if parts.without_overload in UNDEFINED_OUTPUT_OPS:
        raise ReplayError("it returns undefined memory: there is nothing to compare")
    return kernel_op(call) or allowed_op(call.op)


def run_call(
    call: Call,
    *,
    cast: bool = False,
    device: torch.device | None = None,
    known: Mapping[Moment, torch.Tensor] | None = None,
    undefined: Mapping[str, torch.Tensor] | None = None,
) -> Run:
    """Run the op of a call again.

    Args:
        call: an aten call.
        cast: in float64, else in the recorded dtypes.
        device: where; the CPU by default.
        known: storages, as bytes, that take the place of what was recorded.
        undefined: by slot, which elements of its results are known to depend on undefined memory: nobody looks at them.

    Raises:
        ReplayError, MissingDataError: it cannot be run; the message says why.
    """
    op = find_op(call)
    if call.error is not None:
        raise ReplayError(f"it raised in the program: {call.error}")
    if cast and call.op in _REINTERPRET:
        raise ReplayError("it is about the bits of its dtype: it has no float64 form")
    around = Surroundings(cast, device or torch.device("cpu"), known or {})
    values = {value.id: value for _, value in call.input_values()}.values()
    if is_view_op(op) and any(value.undefined and value.numel for value in values):
        raise ReplayError("it is a view of memory that was undefined (torch.empty), whose contents are not recorded")
    check_given(values, cast=cast)
    first = run_in(op, call, around)
    if not any(value.undefined and value.numel for value in values):
        return first
    second = run_in(op, call, replace(around, fill=SECOND_FILL))
    _check_same(call, first, second, undefined or {})
    return first


def _check_same(call: Call, first: Run, second: Run, undefined: Mapping[str, torch.Tensor]) -> None:
    """Check that an op gave the same twice, wherever the program's result was defined."""
    defined = {slot for slot, value in call.result_values() if not value.undefined} - unknown_slots(call)
    others = dict(result_slots(second))
    for slot, item in result_slots(first):
        pair = (without(undefined.get(slot), one) for one in (item, others[slot]))
        if slot in defined and not same_bits(*pair):
            raise ReplayError("it reads memory that was undefined (torch.empty), whose contents are not recorded")


def is_view_op(op: Any) -> bool:
    """True if all that an op returns lies in the memory that it is given: it reads no element of it."""
    returned = [result.alias_info for result in op._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def without(undefined: torch.Tensor | None, item: Any) -> Any:
    """Return a tensor with 0 for the elements that are undefined; one of another shape as it is."""
    if undefined is None or not isinstance(item, torch.Tensor):
        return item
    return item.masked_fill(undefined, 0) if undefined.shape in (item.shape, ()) else item


def run_in(op: Any, call: Call, around: Surroundings) -> Run:
    """Run the op of a call on what was recorded."""
    return _run_on(op, call, around, _Arguments(call, around, _recorded(call, around)))


def check_call(op: Any, call: Call) -> None:
    """Check that the op of a call can be run with what was recorded, and run nothing.

    Raises:
        ReplayError, MissingDataError: it cannot; the message says why.
    """
    check_given([value for _, value in call.input_values()], cast=False)
    around = Surroundings()
    args, kwargs = _Arguments(call, around, _recorded(call, around)).build()
    if not isinstance(op, KernelOp):
        check_arguments(op, args, kwargs)


class Changed(NamedTuple):
    """An op and its arguments, with tensors where a call has values, and what is done to its result."""

    op: Any
    args: list[Any]
    kwargs: dict[str, Any]
    after: Callable[[torch.Tensor], torch.Tensor] | None = None


def run_on(
    call: Call,
    find: Callable[[Value], torch.Tensor],
    numbers: Mapping[float, float] | None = None,
    change: Callable[[Changed], Changed] | None = None,
) -> Run:
    """Run the op of a call in float64 on other tensors than were recorded.

    Args:
        call: an aten call.
        find: returns the tensor that takes the place of a value; what the op writes is written to it.
        numbers: what takes the place of numbers among its arguments.
        change: returns what is to be run for the op and its arguments.

    Raises:
        ReplayError: it cannot be run; the message says why.
    """
    op, around = find_op(call), Surroundings(cast=True)
    arguments = _Arguments(call, around, find, numbers)
    if change is not None:
        return _run_changed(op, call, arguments, change)
    return _run_on(op, call, around, arguments, on_device(op))


class Again:
    """A call that is run again and again in float64, on tensors of the shapes that it was run on before.

    What was checked then is not checked again.
    """

    def __init__(self, call: Call) -> None:
        """Prepare to run.

        Args:
            call: an aten call that was run before by `run_on`.

        Raises:
            ReplayError: it cannot be run.
        """
        op = find_op(call)
        around = Surroundings(cast=True)
        self._call = call
        self._args, self._kwargs = _Arguments(call, around, _Gap).build()  # type: ignore[arg-type]
        given = [value for _, value in call.input_values()]
        self._is_plain = (
            not isinstance(op, KernelOp)
            and composed(op, around.device) is op
            and on_device(op) is None
            and call.random_state is None
            and torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ())
            and all(value.is_floating for value in given)  # indices are checked each time
        )
        self._op = op
        names, _ = arguments_of(op) if call.mutated else ((), None)
        self._written = [(name, names.index(name) if name in names else len(self._args)) for name in call.mutated]

    def run(self, find: Callable[[Value], torch.Tensor]) -> Run:
        """Run it on the tensors that `find` returns for its values.

        Raises:
            ReplayError: it cannot be run; the message says why.
        """
        if not self._is_plain:
            return run_on(self._call, find)
        args = [_filled(item, find) for item in self._args]
        kwargs = {name: _filled(item, find) for name, item in self._kwargs.items()}
        try:
            with torch.no_grad():
                result = self._op(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise ReplayError(f"it raised when replayed: {said_by(error)}") from error
        mutated = {name: args[at] if at < len(args) else kwargs.get(name) for name, at in self._written}
        return Run(result, mutated)


class _Gap:
    """Stands for a tensor among arguments."""

    __slots__ = ("_as_double", "_value")

    def __init__(self, value: Value, *, as_double: bool = False) -> None:
        self._value, self._as_double = value, as_double

    def double(self) -> _Gap:
        return _Gap(self._value, as_double=True)

    def filled(self, find: Callable[[Value], torch.Tensor]) -> torch.Tensor:
        found = find(self._value)
        return found.double() if self._as_double else found


def _filled(item: Any, find: Callable[[Value], torch.Tensor]) -> Any:
    """Return an argument with tensors for its gaps."""
    if isinstance(item, _Gap):
        return item.filled(find)
    return [_filled(one, find) for one in item] if isinstance(item, (list, tuple)) else item


def _run_changed(op: Any, call: Call, arguments: _Arguments, change: Callable[[Changed], Changed]) -> Run:
    """Run what a change makes of a call; what it would write in place is what it returns.

    Raises:
        ReplayError: it cannot be run.
    """
    try:
        changed = change(Changed(op, *arguments.build()))
        check_arguments(changed.op, changed.args, changed.kwargs)
        with torch.no_grad():
            result = changed.op(*changed.args, **changed.kwargs)
            if changed.after is not None:
                after = changed.after(result)
                result = result.copy_(after) if call.mutated else after
        return Run(result, dict.fromkeys(call.mutated, result))
    except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise ReplayError(f"it cannot be run so: {said_by(error)}") from error


def _run_on(
    op: Any, call: Call, around: Surroundings, arguments: _Arguments, elsewhere: Callable[..., Any] | None = None
) -> Run:
    """Run an op with arguments that are made for it; `elsewhere` runs it on a device of its own."""
    state = call.random_state
    is_random = state is not None or torch.Tag.nondeterministic_seeded in op.tags
    run = composed(op, around.device)
    try:
        args, kwargs = arguments.build()
        if isinstance(op, KernelOp):  # each of its nodes is checked as it runs
            op.behind, op.rounding = arguments.of(behind_unknown(call)), around.rounding
        else:
            check_arguments(op, args, kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise ReplayError(f"its arguments cannot be made again: {said_by(error)}") from error
    try:
        with torch.no_grad(), torch.sparse.check_sparse_tensor_invariants():
            if is_random and run is op:  # what is composed here draws nothing
                result, drew = draw(partial(run, *args, **kwargs), _generator_in(args, kwargs), state, around)
            else:
                there = elsewhere if run is op and elsewhere is not None else run
                result, drew = there(*args, **kwargs), False
    except (AtenDumpError, KeyboardInterrupt):
        raise
    except NotImplementedError as error:
        why = "" if run is op else f", and it is not composed of others: {error}"
        raise ReplayError(f"{around.device.type} has no kernel for it{why}") from error
    except BaseException as error:  # an op of a library may raise what is no Exception: SystemExit, a panic of Rust
        raise ReplayError(f"it raised when replayed: {said_by(error)}") from error
    mutated = {}
    names, _ = arguments_of(op)
    for name in call.mutated:
        position = names.index(name) if name in names else len(args)
        mutated[name] = args[position] if position < len(args) else kwargs.get(name)
    return Run(result, mutated, drew)


def said_by(error: BaseException) -> str:
    """Return what an error says in a line, its type first; the type alone if its own text raises another."""
    kind = type(error).__name__
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - a class of the library's
        return kind
    return f"{kind}: {text}" if text else kind


def _generator_in(args: list[Any], kwargs: dict[str, Any]) -> torch.Generator | None:
    return next((item for item in (*args, *kwargs.values()) if isinstance(item, torch.Generator)), None)


class _Arguments:
    """The arguments of one call, made anew."""

    def __init__(
        self,
        call: Call,
        around: Surroundings,
        find: Callable[[Value], torch.Tensor],
        numbers: Mapping[float, float] | None = None,
    ) -> None:
        self._call = call
        self._around = around
        self._find = find
        self._numbers = numbers or {}
        self._of_integers = around.cast and makes_floats_of_integers(call)

    def build(self) -> tuple[list[Any], dict[str, Any]]:
        call = self._call
        args, kwargs = call.shared_inputs()
        made = [self._item(item) for item in args]
        position = _ON_LOW_PRECISION_ONLY.get(call.op)
        if self._around.cast and position is not None and len(made) > position:
            made[position] = False
        named = {name: self._item(item) for name, item in kwargs.items()}
        if named.get("pin_memory"):
            named["pin_memory"] = None
        dtype = factory_dtype(call, named)
        if dtype is not None:
            named["dtype"] = wide(dtype) if self._around.cast else dtype
        return made, named

    def of(self, values: Mapping[str, Value]) -> dict[str, torch.Tensor]:
        """Return the tensors of some values, by name."""
        return {name: self._item(value) for name, value in values.items()}

    def _item(self, item: Any) -> Any:
        if isinstance(item, Value):
            found = self._find(item)
            return found.double() if self._of_integers else found
        if isinstance(item, (list, tuple)):
            return [self._item(entry) for entry in item]
        if isinstance(item, float):
            return self._numbers.get(item, item)
        if isinstance(item, torch.dtype):
            return wide(item) if self._around.cast else item
        if isinstance(item, (torch.device, UnknownDevice)):
            return item if getattr(item, "type", "") == "meta" else self._around.device
        if isinstance(item, GeneratorRef):
            generator = torch.Generator(self._around.device)
            return generator if item.seed is None else generator.manual_seed(item.seed)
        if isinstance(item, ReprRef):
            return recorded_number(item)
        if isinstance(item, ObjectRef):
            raise ReplayError(f"an argument is a {item.type_name}, which was seen and not recorded")
        return item


def _recorded(call: Call, around: Surroundings) -> Callable[[Value], torch.Tensor]:
    """Return what finds the tensors that a call was given, as they were recorded."""
    values = [*(value for _, value in call.input_values()), *behind_unknown(call).values()]
    absolute = "as_strided" in call.op or "set_" in call.op
    tensors = tensors_of(values, around, written=written_ids(call), absolute=absolute)
    return lambda value: tensors[value.id]


def written_ids(call: Call) -> frozenset[int]:
    """Return the ids of the values that a call wrote to, as they were before."""
    args, kwargs = call.shared_inputs()
    names = call.arguments
    found = []
    for name in call.mutated:
        position = names.index(name) if name in names else len(args)
        found += _values_in(args[position] if position < len(args) else kwargs.get(name))
    return frozenset(value.id for value in found)


def recorded_number(item: ReprRef) -> int:
    """Return the number that was recorded by its repr, as it has more than 64 bits.

    Raises:
        ReplayError: it is something else.
    """
    try:
        return int(item.text)
    except ValueError:
        raise ReplayError(f"an argument is {item.text}, which cannot be made again") from None


def _values_in(item: Any) -> list[Value]:
    if isinstance(item, Value):
        return [item]
    return [value for entry in item for value in _values_in(entry)] if isinstance(item, (list, tuple)) else []


def result_slots(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield (slot, tensor or plain value) of what a run returned and wrote, named as in a dump."""
    many = isinstance(run.outputs, (list, tuple))
    yield from leaves(run.outputs, "output" if many else "output.0")
    for name, item in run.mutated.items():
        yield from leaves(item, f"mutated.{name}")


def recorded_slots(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield (slot, Value or plain value) of what was recorded, as `result_slots` does."""
    outputs = call.outputs
    yield from leaves(outputs, "output" if isinstance(outputs, (list, tuple)) else "output.0")
    for name, item in call.mutated_values.items():
        yield from leaves(item, f"mutated.{name}")


def leaves(tree: Any, slot: str) -> Iterator[tuple[str, Any]]:
    """Yield (slot, leaf) of nested lists, tuples and dicts."""
    if isinstance(tree, dict):
        for name, item in tree.items():
            yield from leaves(item, f"{slot}.{name}")
    elif isinstance(tree, (list, tuple)):
        for number, item in enumerate(tree):
            yield from leaves(item, f"{slot}.{number}")
    else:
        yield slot, tree


def same_bits(one: Any, other: Any) -> bool:
    """Return True if two results are the same bit by bit; of tensors, dtypes, shapes and layouts too."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        is_plain = not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor)
        return is_plain and bool(one == other or (one != one and other != other))
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    if one.is_quantized:
        return torch.equal(one.int_repr(), other.int_repr())
    if one.layout is not torch.strided:
        return torch.equal(one.to_dense(), other.to_dense())
    return one.numel() == 0 or torch.equal(bits(one), bits(other))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a strided tensor's elements, in their order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    flat = plain.reshape(-1)
    if flat.stride(0) != 1:  # one element that was expanded
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def factory_dtype(call: Call, named: dict[str, Any]) -> torch.dtype | None:
    """Return the recorded dtype, to ask for where a factory was given none; `named` has the keyword arguments."""
    made = call.output_values()
    if named.get("dtype") is not None or call.input_values() or not made:
        return None
    asked = any(argument.name == "dtype" and argument.kwarg_only for argument in allowed_op(call.op)._schema.arguments)
    return made[0][1].dtype if asked else None


def makes_floats_of_integers(call: Call) -> bool:
    """Return True if an op makes floating numbers of integers or masks alone, element by element.

    A kernel is no such op: it runs node by node, and each node is asked for itself.
    """
    given = [value for _, value in call.input_values()]
    if not given or call.kernel is not None or any(value.is_floating for value in given):
        return False
    return is_by_element(allowed_op(call.op)) and any(value.is_floating for _, value in call.output_values())


def draw(
    op: Callable[[], Any], given: torch.Generator | None, state: tuple[str, bytes] | None, around: Surroundings
) -> tuple[Any, bool]:
    """Run an op that may draw random numbers; return its result, and True if it drew."""
    device = around.device
    kind = "cpu" if state is None else str(state[0]).partition(":")[0]
    if kind != device.type:
        raise ReplayError(f"it draws random numbers on {kind}: replay it there, {device.type} draws others")
    with _generator(given, device) as generator:
        if state is not None:
            generator.set_state(torch.frombuffer(bytearray(state[1]), dtype=torch.uint8))
        before = generator.get_state()
        result = op()
        drew = not torch.equal(before, generator.get_state())
    if drew and state is None:
        raise ReplayError("it draws random numbers, and the state of the generator was not recorded")
    if drew and around.cast:
        raise ReplayError("it draws random numbers, which depend on the dtype: replay it in the recorded one")
    return result, drew


@contextmanager
def _generator(given: torch.Generator | None, device: torch.device) -> Iterator[torch.Generator]:
    """Give the generator that an op will draw from; the process's own, to one thread at a time, is put back."""
    if given is not None:
        yield given
        return
    if device.type == "cpu":
        default = torch.default_generator
    else:
        module = torch.get_device_module(device)
        default = module.default_generators[device.index or 0]
    with _drawing:
        saved = default.get_state()
        try:
            yield default
        finally:
            default.set_state(saved)
