"""Sixty and more faults in compiled code of models that no other test has: which layer each is in, and what is said of it.

    python -m tests.analysis.layers.planted

plants all of them, one after the other, and prints a table of what `replay` and `compare` name. Slow: each compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.analysis.comparison import Comparison
from tests.analysis.layers.faults import custom_pass, decomposition, first, lowering
from tests.analysis.layers.unseen import MODELS, SLIPS, Slip

aten = torch.ops.aten
Inject = Callable[[], contextlib.AbstractContextManager[Any]]
SEED = 48
ROWS = 8


@dataclass(frozen=True)
class Verdict:
    """What is said of a fault.

    Attributes:
        layer: that is named first, "" where none is.
        name: of the culprit in that layer.
        is_named: the culprit is the one that was planted.
        is_accused: `replay` or `compare` did not pass the program.
    """

    layer: str
    name: str
    is_named: bool
    is_accused: bool


@dataclass(frozen=True)
class Planted:
    """A fault in the compiled code of a model.

    Attributes:
        layer: that it is in.
        model: a name of `MODELS`.
        named: what the name of the culprit has in it; a kernel's is known once it was planted.
        inject: puts it in.
    """

    layer: str
    model: str
    named: str
    inject: Inject
    culprits: list[str] = field(default_factory=list)  # sources of kernels that were changed, as they are right

    def verdict(self, folder: Path) -> Verdict | None:
        """Plant it, record the model compiled, and ask what is wrong; None if it changes no more than rounding does."""
        path = str(folder / "wrong")
        right = right_results(self.model)
        self.culprits.clear()
        try:
            with self.inject():
                wrong = trained(self.model, folder / "wrong")
        except torch._inductor.exc.InductorError:  # no code that a compiler takes
            return None
        if all(float((a - b).norm()) <= 1e-4 * float(a.norm()) for a, b in zip(right, wrong, strict=True)):
            return None
        found = replay(path)
        layer = found.layers[0] if found.layers else None
        name = "" if layer is None else layer.name
        return Verdict(
            "" if layer is None else layer.layer, name, self._is_named(path, name), bool(found.layers or found.suspects)
        )

    def _is_named(self, path: str, name: str) -> bool:
        if not self.culprits:
            return bool(name) and self.named in name
        wrong = {_body(code) for code in self.culprits}
        calls = open_dump(path).step(0).rank(0).calls
        return name in {call.name for call in calls if call.kernel is not None and _body(call.kernel.code) in wrong}


def _body(code: str) -> str:
    return code[code.index("{") :]


def trained(model: str, path: Path | None) -> list[Tensor]:
    """Run a model forward and backward, compiled, and return its loss and gradients; recorded to `path`, if given."""
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    made = MODELS[model]()
    compiled = torch.compile(made)
    x = torch.randn(ROWS, 24)
    config = None if path is None else DumpConfig(path=str(path), data="tensor", compile="kernels")
    with contextlib.nullcontext() if config is None else DumpMode(config, model=made):
        loss = compiled(x)
        loss.backward()
    return [loss.detach(), *(p.grad for p in made.parameters() if p.grad is not None)]


# -- kernels


@contextlib.contextmanager
def slipped(slip: Slip, kernel: int, place: int, changed: list[str]) -> Iterator[None]:
    """Change the source of one generated kernel: of those where a slip fits, the one of a number, counted from 0."""
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.cpp_pybinding
    seen: list[str] = []

    def wrong(self: Any, types: Any, code: str) -> Any:
        other = slip.applied(code, place)
        if other is not None and code not in seen:
            seen.append(code)
        if other is not None and len(seen) > kernel and seen[kernel] == code:
            changed.append(code)
            code = other
        return original(self, types, code)

    AsyncCompile.cpp_pybinding = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original  # type: ignore[method-assign]


def _slip(name: str, model: str, kernel: int = 0, place: int = 0) -> Planted:
    culprits: list[str] = []
    return Planted("kernel", model, "", lambda: slipped(SLIPS[name], kernel, place, culprits), culprits)


def _kernels() -> Iterator[tuple[str, Planted]]:
    """Yield slips in kernels, drawn by a seed: each kind of slip in one model, then in another, and so on."""
    draw = random.Random(SEED)
    drawn: list[list[tuple[str, Planted]]] = []
    for name in SLIPS:
        drawn.append([])
        for model in draw.sample(sorted(MODELS), len(MODELS)):
            kernel, place = draw.randrange(2), draw.randrange(5)
            drawn[-1].append((f"{name}, {model}, kernel {kernel}, place {place}", _slip(name, model, kernel, place)))
    for some in zip(*drawn, strict=True):
        yield from some


# -- decompositions, passes and lowerings


def _scaled(tensor: Tensor) -> Tensor:
    return tensor * 1.02


def _shifted(tensor: Tensor) -> Tensor:
    return tensor + 0.01


def _cut(tensor: Tensor) -> Tensor:
    return tensor.clamp(max=0.3)


def _halved(tensor: Tensor) -> Tensor:
    return torch.where(tensor > 0, tensor, tensor * 0.5)


_DECOMPOSED: list[tuple[Any, str, Callable[[Tensor], Tensor]]] = [
    (aten.tanh_backward.default, "highway", _scaled),
    (aten.sigmoid_backward.default, "highway", _halved),
    (aten.lerp.Tensor, "recurrent", _shifted),
    (aten.smooth_l1_loss.default, "recurrent", _scaled),
    (aten.smooth_l1_loss_backward.default, "recurrent", _halved),
    (aten.softplus.default, "mixture", _cut),
    (aten.softplus_backward.default, "mixture", _scaled),
    (aten._log_softmax.default, "mixture", _shifted),
    (aten._log_softmax_backward_data.default, "mixture", _scaled),
    (aten.native_group_norm.default, "squeeze", _cut),
    (aten.native_group_norm_backward.default, "squeeze", _scaled),
    (aten.hardswish.default, "squeeze", _halved),
    (aten.hardswish_backward.default, "squeeze", _scaled),
    (aten.leaky_relu.default, "squeeze", _shifted),
    (aten.leaky_relu_backward.default, "squeeze", _halved),
    (aten._softmax.default, "slopes", _cut),
    (aten._softmax_backward_data.default, "slopes", _scaled),
    (aten.silu.default, "slopes", _halved),
    (aten.silu_backward.default, "slopes", _scaled),
    (aten.elu.default, "kernels", _shifted),
    (aten.elu_backward.default, "kernels", _halved),
    (aten.threshold_backward.default, "kernels", _scaled),
]


def _decompositions() -> Iterator[tuple[str, Planted]]:
    for op, model, change in _DECOMPOSED:
        name = op.name().partition(".")[0]
        title = f"decomposition of {name}, {change.__name__.strip('_')}, {model}"
        yield title, Planted("decomposition", model, name, _decomposed(op, change))


def _decomposed(op: Any, change: Callable[[Tensor], Tensor]) -> Inject:
    return lambda: decomposition(op, first(change))


def _added(node: Any) -> None:
    node.target = aten.add.Tensor


def _squared(node: Any) -> None:
    node.args = (node.args[0], node.args[0])


def _dropped(node: Any) -> None:
    """Leave out the first product that is as large as its first factor: else the graph would read beyond memory."""
    for one in node.graph.nodes:
        if one.target is aten.mul.Tensor and one.meta["val"].shape == one.args[0].meta["val"].shape:
            one.replace_all_uses_with(one.args[0])
            return


def _passes() -> Iterator[tuple[str, Planted]]:
    changes = ((_added, "highway"), (_squared, "slopes"), (_dropped, "recurrent"))
    hooks = (
        "joint_custom_pre_pass",
        "post_grad_custom_post_pass",
        "joint_custom_post_pass",
        "post_grad_custom_pre_pass",
    )
    for number in range(len(hooks) * len(changes)):
        where, (change, model) = hooks[number % len(hooks)], changes[number % len(changes)]
        title = f"{where}, {change.__name__.strip('_')}, {model}"
        yield title, Planted("pass", model, where, _passed(where, change))
    for where in hooks[:2]:  # of another shape than the graph says, so that it cannot be run
        for model in ("squeeze", "slopes", "mixture"):
            yield f"{where}, left out, {model}", Planted("pass", model, where, _passed(where, _left_out))


def _left_out(node: Any) -> None:
    node.replace_all_uses_with(next(item for item in node.args if isinstance(item, torch.fx.Node)))


def _passed(where: str, change: Callable[[Any], None]) -> Inject:
    return lambda: custom_pass(where, change)


def _lowerings() -> Iterator[tuple[str, Planted]]:
    for op, model in (
        (aten.tanh.default, "recurrent"),
        (aten.log.default, "mixture"),
        (aten.rsqrt.default, "slopes"),
        (aten.sigmoid.default, "squeeze"),
    ):
        yield f"lowering of {op.name()}, {model}", Planted("kernel", model, "cpp_fused", _lowered(op))


def _lowered(op: Any) -> Inject:
    return lambda: lowering(op, lambda made, mul: mul(made, 1.03))


# -- guards


class Settings:
    """What a program is told, and changes between steps."""

    scale = 2.0
    is_gated = False
    powers: tuple[int, ...] = (1, 2)
    names: dict[str, float] = {"slope": 0.1}  # noqa: RUF012 - as programs have them


SHIFT = 0.5


class Rate:
    """A function, and the number that it closes over."""

    def __init__(self) -> None:
        rate = 1.0

        def applied(x: Tensor) -> Tensor:
            return x * rate

        def change(other: float) -> None:
            nonlocal rate
            rate = other

        self.applied, self.change = applied, change


class Told(nn.Module):
    """Computes with a number, a flag, a list, a dictionary, a global, a closure, and modules that can change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.settings, self.rate = nn.Linear(24, 12), Settings(), Rate()
        self.act: nn.Module = nn.Softplus()
        self.norm, self.parts, self.kind = nn.BatchNorm1d(12), nn.ModuleList([nn.Linear(12, 12)]), "sin"

    def forward(self, x: Tensor) -> Tensor:
        h = self.rate.applied(self.layer(x) * self.settings.scale + SHIFT)
        if self.settings.is_gated:
            h = h * torch.sigmoid(h)
        for power in self.settings.powers:
            h = h + torch.tanh(h) ** power
        for part in self.parts:
            h = h + self.act(part(h))
        h = self.norm(h) + getattr(torch, self.kind)(h)
        return nn.functional.leaky_relu(h, self.settings.names["slope"]).square().mean()


