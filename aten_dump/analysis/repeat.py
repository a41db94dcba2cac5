"""Repeat: run each recorded op several times from the same inputs, and name those whose bits are not the same twice.

Theory of operation
    An op that is not deterministic makes runs that cannot be repeated, and hides silent data corruption and races.
    Each op runs from its recorded inputs, random ones from the recorded state of the generator, so that equal runs have
    equal bits. PyTorch documents ops that may not be deterministic on some devices; these are listed apart, as they
    are what was asked for. Any other op that differs is a fault of a kernel, of the memory, or of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from ..dump import Call
from ..dump.wholeness import lacks_with
from ..errors import ConfigError, FormatError, MissingDataError, ReplayError
from ..store.damage_seen import damage_seen
from ..store.op_names import is_workspace, read_op_name
from .given_device import usable_device
from .given_dumps import Given
from .host_default import made_on_the_host
from .replay import Progress, calls_of, threads_of
from .replay_result import Skipped
from .rerun.allowed_ops import allowing
from .rerun.run_op import Run, recorded_slots, result_slots, run_call, same_bits

# Ops that `torch.use_deterministic_algorithms` is documented to change or to refuse, by name without "_" at the end;
# and backward of fused attention, of which torch warns where that is on.
_FORWARD: Final = (
    "index_add index_copy index_put _index_put_impl put scatter scatter_add scatter_reduce histc bincount median "
    "cumsum convolution cudnn_convolution cudnn_convolution_transpose nll_loss2d_forward "
    "nll_loss2d max_unpool2d max_unpool3d"
)
_BACKWARD: Final = (
    "convolution nll_loss2d _ctc_loss _cudnn_ctc_loss _embedding_bag_dense grid_sampler_2d grid_sampler_3d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d max_pool3d_with_indices fractional_max_pool2d "
    "fractional_max_pool3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention"
)
_DOCUMENTED: Final = frozenset(_FORWARD.split()) | {f"{name}_backward" for name in _BACKWARD.split()}


@dataclass(frozen=True, slots=True)
class UnsteadyOp:
    """An op whose result had other bits when it was run again."""

    name: str
    op: str
    phase: str
    module: str
    source: str  # "file:line in function" of the user's code, "" where unknown
    slot: str  # the first result that differs
    elements: int  # of it that differ in some run
    numel: int
    greatest: float | None  # difference between elements that are finite; None for what is no number
    run: int  # the first run that differs, counted from 2
    documented: bool  # PyTorch documents it as one that may not be deterministic


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of running the ops of a step and rank several times."""

    path: str
    step: int
    rank: int
    device: str
    times: int
    ops: int  # that were run
    unsteady: tuple[UnsteadyOp, ...]  # in execution order
    skipped: tuple[Skipped, ...]  # in execution order
    lacks: str = ""  # what the recording lacks; "" for a whole one

    @property
    def guilty(self) -> tuple[UnsteadyOp, ...]:
        """The ops that differ and are not documented to."""
        return tuple(op for op in self.unsteady if not op.documented)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; ``docs/json/replay-repeat.schema.json`` describes them."""
        return {"schema": 1, **asdict(self)}


@made_on_the_host
def repeat(
    target: Call | Sequence[Call] | Given,
    times: int = 10,
    *,
    device: torch.device | str = "cpu",
    allow_ops: Sequence[str] = (),
    progress: Progress | None = None,
) -> Repeated:
    """Run recorded aten ops several times, each from its own recorded inputs, in the recorded dtypes.

    Args:
        target: as `replay` takes it.
        times: how often each op runs, 2 or more.
        device: where to run them.
        allow_ops: ops of libraries to run too, as ``["mylib::*"]``.
        progress: called with how many ops are done, of how many.

    Raises:
        ConfigError: `times` is no whole number from 2 on.
        MissingDataError: no bytes were recorded, or there are no aten calls.
    """
    if not isinstance(times, int) or isinstance(times, bool) or times < 2:
        raise ConfigError(f"repeat got times={times!r}; allowed: a whole number from 2 on")
    rank, calls = calls_of(target)
    place = usable_device(device)
    ran, unsteady, skipped = 0, list[UnsteadyOp](), list[Skipped]()
    with allowing(allow_ops), threads_of(rank), damage_seen() as damage:
        for done, call in enumerate(calls):
            try:
                found = _judge(call, times, place)
                ran += 1
                unsteady += [] if found is None else [found]
            except (ReplayError, MissingDataError, FormatError) as error:
                skipped.append(Skipped(call.name, call.op, call.phase, str(error)))
            if progress is not None:
                progress(done + 1, len(calls))
    path, lacks = str(rank.directory.parent.parent), lacks_with(rank.lacks, damage)
    return Repeated(path, rank.step, rank.rank, str(place), times, ran, tuple(unsteady), tuple(skipped), lacks)


def _judge(call: Call, times: int, device: torch.device) -> UnsteadyOp | None:
    first = dict(_judged(call, run_call(call, device=device)))
    for number in range(2, times + 1):
        for slot, item in _judged(call, run_call(call, device=device)):
            if not same_bits(first.get(slot), item):
                elements, numel, greatest = _apart(first.get(slot), item)
                return UnsteadyOp(
                    call.name, call.op, call.phase, call.module, call.where, slot, elements, numel, greatest, number,
                    is_documented(call.op),
                )  # fmt: skip
    return None


def _judged(call: Call, run: Run) -> list[tuple[str, Any]]:
    """Return the results that have defined contents; undefined memory and workspaces may hold anything."""
    recorded = dict(recorded_slots(call))
    return [
        (slot, item)
        for slot, item in result_slots(run)
        if not (getattr(recorded.get(slot), "undefined", False) or is_workspace(call.op, slot))
    ]


def _apart(one: Any, other: Any) -> tuple[int, int, float | None]:
    """Return how many elements differ, of how many, and by how much the finite ones do."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return 1, 1, None
    first, second = (item.detach().cpu().to_dense() for item in (one, other))
    unequal = (first != second) & ~((first != first) & (second != second))
    apart = (first.to(torch.complex128) - second.to(torch.complex128)).abs()
    finite = apart[apart.isfinite()]
    return int(unequal.sum()), first.numel(), float(finite.max()) if finite.numel() else None


def is_documented(op: str) -> bool:
    """Return True if PyTorch documents an op as one that may not be deterministic on some device."""
    return read_op_name(op).name.rstrip("_") in _DOCUMENTED
