"""What an op itself is off, measured alike in `compare` and `replay`: recorded results against a replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ...dump import Call, Value
from ...errors import AtenDumpError, FormatError, MissingDataError, ReplayError
from ...store.op_names import is_workspace
from .kernel_ops import unknown_slots
from .rounding_error import SUSPECT, LocalError, Rounding, measure, measure_exact, terms_of
from .run_op import Run, find_op, recorded_slots, result_slots, run_call, run_in, run_on, said_by, without
from .shared_memory import Moment, Surroundings, check_readable

REPLAY_BYTES: Final = 256 << 20
_DRAWS: Final = 8  # of rounding within a kernel
_MOVES: Final = 2  # of the inputs of an op
_CPU: Final = torch.device("cpu")
Storages = Mapping[Moment, torch.Tensor]  # the bytes of storages at a version
Undefined = Mapping[str, torch.Tensor]  # by slot of a call's results, which elements depend on undefined memory


@dataclass(frozen=True, slots=True)
class OwnError:
    """What a replay in float64 says about one result of both sides, each by itself."""

    target: LocalError
    baseline: LocalError

    @property
    def ratio(self) -> float:
        """The target's own error over what an honest implementation may be off; above 1 it is wrong."""
        return self.target.ratio / SUSPECT

    @property
    def baseline_ratio(self) -> float:
        """The same of the baseline: it is the baseline that may be wrong."""
        return self.baseline.ratio / SUSPECT

    @property
    def reason(self) -> str:
        """Why the floor is what it is."""
        return f"{SUSPECT:g} times {self.target.reason}" if self.target.reason else ""

    @property
    def floor(self) -> float:
        """What the target may be off, as a relative L2 error."""
        return SUSPECT * self.target.floor