def _other_number(model: Told) -> None:
    model.settings.scale = 2.5


def _other_flag(model: Told) -> None:
    model.settings.is_gated = True


def _more_items(model: Told) -> None:
    model.settings.powers = (1, 2, 3)


def _other_entry(model: Told) -> None:
    model.settings.names = {"slope": 0.4}


def _other_global(model: Told) -> None:
    global SHIFT
    SHIFT = 0.9


def _other_cell(model: Told) -> None:
    model.rate.change(1.5)


def _other_module(model: Told) -> None:
    model.act = nn.Softsign()


def _more_modules(model: Told) -> None:
    model.parts.append(model.parts[0])


def _evaluation(model: Told) -> None:
    model.norm.eval()


def _other_function(model: Told) -> None:
    model.kind = "cos"


def _a_hook(model: Told) -> None:
    model.layer.register_forward_hook(lambda module, given, result: result * 1.3)


CHANGES = {
    change.__name__.strip("_"): change
    for change in (
        *(_other_number, _other_flag, _more_items, _other_entry, _other_global, _other_cell),
        *(_other_module, _more_modules, _evaluation, _other_function, _a_hook),
    )
}


@dataclass(frozen=True)
class Stale:
    """A guard that does not see what the program changes between two steps."""

    change: Callable[[Told], None]
    layer: str = "guard"

    def verdict(self, folder: Path) -> Verdict:
        """Record both steps without guards, and as written, and compare them."""
        found = self.compared(folder, {"options": {"guard_filter_fn": lambda guards: [False] * len(guards)}})
        said = re.search(r"layer, in the target: (\w+): (graph \w+)", found.answer())
        layer, name = (said[1], said[2]) if said else ("", "")
        return Verdict(layer, name, name.endswith("_forward"), found.exit_code == 1)

    def compared(self, folder: Path, options: dict[str, Any]) -> Comparison:
        """Record both steps compiled with some options, and as written, and compare them."""
        self._run(folder / "compiled", options)
        self._run(folder / "written", None)
        return compare(str(folder / "compiled"), str(folder / "written"))

    def _run(self, path: Path, options: dict[str, Any] | None) -> None:
        global SHIFT
        SHIFT = 0.5
        torch._dynamo.reset()
        torch.manual_seed(SEED)
        model = Told()
        run: Any = model if options is None else torch.compile(model, **options)
        with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels"), model=model) as dump:
            for number in range(2):
                if number:
                    self.change(model)
                run(torch.linspace(-1, 1, ROWS * 24).reshape(ROWS, 24)).backward()
                dump.step()


