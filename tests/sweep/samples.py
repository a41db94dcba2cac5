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

from .fingerprints import tensors_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "complex64": torch.complex64}


def seed_all(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def samples_of(op: Any, dtype: torch.dtype, limit: int | None) -> list[Any]:
    """Fresh samples, equal to those of any other call bit by bit."""
    seed_all()
    requires_grad = (
        op.supports_autograd and op.supports_dtype(dtype, "cpu") and dtype in op.supported_backward_dtypes("cpu")
    )
    found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    if limit is None or len(found) <= limit:
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


@dataclass
class Outcome:
    """What a run left: the tensors are those of the run itself, to be looked at when no mode is on."""

    results: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    error: tuple[str, str] | None = None
    rng: Tensor | None = None


def run(op: Any, sample: Any) -> Outcome:
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
            outcome.error = type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", str(error))
        outcome.gradients = [t.grad for t in wanted]
    outcome.rng = torch.get_rng_state()
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
    return (torch.arange(tensor.numel()).reshape(tensor.shape) % 7 - 2.5).to(tensor.dtype)
