"""What a training step begins with, to be put back bit by bit: parameters, gradients, buffers, optimizers, generators.

Theory of operation
    Tensors are put back in place, so that all who hold them see the old contents. An optimizer is met when its first
    step begins: until then nobody has changed its state. What a step changes elsewhere (a scheduler, an iterator of
    batches) is not known here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .torch_internals.quiet import quiet

_Kept = tuple[torch.Tensor, torch.Tensor]  # a tensor, and its contents


class StepState:
    """The state of some models, of the optimizers that step, and of all random generators."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        """Keep the state as it is now."""
        self._optimizers: dict[int, tuple[Optimizer, dict[Any, Any], list[dict[str, Any]]]] = {}
        with quiet(), torch.no_grad():
            modules = [module for model in models for module in model.modules()]
            parameters = {id(p): p for module in modules for p in module._parameters.values() if p is not None}
            self._parameters = [(_keep(p), None if p.grad is None else _keep(p.grad)) for p in parameters.values()]
            self._buffers = [
                (module, name, _keep(buffer))
                for module in modules
                for name, buffer in module._buffers.items()
                if buffer is not None
            ]
            self._put_back_generators = _generators()

    @contextmanager
    def watching_optimizers(self) -> Iterator[None]:
        """Keep the state of each optimizer that steps in the block, as its first step begins."""
        hook = register_optimizer_step_pre_hook(self._meet)
        try:
            yield
        finally:
            hook.remove()

    def _meet(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._optimizers:
            return
        with quiet(), torch.no_grad():
            state = {parameter: dict(_kept_items(entry)) for parameter, entry in optimizer.state.items()}
            groups = [
                dict(_kept_items({name: item for name, item in group.items() if name != "params"}))
                for group in optimizer.param_groups
            ]
        self._optimizers[id(optimizer)] = optimizer, state, groups

    def put_back(self) -> None:
        """Put everything back, bit by bit."""
        with quiet(), torch.no_grad():
            for kept, gradient in self._parameters:
                _restore(kept)
                kept[0].grad = None if gradient is None else _restore(gradient)
            for module, name, kept in self._buffers:
                module._buffers[name] = _restore(kept)
            for optimizer, state, groups in self._optimizers.values():
                optimizer.state.clear()
                for parameter, entry in state.items():
                    optimizer.state[parameter] = {name: _restored(item) for name, item in entry.items()}
                for group, kept_group in zip(optimizer.param_groups, groups, strict=True):
                    group.update({name: _restored(item) for name, item in kept_group.items()})
        self._put_back_generators()


def _keep(tensor: torch.Tensor) -> _Kept:
    return tensor, _own_part(tensor).detach().clone()


def _restore(kept: _Kept) -> torch.Tensor:
    tensor, contents = kept
    _own_part(tensor).detach().copy_(contents)
    return tensor


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that this rank holds of a distributed one."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def _kept_items(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, item in entry.items():
        yield name, _keep(item) if isinstance(item, torch.Tensor) else item


def _restored(item: Any) -> Any:
    is_kept = isinstance(item, tuple) and len(item) == 2 and all(isinstance(one, torch.Tensor) for one in item)
    return _restore(item) if is_kept else item


def _generators() -> Callable[[], None]:
    """Return what puts the random generators back as they are now: torch's on all devices, Python's, numpy's."""
    cpu, python = torch.get_rng_state(), random.getstate()
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    on_device = None if device is None else torch.get_device_module(device)
    states = None if on_device is None else on_device.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()

    def put_back() -> None:
        torch.set_rng_state(cpu)
        random.setstate(python)
        if on_device is not None:
            on_device.set_rng_state_all(states)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    return put_back
