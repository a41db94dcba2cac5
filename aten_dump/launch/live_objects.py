"""What the program has made before recording begins: its optimizers, and the models whose parameters they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from ..capture.step.live_optimizers import live
from ..capture.torch_internals.compiler import MODULE as COMPILER

# Modules that pass everything on to one other: paths begin below them, and are then the same with and without.
_WRAPPERS: Final = {DataParallel: "module", DistributedDataParallel: "module"}
_COMPILED: Final = (COMPILER, "OptimizedModule")  # not imported: dynamo takes seconds


def optimizers() -> list[Optimizer]:
    """Return the optimizers that are alive; of those that share their parameters, as wrappers do, the first."""
    found: dict[frozenset[int], Optimizer] = {}
    for optimizer in live(Optimizer):
        held = parameters_of([optimizer])
        if held:
            found.setdefault(frozenset(held), optimizer)
    return list(found.values())


def parameters_of(found: Iterable[Optimizer]) -> dict[int, int]:
    """Return the position of each parameter of optimizers by its id."""
    positions: dict[int, int] = {}
    for optimizer in found:
        for group in vars(optimizer).get("param_groups") or ():
            for parameter in group["params"]:
                positions.setdefault(id(parameter), len(positions))
    return positions


def models_of(found: Sequence[Optimizer]) -> dict[str, nn.Module]:
    """Return the models that hold parameters of optimizers, outermost modules only, by a name for each.

    One model has the name ``""``: its paths stand alone. Several have the names of their classes, numbered where
    they would be the same.
    """
    positions = parameters_of(found)
    modules = live(nn.Module)
    inner = {id(child) for module in modules for child in _children(module)}
    models: dict[int, tuple[int, nn.Module]] = {}
    for root in modules:
        if id(root) in inner:
            continue
        first = min((positions[id(p)] for p in root.parameters() if id(p) in positions), default=None)
        if first is not None:
            model = _unwrapped(root)
            models[id(model)] = (first, model)
    return _named([model for _, model in sorted(models.values(), key=lambda pair: pair[0])])


def _children(module: nn.Module) -> Iterable[nn.Module]:
    return [child for child in (vars(module).get("_modules") or {}).values() if child is not None]


def _unwrapped(module: nn.Module) -> nn.Module:
    kind = type(module)
    name = "_orig_mod" if (kind.__module__, kind.__name__) == _COMPILED else _WRAPPERS.get(kind)
    inner = None if name is None else getattr(module, name)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else module


def _named(models: list[nn.Module]) -> dict[str, nn.Module]:
    if len(models) == 1:
        return {"": models[0]}
    names = [type(model).__name__ for model in models]
    found: dict[str, nn.Module] = {}
    for at, (name, model) in enumerate(zip(names, models, strict=True)):
        found[name if names.count(name) == 1 else f"{name}{names[:at].count(name)}"] = model
    return found
