"""One watched step: what has the program's tensors seen while it lasts.

Theory of operation
    Everything is put in place when the step begins and taken away when it ends, and none of it is on the program's
    modules or tensors, where copying or saving a model would find it:

    - ``nn.Module.__call__`` is wrapped: the results of chosen modules are measured. Calls that backward makes
      (checkpoints), and those of evaluation (``model.eval()`` without gradients), are left out.
    - A hook of all optimizers (torch's global one): before a step parameters and gradients are measured, as they are
      applied, after clipping; copies of the parameters are kept until it has stepped, and updates are the difference.
    - ``torch.autograd.backward`` is wrapped: what it is called on is the loss. `GradScaler.scale` says what a scaled
      one was; `GradScaler.step` shows that an optimizer was left out.

    An error in any of these is handed to `failed`; it never reaches the program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..capture.torch_internals.engine import DISABLED_DISPATCH, current_graph_task_id
from ..capture.torch_internals.patches import Patch
from ..capture.torch_internals.quiet import quiet
from .measurements import Key, Measurements, Tally

LOSS: Final = Key("loss", "")


class Watched(NamedTuple):
    """What is watched in a step.

    Attributes:
        parameters: names by the ids of parameters that require gradients.
        modules: names by the ids of chosen modules.
        parts: of `run_watch.PARTS`.
        formats: of `number_formats.FORMATS`.
    """

    parameters: dict[int, tuple[str, torch.Tensor]]
    modules: dict[int, str]
    parts: frozenset[str]
    formats: tuple[str, ...]


class WatchedStep:
    """Measures what runs from now until `remove`.

    Args:
        watched: what is watched.
        failed: is called with an error of the measuring.
    """

    def __init__(self, watched: Watched, failed: Callable[[Exception], None]) -> None:
        self._watched = watched
        self._failed = failed
        self._thread = threading.get_ident()
        self._measured = Measurements(watched.formats)
        self._alive: dict[str, torch.Tensor] = {}  # of the units of modules: which were not 0
        self._before: dict[int, torch.Tensor] = {}  # copies of parameters while an optimizer steps
        self._stepped: set[int] = set()  # ids of parameters that were measured
        self._unscaled: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # losses by the ids of scaled ones
        self.hyperparameters: dict[str, float] = {}
        self.skipped = False  # a GradScaler has left out an optimizer
        self._optimizers: list[Optimizer] = []
        self._hook: Any = None
        self._patches: list[Patch] = []
        self._install()

    def _install(self) -> None:
        parts = self._watched.parts
        if self._watched.modules:
            _MODULE_CALLS.begin(self)
        if "loss" in parts:
            self._patches.append(Patch(torch.autograd, "backward", self._of_backward(torch.autograd.backward)))
            self._patches.append(Patch(torch.amp.GradScaler, "scale", self._of_scale(torch.amp.GradScaler.scale)))
        self._patches.append(Patch(torch.amp.GradScaler, "step", self._of_scaler(torch.amp.GradScaler.step)))
        self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._guarded(self._before_step, optimizer))

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Measure the updates: an optimizer of the process has stepped."""
        self._guarded(self._after_step, optimizer)

    def remove(self) -> None:
        """Take everything away. Idempotent."""
        hook, patches, self._hook, self._patches = self._hook, self._patches, None, []
        if hook is not None:
            hook.remove()
        for patch in reversed(patches):
            patch.undo()
        _MODULE_CALLS.end(self)
        self._before.clear()

    def finish(self, loss: Any = None) -> dict[Key, Tally]:
        """Return what was measured; `loss`, if the program gave one, goes before what was seen."""
        self.remove()
        for number, (name, parameter) in self._watched.parameters.items():
            if number not in self._stepped:
                self._measure(name, parameter, 0.0)
        for name, alive in self._alive.items():
            with quiet():
                self._measured.add_number(Key("activation", name), "dead", 1 - alive.float().mean())
        tallies = self._measured.collect()
        if loss is not None:
            value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            one = Measurements()
            one.add(LOSS, value)
            tallies[LOSS] = one.collect().get(LOSS, Tally())
        elif LOSS in tallies:  # the sum of what backward was called on: the gradients are those of it
            found = tallies[LOSS]
            found.mean, found.count, found.spread = found.mean * found.count, 1, 0.0
        return tallies

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        if self._hook is None:
            return  # somebody has wrapped ours, and still calls it
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._failed(error)

    # -- activations

    def returned(self, module: nn.Module, result: Any) -> None:
        """Measure what a module has returned, if it is chosen."""
        name = self._watched.modules.get(id(module))
        if name is not None:
            self._guarded(self._returned, module, name, result)

    def _returned(self, module: nn.Module, name: str, result: Any) -> None:
        is_evaluation = not module.training and not torch.is_grad_enabled()
        if is_evaluation or current_graph_task_id() != -1 or threading.get_ident() != self._thread:
            return
        tensor = next(_tensors(result), None)
        found = None if tensor is None else _elements(tensor)
        if found is None or not found.is_floating_point() or not found.numel():
            return
        self._measured.add(Key("activation", name), found)
        if found.dim() > 1:
            with quiet():
                units = 1 if found.dim() > 3 else found.dim() - 1
                alive = (found.detach() != 0).movedim(units, 0).flatten(1).any(1)
                before = self._alive.get(name)
                self._alive[name] = alive if before is None or before.shape != alive.shape else before | alive

    # -- the loss

    def _of_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._guarded(self._losses, tensors)
            original(tensors, *args, **kwargs)

        return backward

    def _losses(self, tensors: Any) -> None:
        if is_dynamo_compiling() or current_graph_task_id() != -1:
            return
        for tensor in _tensors(tensors):
            scaled = self._unscaled.get(id(tensor))
            found = _elements(scaled[1] if scaled is not None else tensor)
            if found is not None and found.numel() == 1:
                self._measured.add(LOSS, found)

    def _of_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and isinstance(result, torch.Tensor) and self._hook is not None:
                self._unscaled[id(result)] = result.detach(), outputs.detach()
            return result

        return scale

    def _of_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self._optimizers)
            result = original(scaler, optimizer, *args, **kwargs)
            self._guarded(self._scaler_stepped, scaler, optimizer, before == len(self._optimizers))
            return result

        return step

    def _scaler_stepped(self, scaler: Any, optimizer: Any, is_left_out: bool) -> None:
        self.hyperparameters["loss_scale"] = float(scaler.get_scale())
        if is_left_out:
            self.skipped = True
            self._before_step(optimizer)
            self._before.clear()

    # -- parameters

    def _before_step(self, optimizer: Any) -> None:
        if not any(one is optimizer for one in self._optimizers):
            self._optimizers.append(optimizer)
        for label, group in self._groups(optimizer):
            numbers = dict(_numbers(group))
            self.hyperparameters |= {f"{name}/{label}": number for name, number in numbers.items()}
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in self._stepped and parameter.grad is not None:
                    self._measure(self._name(parameter, label, place), parameter, numbers.get("lr", 0.0))
                    self._keep(parameter)

    def _groups(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        at = next(n for n, one in enumerate(self._optimizers) if one is optimizer)
        for number, group in enumerate(optimizer.param_groups):
            yield f"group{number}" if not at else f"optimizer{at}.group{number}", group

    def _name(self, parameter: torch.Tensor, label: str, place: int) -> str:
        known = self._watched.parameters.get(id(parameter))
        return known[0] if known is not None else f"{label}.{place}"

    def _measure(self, name: str, parameter: torch.Tensor, rate: float) -> None:
        self._stepped.add(id(parameter))
        parts = self._watched.parts
        for part, kind, tensor in (("parameters", "parameter", parameter), ("gradients", "gradient", parameter.grad)):
            found = None if tensor is None or part not in parts else _elements(tensor)
            if found is not None and tensor is not None:
                self._measured.add(Key(kind, name), found, tensor.numel(), rate)

    def _keep(self, parameter: torch.Tensor) -> None:
        found = _elements(parameter) if "updates" in self._watched.parts else None
        if found is not None:
            with quiet():
                self._before[id(parameter)] = found.detach().clone()

    def _after_step(self, optimizer: Any) -> None:
        if not self._before:
            return
        for label, group in self._groups(optimizer):
            for place, parameter in enumerate(group["params"]):
                before = self._before.pop(id(parameter), None)
                after = None if before is None else _elements(parameter)
                if before is None or after is None:
                    continue
                with quiet():
                    wide = torch.float32 if after.element_size() < 4 else after.dtype
                    update = after.detach().to(wide) - before.to(wide)
                self._measured.add(Key("update", self._name(parameter, label, place)), update, parameter.numel())


class _ModuleCalls:
    """The wrapper of ``nn.Module.__call__``, and the steps that look at what modules return.

    It is one function without a closure: the compiler would guard on what is in that, and compile again in the first
    step without it.
    """

    def __init__(self) -> None:
        self.steps: list[WatchedStep] = []
        self.original: Callable[..., Any] = nn.Module.__call__
        self._patch: Patch | None = None  # while it is in place, below whatever others have put around it

    def begin(self, step: WatchedStep) -> None:
        """Show results to a step until `end`."""
        self.steps.append(step)
        if self._patch is None:
            self.original = nn.Module.__call__
            self._patch = Patch(nn.Module, "__call__", _module_call)

    def end(self, step: WatchedStep) -> None:
        """Show nothing more to a step. Idempotent."""
        if step in self.steps:
            self.steps.remove(step)
            if not self.steps and self._patch is not None and self._patch.undo():
                self._patch = None


_MODULE_CALLS: Final = _ModuleCalls()


def _module_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    result = _MODULE_CALLS.original(module, *args, **kwargs)
    if not is_dynamo_compiling():
        for step in _MODULE_CALLS.steps:
            step.returned(module, result)
    return result


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of what a module returns, not below the second level."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, Mapping)):
        for one in tree.values() if isinstance(tree, Mapping) else tree:
            if isinstance(one, torch.Tensor):
                yield one


def _elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what holds the elements of a tensor on this rank; None of one whose elements are no plain memory."""
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):  # a DTensor
        return _elements(local)
    if tensor.layout is not torch.strided:
        with quiet():
            return tensor.detach().coalesce().values() if tensor.layout is torch.sparse_coo else None
    kind = type(tensor)
    plain = kind in (torch.Tensor, nn.Parameter) or getattr(kind, "__torch_dispatch__", None) is DISABLED_DISPATCH
    return tensor if plain and tensor.device.type != "meta" else None


def _numbers(group: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a group of parameters: its learning rate, momentum, ..."""
    for name, value in group.items():
        for at, one in enumerate(value) if isinstance(value, tuple) else [(None, value)]:
            if isinstance(one, torch.Tensor) and one.numel() == 1:
                one = one.item()
            if isinstance(one, (int, float)) and not isinstance(one, bool):
                yield name if at is None else f"{name}.{at}", float(one)
