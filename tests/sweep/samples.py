"""Samples of `op_db`, and one run of one: forward, backward, and what came of it.

Importing op_db changes torch's global flags (``torch.backends`` cannot be set any more): the sweep runs in processes of
its own.
"""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests import devices

from .exclusions import MADE_ON_CPU
from .fingerprints import tensors_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "complex64": torch.complex64}

_OTHER_EACH_TIME = r"0x[0-9a-f]+|\[ERROR\] \S+"  # in texts of errors: addresses, and torch_npu's time of day


def seed_all(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def samples_of(op: Any, dtype: torch.dtype, limit: int | None, device: str = "cpu") -> list[Any]:
    """Fresh samples on a device, equal to those of any other call bit by bit."""
    seed_all()
    requires_grad = (
        op.supports_autograd and op.supports_dtype(dtype, device) and dtype in op.supported_backward_dtypes(device)
    )
    made_on = "cpu" if device == "npu" and full_name(op) in MADE_ON_CPU else device
    found = list(op.sample_inputs(made_on, dtype, requires_grad=requires_grad))
    if limit is None or len(found) <= limit:
        chosen = found
    else:
        chosen = [found[i * len(found) // limit] for i in range(limit)]
    if made_on != device:
        for sample in chosen:
            sample.input, sample.args, sample.kwargs = moved((sample.input, sample.args, sample.kwargs), device)
    return chosen


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def moved(tree: Any, device: str) -> Any:
    """The same arguments on a device."""

    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.detach().to(device).requires_grad_(x.requires_grad)
        return device if isinstance(x, (str, torch.device)) and str(x) == "cpu" else x

    return pytree.tree_map(move, tree)


@dataclass
class Outcome:
    """What a run left: the tensors are those of the run itself, to be looked at when no mode is on."""

    results: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    error: tuple[str, str] | None = None
    rng: list[Tensor] = field(default_factory=list)


def run(op: Any, sample: Any, device: str = "cpu") -> Outcome:
    """Run an op and the backward of its results."""
    outcome = Outcome()
    outcome.inputs = list(tensors_of((sample.input, list(sample.args), sample.kwargs)))
    wanted = [t for t in outcome.inputs if t.requires_grad]
    for tensor in wanted:
        if not tensor.is_leaf:
            tensor.retain_grad()
    seed_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = op.op(sample.input, *sample.args, **sample.kwargs)
            outcome.results = list(tensors_of(result))
            _backward(sample, result)
        except Exception as error:
            outcome.error = type(error).__name__, re.sub(_OTHER_EACH_TIME, "", str(error))
        outcome.gradients = [t.grad for t in wanted]
    outcome.rng = devices.random_states(device)
    return outcome


def _backward(sample: Any, result: Any) -> None:
    process = getattr(sample, "output_process_fn_grad", None)
    ends = [t for t in tensors_of(process(result) if process else result) if t.requires_grad]
    if ends:
        torch.autograd.backward(ends, [_gradient_of(t) for t in ends])


def _gradient_of(tensor: Tensor) -> Tensor:
    """Some gradient, no two elements of which are alike."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return torch.ones_like(tensor)
    return (torch.arange(tensor.numel()).reshape(tensor.shape) % 7 - 2.5).to(tensor)