class Replays:
    """Replays of calls, each made when it is needed; `enabled` False makes none.

    `undefined` returns for a call which elements of its results depend on undefined memory: they are not looked at.
    `storages` returns what is known of memory that it was given when that had been written in part.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.undefined: Callable[[Call], Undefined] = lambda call: {}
        self.storages: Callable[[Call], Storages] = lambda call: {}
        self._known: dict[tuple[int, int], dict[str, LocalError] | str] = {}

    def local_errors(self, target: Call, baseline: Call) -> dict[str, OwnError] | str:
        """Return the local error of each result by slot, or why there is none."""
        if not self.enabled:
            return "replay is switched off"
        sides: list[dict[str, LocalError]] = []
        for call in (target, baseline):
            found = self.errors(call)
            if isinstance(found, str):
                return found
            sides.append(found)
        return {slot: OwnError(sides[0][slot], sides[1][slot]) for slot in sides[0] if slot in sides[1]}

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        """Return the distance of each result from the replayed one, or why there is none."""
        key = id(call.rank), call.id
        if key not in self._known:
            self._known[key] = _errors(call, self.undefined(call), self.storages(call))
        return self._known[key]


def draws_otherwise(target: Call, baseline: Call) -> bool:
    """Return True if two calls draw random numbers from generators that were not in one state."""
    states = target.random_state, baseline.random_state
    if None in states or states[0] == states[1]:
        return False
    return any(run is not None and run.drew for run in (attempt(call, False, _CPU)[0] for call in (target, baseline)))


def _errors(call: Call, undefined: Undefined, known: Storages) -> dict[str, LocalError] | str:
    results = {slot: value for slot, value in call.result_values() if not is_workspace(call.op, slot)}
    values = [*(v for _, v in call.input_values()), *results.values()]
    if sum(value.numel * 8 for value in {v.id: v for v in values}.values()) > REPLAY_BYTES:
        return "its tensors are too large to replay while comparing; use `aten-dump replay`"
    if not results:
        return "it has no result"
    reference, failure = attempt(call, True, _CPU, undefined, known)
    has_exact = not all(value.is_floating for value in results.values())
    native = attempt(call, False, _CPU, undefined, known)[0] if reference is None or has_exact else None
    if reference is None and native is None:
        return str(failure)
    try:
        judged = tuple(measured(call, native, reference, undefined))
        if native is None and any(error.ratio > SUSPECT for error in judged):  # how far is an honest one?
            native, _ = attempt(call, False, _CPU, undefined, known)
            judged = tuple(measured(call, native, reference, undefined))
        judged = rounded_otherwise(call, judged, reference, undefined, known)
        found = {error.slot: error for error in judged}
    except AtenDumpError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - torch, or a library, refuses what the op made: it is not judged
        return f"its results cannot be compared: {said_by(error)}"
    return {slot: error for slot, error in found.items() if slot in results}


def attempt(
    call: Call, cast: bool, device: torch.device, undefined: Undefined | None = None, known: Storages | None = None
) -> tuple[Run | None, AtenDumpError | None]:
    """Run a call again; return what it gave, or why it could not be run."""
    try:
        return run_call(call, cast=cast, device=device, undefined=undefined, known=known), None
    except (ReplayError, MissingDataError, FormatError) as error:
        return None, error


def rounded_otherwise(
    call: Call,
    errors: tuple[LocalError, ...],
    reference: Run | None,
    undefined: Undefined | None = None,
    known: Storages | None = None,
) -> tuple[LocalError, ...]:
    """Return the errors of a call held against other roundings too, if it seems wrong.

    What a generated kernel makes on the way may be rounded otherwise. An op that adds up may lose digits of its inputs
    where these cancel, in another order than that of this machine: so what a rounding of its inputs moves is no error.

    Args:
        call: an aten call.
        errors: as `measured` gave them.
        reference: the call, run in float64; without it there is nothing to round.
        undefined: which elements are not looked at.
        known: what is known of memory that had been written in part.
    """
    for draw in range(1, (_DRAWS if call.kernel is not None else _MOVES) + 1):
        if reference is None or all(error.ratio <= SUSPECT for error in errors):
            break
        other = _rounded(call, draw, known or {})
        if other is None:
            break
        found = {error.slot: error for error in measured(call, other, reference, undefined)}
        pairs = ((error, found.get(error.slot, error)) for error in errors)
        errors = tuple(min(pair, key=lambda error: error.ratio) for pair in pairs)
    return errors


def _rounded(call: Call, draw: int, known: Storages) -> Run | None:
    """Run a call in float64 with other roundings; None if these are no excuse for its op, or it cannot be run."""
    op = find_op(call)
    if call.kernel is not None:
        return run_in(op, call, Surroundings(cast=True, known=known, rounding=draw))
    values = {value.id: value for _, value in call.input_values()}
    is_said = all(value.has_data and not value.undefined for value in values.values())
    if not is_said or call.mutated or torch.Tag.pointwise in getattr(op, "tags", ()):
        return None
    generator = torch.Generator().manual_seed(draw)

    def moved(value: Value) -> torch.Tensor:
        tensor = value.shared_tensor()
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator).double() * 2 - 1
        return tensor.double() * (1 + signs * torch.finfo(tensor.dtype).eps / 2)

    try:
        given = {number: moved(value) for number, value in values.items()}
        return run_on(call, lambda value: given[value.id])
    except AtenDumpError:
        return None


def measured(
    call: Call, native: Run | None, reference: Run | None, undefined: Undefined | None = None
) -> Iterator[LocalError]:
    """Yield the error of each result whose bytes were recorded.

    Args:
        call: an aten call.
        native: it, run again in the recorded dtypes; None where that failed or was not tried.
        reference: it, run in float64; None takes `native` for the reference.
        undefined: which elements are not looked at.
    """
    masks = undefined or {}
    plain = {} if native is None else _of_defined(native, masks)
    wide = plain if reference is None else _of_defined(reference, masks)
    sizes = sorted((value.numel for _, value in call.input_values()), reverse=True)[:2]  # that count in `terms_of`
    unknown = unknown_slots(call)
    for slot, recorded in recorded_slots(call):
        if slot in unknown or (
            isinstance(recorded, Value) and (recorded.undefined or recorded.opaque or is_workspace(call.op, slot))
        ):
            continue
        if isinstance(recorded, Value):
            check_readable(recorded)
        item = without(masks.get(slot), recorded.shared_tensor() if isinstance(recorded, Value) else recorded)
        if item is None and plain.get(slot) is None:
            continue
        if isinstance(item, torch.Tensor) and (item.dtype.is_floating_point or item.is_complex()):
            rounding = Rounding(terms_of(call.op, sizes, item.numel()), _scores_dtype(call))
            yield _floating(slot, item, (plain.get(slot), wide.get(slot)), rounding)
        elif native is not None:
            yield _on_cpu_exact(slot, item, plain.get(slot))


def _of_defined(run: Run, undefined: Undefined) -> dict[str, Any]:
    return {slot: without(undefined.get(slot), item) for slot, item in result_slots(run)}


def _on_cpu_exact(slot: str, recorded: Any, replayed: Any) -> LocalError:
    return measure_exact(slot, recorded, replayed.cpu() if isinstance(replayed, torch.Tensor) else replayed)


def _scores_dtype(call: Call) -> torch.dtype | None:
    """Return the dtype to which fused attention may round its scores, of which its float32 statistics are made.

    Processors without products of bfloat16 do so.
    """
    dtypes = [value.dtype for _, value in call.input_values() if value.is_floating] if "attention" in call.op else []
    return dtypes[0] if dtypes else None


def _floating(slot: str, recorded: torch.Tensor, replayed: tuple[Any, Any], rounding: Rounding) -> LocalError:
    native, wide = replayed
    if not isinstance(wide, torch.Tensor) or wide.shape != recorded.shape:
        found = tuple(wide.shape) if isinstance(wide, torch.Tensor) else type(wide).__name__
        raise ReplayError(f"{slot} was recorded with shape {tuple(recorded.shape)}, replay gave {found}")
    known = native if isinstance(native, torch.Tensor) else None
    judged = measure(slot, recorded, known, wide, rounding)
    if judged.bit_equal and not math.isnan(judged.ratio):
        return replace(judged, ratio=min(judged.ratio, 1.0))  # as this machine does it: not the implementation's fault
    return judged
