"""Replay: run recorded aten ops again, each from its own recorded inputs, and find the one that is off.

Theory of operation
    An op that is wrong makes everything after it wrong, but only its own result is wrong given its own inputs.
    So each op is run from what it was given: in float64, the reference, and in the recorded dtype, which shows
    how far an honest implementation is off (`rerun/rounding_error.py`). The op with the greatest error against that
    floor is the guilty one. One op is in memory at a time. What cannot be run again is listed with the reason.
    An error in an *argument* (a wrong eps that was passed) is not seen here: `compare` sees it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch

from ..dump import Call, Dump, RankDump, Step, open_dump, rank_at, run_at
from ..dump.wholeness import lacks_with
from ..errors import AtenDumpError, FormatError, MissingDataError, ReplayError
from ..store.damage_seen import damage_seen
from .executors import each_rank
from .given_device import usable_device
from .given_dumps import Given, rank_of
from .host_default import made_on_the_host
from .layers.layer_fault import LayerFault
from .layers.layers import layer_faults
from .replay_result import Replay, ReplayedOp, ReplayResult, Skipped
from .rerun.allowed_ops import allowed_patterns, allowing
from .rerun.graft import Graft, graft
from .rerun.op_errors import attempt, measured, rounded_otherwise
from .rerun.run_op import Run, run_call, said_by, same_bits

AUTO: Final = "auto"
_CPU: Final = torch.device("cpu")
_WITH_FLOAT64: Final = frozenset(("cpu", "cuda"))
Dtype = torch.dtype | None | Literal["auto"]
Progress = Callable[[int, int], None]


@made_on_the_host
def replay_call(
    call: Call,
    dtype: torch.dtype | None = torch.float64,
    device: torch.device | str = "cpu",
    *,
    allow_ops: Sequence[str] = (),
) -> ReplayResult:
    """Run one aten call again from its recorded inputs.

    Args:
        call: an aten call.
        dtype: ``torch.float64`` casts floating inputs and dtype arguments up; None takes the recorded dtypes.
        device: where to run it.
        allow_ops: as `replay` takes it.

    Returns:
        What it returned and wrote, or the reason why it cannot be run.
    """
    try:
        with allowing(allow_ops):
            run = run_call(call, cast=_casts(dtype), device=usable_device(device))
    except (ReplayError, MissingDataError, FormatError) as error:
        return ReplayResult(call, None, {}, str(error))
    return ReplayResult(call, run.outputs, run.mutated, None)


@made_on_the_host
def replay(
    target: Call | Sequence[Call] | Given,
    *,
    device: torch.device | str = "cpu",
    dtype: Dtype = AUTO,
    substitute: Mapping[str, torch.Tensor] | None = None,
    keep: Iterable[str] = (),
    allow_ops: Sequence[str] = (),
    progress: Progress | None = None,
) -> Any:
    """Run recorded aten ops again, each from its own recorded inputs, or graft a tensor into the recorded forward.

    Args:
        target: one call, some calls of one step and rank, or a step and rank with all its aten ops: forward,
            backward and optimizer. A path, a `Dump` or a `Step` stands for its first step and rank with calls.
        device: where to run them.
        dtype: ``torch.float64``, the default, judges each op against a reference in float64; None runs the recorded
            dtypes only, to see what is reproduced bit by bit.
        substitute: tensors to use instead of recorded ones, by name (``"Aten.addmm.3.forward.output.0"``). Then the
            recorded forward runs again from there by data flow, in the recorded dtypes, and a `Graft` is returned.
        keep: with `substitute`, names of tensors to return beside those that nothing read further.
        allow_ops: patterns of library ops to run too: ``["mylib::*"]``. Name only those you trust.
        progress: called with the number of ops that are done, and of all.

    Returns:
        A `Replay`, the worst op first; with `substitute` a `Graft`.

    Raises:
        ReplayError: `substitute` names something that is not the result of a forward op, or does not fit.
        MissingDataError: no bytes were recorded at all, or a name is unknown.

    Example:
        >>> replay("dump").suspects  # ops with a larger error than a correct kernel can have
        ()
        >>> graft = replay("dump", substitute={"Aten.addmm.0.forward.output.0": torch.zeros(3, 4)})
        >>> graft.reran[0]
        'Aten.native_layer_norm.0.forward'
    """
    place = usable_device(device)
    rank, calls = calls_of(target, needs_bytes=substitute is None)
    if substitute is not None:
        if dtype not in (AUTO, None):
            raise ReplayError(f"substitute runs the recorded dtypes; dtype={dtype} does not go with it, leave it out")
        with allowing(allow_ops):
            return graft(rank, substitute, keep=keep, device=place)
    casts = _casts(torch.float64 if dtype == AUTO else dtype)
    with allowing(allow_ops):
        found = _replay_calls(rank, calls, casts, place, progress)
        is_whole = not isinstance(target, (Call, Sequence)) or isinstance(target, str)
        return replace(found, layers=_layers(rank, found)) if casts and is_whole else found


def calls_of(target: Call | Sequence[Call] | Given, *, needs_bytes: bool = True) -> tuple[RankDump, list[Call]]:
    """Return the step and rank that is asked for, and its calls to run.

    Raises:
        MissingDataError: there are no aten calls, or no bytes were recorded and they are needed.
        ReplayError: no calls were given.
    """
    rank, calls = _given_calls(target)
    data = rank.config.get("data")
    if needs_bytes and data not in ("tensor", "full", None) and not rank.summary().shards:
        raise MissingDataError(
            f'{rank.where} was recorded with DumpConfig.data="{data}", which keeps no bytes; '
            'replay needs data="tensor" or "full"'
        )
    return rank, calls


def _given_calls(target: Call | Sequence[Call] | Given) -> tuple[RankDump, list[Call]]:
    if isinstance(target, (str, os.PathLike, Dump, Step, RankDump)):
        target = rank_of(target)
        calls = [call for call in target.calls if call.kind == "aten"]
        if not calls:
            raise MissingDataError(
                f'{target.where} has no aten calls (DumpConfig.level="{target.config.get("level")}"); '
                'record with level="aten" or "mix" to replay'
            )
        return target, calls
    calls = [target] if isinstance(target, Call) else list(target)
    if not calls:
        raise ReplayError("no aten calls were given; a call of another kind may have run none (see `aten-dump show`)")
    rank = calls[0].rank
    assert isinstance(rank, RankDump), "handles come from a RankDump"
    return rank, calls


@made_on_the_host
def replay_all(
    path: str | Path | Dump,
    executor: Executor | None = None,
    *,
    device: str = "cpu",
    dtype: Dtype = AUTO,
    allow_ops: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Replay]:
    """Replay every step and rank of a dump that has ops, one task each on any ``concurrent.futures.Executor``.

    `progress` is called with how many of them are done, of how many; `allow_ops` is as `replay` takes it.
    """
    dump = path if isinstance(path, Dump) else open_dump(path)
    casts = _casts(torch.float64 if dtype == AUTO else dtype)
    path, allowed = str(dump.path), allowed_patterns(allow_ops)
    ranks = [rank for rank in dump.all_ranks() if has_ops(rank.anew())]
    places = [_Place(path, rank.step, rank.rank, device, casts, allowed) for rank in ranks]
    return each_rank(_replay_place, places, executor, progress)


def has_ops(rank: RankDump) -> bool:
    """Return True if a step and rank has aten calls that could be replayed."""
    return rank.calls_by_kind()["aten"] > 0


class _Place(NamedTuple):
    path: str
    step: int
    rank: int
    device: str
    casts: bool
    allow_ops: tuple[str, ...]


def _replay_place(place: _Place) -> Replay:
    rank = rank_at(place.path, place.step, place.rank)
    dtype = torch.float64 if place.casts else None
    found: Replay = replay(rank, device=place.device, dtype=dtype, allow_ops=place.allow_ops)
    return found


def _casts(dtype: torch.dtype | str | None) -> bool:
    if dtype not in (torch.float64, None):
        raise ReplayError(f"dtype is {dtype}; allowed: torch.float64 (the reference), None (as recorded)")
    return dtype is not None


def _replay_calls(
    rank: RankDump, calls: list[Call], casts: bool, device: torch.device, progress: Progress | None
) -> Replay:
    ops: list[ReplayedOp] = []
    skipped: list[Skipped] = []
    with threads_of(rank), damage_seen() as damage:
        for done, call in enumerate(calls):
            try:
                ops.append(_judge(call, casts, device))
            except (ReplayError, MissingDataError, FormatError) as error:
                skipped.append(Skipped(call.name, call.op, call.phase, _without_value(error)))
            except Exception as error:  # noqa: BLE001 - torch, or a library, refuses what the op made: it is left out
                why = f"its results cannot be compared: {said_by(error)}"
                skipped.append(Skipped(call.name, call.op, call.phase, why))
            if progress is not None:
                progress(done + 1, len(calls))
    ops.sort(key=lambda op: (-op.ratio, op.call_id))
    path = str(rank.directory.parent.parent)
    dtype = "float64" if casts else "recorded"
    lacks = lacks_with(rank.lacks, damage)
    return Replay(path, rank.step, rank.rank, str(device), dtype, tuple(ops), tuple(skipped), lacks)


def _layers(rank: RankDump, found: Replay) -> tuple[LayerFault, ...]:
    """Return which layers of a compiler are wrong; () where that cannot be asked."""
    wrong = [(rank.call(op.call_id), op.worst.error) for op in found.suspects]
    try:
        return tuple(layer_faults(rank, wrong))
    except FormatError:
        raise
    except AtenDumpError:
        return ()


def _without_value(error: AtenDumpError) -> str:
    """Return the reason without the value it names, so that equal reasons are counted together."""
    head, colon, reason = str(error).partition(": ")
    return reason if colon and head.startswith("no bytes of value") else str(error)


@contextmanager
def threads_of(rank: RankDump) -> Iterator[None]:
    """Use as many threads as the program did: sums depend on how they are split."""
    recorded = _recorded_threads(rank)
    before = torch.get_num_threads()
    if recorded and recorded != before:
        torch.set_num_threads(recorded)
    try:
        yield
    finally:
        if recorded and recorded != before:
            torch.set_num_threads(before)


def _recorded_threads(rank: RankDump) -> int | None:
    root = rank.directory.parent.parent
    threads = run_at(root).get("threads")  # none for the folder of one rank, copied away from its dump
    return threads if isinstance(threads, int) and 0 < threads < 4096 else None


def _judge(call: Call, casts: bool, device: torch.device) -> ReplayedOp:
    """Replay one call in the recorded dtype and in float64, and measure what it got.

    Raises:
        ReplayError, MissingDataError, FormatError: it cannot be replayed.
    """
    native, failure = attempt(call, False, device)
    reference, wide_failure = _reference(call, device) if casts else (None, None)
    if native is None and (reference is None or failure is None or isinstance(failure, MissingDataError)):
        raise failure or wide_failure or ReplayError("it could not be run")
    results = rounded_otherwise(call, tuple(measured(call, native, reference)), reference)
    if not results:
        raise ReplayError("its results are undefined memory, or it has none: there is nothing to compare")
    forward = call.forward
    return ReplayedOp(
        name=call.name,
        call_id=call.id,
        op=call.op,
        phase=call.phase,
        module=call.module,
        source=call.where,
        forward="" if forward is None else forward.name,
        reference="recorded dtype" if reference is None else "float64",
        results=results,
        drew=native is not None and native.drew,
    )


def _reference(call: Call, device: torch.device) -> tuple[Run | None, AtenDumpError | None]:
    """Run a call in float64: on the CPU where the device has no float64 to rely on, if the CPU has the op."""
    if device.type in _WITH_FLOAT64:
        return attempt(call, True, device)
    on_cpu = attempt(call, True, _CPU)
    return on_cpu if on_cpu[0] is not None else attempt(call, True, device)


__all__ = [
    "Graft",
    "Replay",
    "ReplayResult",
    "ReplayedOp",
    "Skipped",
    "replay",
    "replay_all",
    "replay_call",
    "same_bits",
]
