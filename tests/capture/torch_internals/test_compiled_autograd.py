"""Compiled autograd under the dump: the program runs as it does bare, and the dump says what it does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.torch_internals.compiled_autograd import PassCompiler, compiles_passes
from tests.capture.same_outcome import batch, note, outcome, recorded
from tests.models import seed_all
from tests.sampling import diagonal


def _compiles_passes_under_modes() -> bool:
    class Plain(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    loss = torch.ones(1, requires_grad=True).exp().sum()
    try:
        with Plain(), compiled_autograd._enable(lambda graph: graph):
            loss.backward()
    except RuntimeError:  # TorchDispatchMode not yet implemented for compiled autograd
        return False
    finally:
        torch._dynamo.reset()
    return True


needs_compiled_passes_under_modes = pytest.mark.skipif(
    not _compiles_passes_under_modes(), reason="this torch refuses compiled autograd under any dispatch mode"
)
pytestmark = pytest.mark.filterwarnings("ignore:aten_dump. the compiled function")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compile(fullgraph: bool = False) -> Callable[..., Any]:
    compiler: Callable[..., Any] = torch.compile(backend="eager", fullgraph=fullgraph)
    return compiler


def _model() -> nn.Module:
    seed_all(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def _loss_before(model: nn.Module) -> None:
    loss = model(batch()).sum()
    with compiled_autograd._enable(_compile()):
        loss.backward()


def _all_inside(model: nn.Module) -> None:
    with compiled_autograd._enable(_compile(fullgraph=True)):
        model(batch()).sum().backward()
    model(batch()).sum().backward()


def _hooks(model: nn.Module) -> None:
    y = model(batch())
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda gradients: tuple(g * 2 for g in gradients))
    y.grad_fn.register_hook(lambda sent, received: None)
    with compiled_autograd._enable(_compile()):
        y.sum().backward()


@needs_compiled_passes_under_modes
@pytest.mark.parametrize(
    ("how", "passes"),
    diagonal(
        ["eager", "opaque"], [_loss_before, _all_inside, _hooks], ids=lambda one: getattr(one, "__name__", str(one))
    ),
)
def test_the_program_runs_as_it_does_bare(tmp_path: Path, how: str, passes: Callable[[nn.Module], None]) -> None:
    model = _model()

    def program() -> list[Tensor | None]:
        model.zero_grad()
        passes(model)
        return [p.grad for p in model.parameters()]

    rank = recorded(tmp_path, program, compile=how)
    assert note(rank, "compiled_autograd").count == 1


@needs_compiled_passes_under_modes
def test_it_may_be_on_before_a_step_begins_and_stay_on(tmp_path: Path) -> None:
    model = _model()

    def steps(dump: DumpMode | None) -> list[Tensor | None]:
        model.zero_grad()
        with compiled_autograd._enable(_compile()):
            for _ in range(2):
                model(batch()).sum().backward()
                if dump is not None:
                    dump.step()
        return [p.grad for p in model.parameters()]

    bare = outcome(lambda: steps(None))
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")) as dump:
        assert outcome(lambda: steps(dump)) == bare
    ranks = [open_dump(tmp_path / "dump").rank(step, 0) for step in (0, 1)]
    assert [note(rank, "compiled_autograd").count for rank in ranks] == [1, 1]


@needs_compiled_passes_under_modes
def test_a_step_that_only_began_while_it_was_on_leaves_no_files(tmp_path: Path) -> None:
    model, x = _model(), batch()
    with compiled_autograd._enable(_compile()), DumpMode(DumpConfig(path=str(tmp_path / "dump"))) as dump:
        model(x).sum().backward()
        dump.step()
    assert list(open_dump(tmp_path / "dump").steps) == [0]


@needs_compiled_passes_under_modes
def test_passes_before_and_after_it_have_their_nodes(tmp_path: Path) -> None:
    model = _model()
    x = batch()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        model(x).sum().backward()
        with compiled_autograd._enable(_compile()):
            model(x).sum().backward()
        model(x).sum().backward()
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    assert sum(call.op == "AddmmBackward0" for call in rank.calls if call.kind == "node") == 4
    assert all(call.forward is not None for call in rank.calls if call.kind == "aten" and call.phase == "backward")


def test_who_sets_a_compiler_is_heard_and_torch_is_as_it_was() -> None:
    room: Any = torch._C._dynamo.compiled_autograd
    before, told = room.set_autograd_compiler, []
    watching = PassCompiler(told.append)
    watching.install()
    watching.install()
    with compiled_autograd._enable(_compile()):
        assert compiles_passes()
    watching.remove()
    watching.remove()
    assert told == [True, False] and not compiles_passes()
    assert room.set_autograd_compiler is before