def _guards() -> Iterator[tuple[str, Stale]]:
    for name, change in CHANGES.items():
        yield f"guard blind to {name.replace('_', ' ')}", Stale(change)


@cache
def right_results(model: str) -> list[Tensor]:
    """Return what a model comes to without any fault."""
    return trained(model, None)


Fault = Planted | Stale
WANTED = {"kernel": 30, "decomposition": 15, "pass or lowering": 10, "guard": 11}


def faults() -> dict[str, dict[str, Fault]]:
    """Return all faults by kind and name; more than are wanted, as some do not show in a model."""
    return {
        "kernel": dict(_kernels()),
        "decomposition": dict(_decompositions()),
        "pass or lowering": {**dict(_lowerings()), **dict(_passes())},
        "guard": dict(_guards()),
    }


def main() -> None:
    """Plant the faults and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kind", choices=WANTED, action="append", help="only these (default: all)")
    parser.add_argument(
        "--part", default="", help="only those in whose name this regular expression is found (default: all)"
    )
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| fault | planted in | layer named | culprit named | passed |\n|---|---|---|---|---|")
    totals: dict[str, Counter[str]] = {}
    for kind, known in faults().items():
        if given.kind and kind not in given.kind:
            continue
        total = totals[kind] = Counter()
        for name, fault in known.items():
            if total["planted"] == WANTED[kind]:
                break
            if not re.search(given.part, name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = fault.verdict(Path(folder))
            if found is None:
                continue
            total.update(planted=1, layer=found.layer == fault.layer, named=found.is_named, passed=not found.is_accused)
            culprit = "yes" if found.is_named else f"no: {found.name or 'none'}"
            print(
                f"| {name} | {fault.layer} | {found.layer or 'none'} | {culprit} | {'no' if found.is_accused else 'YES'} |",
                flush=True,
            )
    print("\n| faults | planted | right layer | named | passed |\n|---|---|---|---|---|")
    for kind, total in totals.items():
        print(f"| {kind} | {total['planted']} | {total['layer']} | {total['named']} | {total['passed']} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
