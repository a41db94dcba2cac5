"""An exception inside the block leaves nothing behind, and the dump holds all up to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import aten_dump
from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import calls
from tests.capture.process_state import changes, module_hooks, picture
from tests.models import build, train_step
from tests.sampling import diagonal

LEVELS = ("mix", "module", "aten", "api")


class Bomb(nn.Module):
    """Raises in forward, or in backward."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.error, self.where = error, where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if self.where == "forward":
            raise self.error
        if self.where == "backward":
            y.register_hook(self._raise)
        return y.exp()

    def _raise(self, _gradient: torch.Tensor) -> None:
        raise self.error


class BadSGD(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        raise ArithmeticError("broken optimizer")


def in_forward(model: nn.Module) -> None:
    model(torch.randn(2, 4))


def in_backward(model: nn.Module) -> None:
    model(torch.randn(2, 4)).sum().backward()


def in_aten_op(model: nn.Module) -> None:
    model.inner(torch.randn(2, 4)) @ torch.randn(3, 3)  # type: ignore[operator]


def in_python_call(model: nn.Module) -> None:
    y = model.inner(torch.randn(2, 4))  # type: ignore[operator]
    torch.nn.functional.layer_norm(y, "not a shape")  # type: ignore[arg-type]


def in_optimizer(model: nn.Module) -> None:
    model.inner(torch.randn(2, 4)).sum().backward()  # type: ignore[operator]
    BadSGD(model.parameters(), lr=0.1).step()


WAYS: dict[str, tuple[Callable[[nn.Module], None], str]] = {
    "forward": (in_forward, "forward"),
    "backward": (in_backward, "backward"),
    "aten_op": (in_aten_op, ""),
    "python_call": (in_python_call, ""),
    "optimizer": (in_optimizer, ""),
}


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lazy imports and thread pools of torch are not what is tested."""
    program = build("resnet", "adamw_foreach")
    with DumpMode(
        DumpConfig(path=str(tmp_path_factory.mktemp("warm") / "dump"), data="full"), model=program.model
    ) as dump:
        train_step(program)
        dump.step()


ERRORS = (ValueError("bad batch"), KeyboardInterrupt(), SystemExit(3), StopIteration("end"))
# The error is the module's own in two of the ways.
RAISED = [(way, error) for way, (_, where) in WAYS.items() for error in (ERRORS if where else ERRORS[:1])]


@pytest.mark.parametrize(
    ("way", "error", "level"),
    diagonal(RAISED, LEVELS, ids=lambda part: part if isinstance(part, str) else type(part).__name__),
)
def test_nothing_is_left_and_the_error_is_unchanged(tmp_path: Path, way: str, error: BaseException, level: str) -> None:
    run, where = WAYS[way]
    model = Bomb(error, where)
    with pytest.raises(BaseException) as bare:  # noqa: PT011
        run(model)
    model, before = Bomb(error, where), picture()
    hooks = module_hooks(model)
    with pytest.raises(BaseException) as dumped:  # noqa: PT011, SIM117
        with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level, data="full"), model=model):
            run(model)
    assert (dumped.type, str(dumped.value)) == (bare.type, str(bare.value))
    assert dumped.value.__cause__ is None and (dumped.value.__context__ is None) == (bare.value.__context__ is None)
    assert changes(before, picture()) == []
    assert module_hooks(model) == hooks
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert not rank.missing
    if level in ("aten", "mix"):
        assert "aten::addmm" in [c.op for c in rank.calls]


def test_the_call_that_raised_carries_its_error(tmp_path: Path) -> None:
    model = Bomb(ValueError("bad batch"), "forward")
    with pytest.raises(ValueError, match="bad batch"), DumpMode(DumpConfig(path=str(tmp_path / "dump")), model=model):
        model(torch.randn(2, 4))
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    call = rank["Module.Bomb.0.forward"]
    assert call.error is not None and "ValueError" in call.error and "bad batch" in call.error
    assert rank["Module.inner.0.forward"].error is None


def test_the_op_that_raised_carries_its_error(tmp_path: Path) -> None:
    x, y = torch.randn(2, 4), torch.randn(3, 3)
    with pytest.raises(RuntimeError) as caught, DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor")):
        torch.mm(x, y)
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    call = rank["Torch.mm.0.forward"]
    assert call.error is not None and str(caught.value).split("\n")[0][:40] in call.error
    assert torch.equal(call.inputs[0][0].tensor(), x.cpu())


def test_caught_inside_the_block_and_going_on(tmp_path: Path) -> None:
    """The tree closes what the exception left open: later calls are not children of calls that failed."""
    model = Bomb(ValueError("bad batch"), "forward")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump")), model=model) as dump:
        for _ in range(3):
            with pytest.raises(ValueError, match="bad batch"):
                model(torch.randn(2, 4))
            with pytest.raises(RuntimeError):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.sum().backward()
        dump.step()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    exp = rank["Tensor.exp.0.forward"]
    assert exp.parent is None and exp.module in ("", None)
    assert [c.name for c in exp.backward if c.kind == "api"] == ["Tensor.exp.0.backward"]
    assert [c.parent for c in calls(rank, kind="module", phase="forward") if c.name.startswith("Module.Bomb")] == [
        None
    ] * 3


def test_caught_in_backward_and_going_on(tmp_path: Path) -> None:
    model = Bomb(ValueError("bad gradient"), "backward")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump")), model=model) as dump:
        with pytest.raises(ValueError, match="bad gradient"):
            model(torch.randn(2, 4)).sum().backward()
        y = model.inner(torch.randn(2, 4)).exp()
        dump.step()
    del y
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    last = [c for c in calls(rank, kind="aten") if c.op == "aten::exp"][-1]
    assert last.phase == "forward"
    assert last.parent.parent is None
    assert last.parent.kind == "api"


def test_caught_in_optimizer_and_going_on(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump")), model=model) as dump:
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ArithmeticError):
            BadSGD(model.parameters(), lr=0.1).step()
        torch.ones(2).exp()
        dump.step()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert calls(rank, op="aten::exp")[-1].phase == "forward"
    assert "optimizer" in {c.phase for c in rank.calls}


def test_normal_end_leaves_nothing(tmp_path: Path) -> None:
    program = build("resnet", "adamw_foreach")
    hooks, before = module_hooks(program.model), picture()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full"), model=program.model) as dump:
        train_step(program)
        dump.step()
    assert changes(before, picture()) == []
    assert module_hooks(program.model) == hooks


def test_close_twice_and_after_the_block(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))) as dump:
        torch.ones(2).exp()
        dump.close()
        torch.ones(2).log()
    dump.close()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert "aten::exp" in [c.op for c in rank.calls]
    assert "aten::log" not in [c.op for c in rank.calls]


def test_a_graph_outlives_the_block(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")):
        y = (x.exp() * x).sum()
    before = picture()
    y.backward()
    d = x.detach()
    assert torch.allclose(x.grad, d.exp() * d + d.exp())  # type: ignore[arg-type]
    assert changes(before, picture()) == []


def test_nested_dumps_and_reentry(tmp_path: Path) -> None:
    """A second DumpMode inside the first either records or refuses; it never breaks the first."""
    from aten_dump.errors import AtenDumpError

    before = picture()
    with DumpMode(DumpConfig(path=str(tmp_path / "a"))) as outer:
        torch.ones(2).exp()
        try:
            with DumpMode(DumpConfig(path=str(tmp_path / "b"))):
                torch.ones(2).log()
        except AtenDumpError:
            pass
        torch.ones(2).sin()
        outer.step()
    assert changes(before, picture()) == []
    ops = [c.op for c in open_dump(str(tmp_path / "a")).step(0).rank(0).calls]
    assert "aten::exp" in ops and "aten::sin" in ops


def _held_by_itself() -> list[object]:
    items: list[object] = [torch.ones(2)]
    items += [items, items]
    return items


def _nested() -> tuple[object, ...]:
    items: tuple[object, ...] = ()
    for _ in range(100_000):
        items = (items,)
    return items


@pytest.mark.parametrize("make", [_held_by_itself, _nested])
def test_containers_without_end_are_recorded_as_far_as_they_go(tmp_path: Path, make: Callable[[], object]) -> None:
    items = make()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        assert nn.Identity()(items) is items
        torch.ones(2).exp()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert rank.complete
    call = rank["Module.Identity.0.forward"]
    assert "builtins." in repr(call.inputs)
    assert [c.op for c in rank.calls if c.kind == "aten"][-1] == "aten::exp"


@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("level", ["mix", "module"])
def test_a_program_that_recurses_to_the_limit_gets_its_own_error(tmp_path: Path, level: str, on_error: str) -> None:
    class Endless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(self.layer(x))  # type: ignore[no-any-return]

    config = DumpConfig(path=str(tmp_path / "dump"), level=level, data="full", on_error=on_error)
    with DumpMode(config) as dump:
        with pytest.raises(RecursionError):
            Endless()(torch.ones(1, 2))
        assert torch.ones(2).sum() == 2
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dump.step()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    failed = [note.message for note in rank.notes if note.code == "failed"]
    assert rank.calls and [f"aten_dump records no more, the program goes on: {why}" for why in failed] == [
        str(warning.message) for warning in told
    ]
    assert all("recursion limit" in why for why in failed)
    assert (
        failed or aten_dump.IS_COMPILED
    )  # compiled code is no frame of Python's: the limit may be met between its calls
