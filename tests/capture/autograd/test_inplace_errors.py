"""Trap: a saved tensor that was modified in place still raises torch's own error, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode
from tests.capture.bits import assert_same
from tests.devices import here
from tests.models import Program, build, seed_all, train_step


def _x() -> Tensor:
    return torch.randn(3, 4, requires_grad=True)


def exp_output() -> None:
    y = _x().exp()
    y.add_(1)
    y.sum().backward()


def sigmoid_output_through_a_view() -> None:
    y = _x().sigmoid()
    y[0].mul_(2)
    y.sum().backward()


def mul_input() -> None:
    x, w = _x() * 1, _x() * 1
    y = x * w
    w.zero_()
    y.sum().backward()


def leaf_input() -> None:
    x, w = _x(), _x()
    y = x * w
    with torch.no_grad():
        w.add_(1)
    y.sum().backward()


def matmul_input_twice() -> None:
    x, w = _x(), torch.randn(4, 5, requires_grad=True) * 1
    y = x @ w
    w.mul_(2).add_(1)
    y.sum().backward()


def base_of_a_view() -> None:
    base = _x() * 1
    y = base[1:].pow(2)
    base.fill_(0)
    y.sum().backward()


def layer_norm_input() -> None:
    x = _x() * 1
    y = F.layer_norm(x, (4,))
    x.neg_()
    y.sum().backward()


def softmax_output() -> None:
    y = F.softmax(_x(), -1)
    y.div_(2)
    y.sum().backward()


def input_without_gradient() -> None:
    x, mask = _x(), torch.ones(3, 4)
    y = x * mask
    mask[0, 0] = 0
    y.sum().backward()


def cross_entropy_weight() -> None:
    x, weight = _x(), torch.ones(4)
    loss = F.cross_entropy(x, torch.tensor([0, 1, 2]), weight=weight)
    weight.add_(1)
    loss.backward()


def relu_of_a_module_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(4, 2))
    model(torch.randn(3, 4)).sum().backward()


def module_weight_stepped_between_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    loss = model(torch.randn(3, 4)).sum()
    optimizer.step()
    loss.backward()


def weights_stepped_by_a_foreach_optimizer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    model(torch.randn(3, 4)).sum().backward()
    loss = model(torch.randn(3, 4)).sum()
    optimizer.step()
    loss.backward()


def out_argument() -> None:
    y = _x().exp()
    with torch.no_grad():
        torch.add(torch.ones(3, 4), 1, out=y)
    y.sum().backward()


def foreach_write() -> None:
    y = _x().exp()
    with torch.no_grad():
        torch._foreach_add_([y], 1)
    y.sum().backward()


def copy_into() -> None:
    y = _x().tanh()
    y.copy_(torch.zeros(3, 4))
    y.sum().backward()


def custom_function() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):  # type: ignore[no-untyped-def]
            return g * 2 * ctx.saved_tensors[0]

    x = _x() * 1
    y = Square.apply(x)
    x.add_(1)
    y.sum().backward()


def with_anomaly_detection() -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        exp_output()


def backward_twice() -> None:
    y = _x().exp().sum()
    y.backward()
    y.backward()


def leaf_in_place() -> None:
    _x().add_(1)


def view_of_leaf_in_place() -> None:
    _x()[0].add_(1)


def no_gradient() -> None:
    torch.ones(3).sum().backward()


def batch_norm_statistics() -> None:
    """In eval mode the running statistics are saved for backward."""
    norm = nn.BatchNorm1d(4).eval()
    y = norm(torch.randn(3, 4))
    norm.running_mean.add_(1)  # type: ignore[union-attr, operator]
    norm.running_var.add_(1)  # type: ignore[union-attr, operator]
    y.sum().backward()


PROGRAMS: list[Callable[[], None]] = [
    exp_output, sigmoid_output_through_a_view, mul_input, leaf_input, matmul_input_twice, base_of_a_view, layer_norm_input,
    softmax_output, input_without_gradient, cross_entropy_weight, relu_of_a_module_in_place,
    module_weight_stepped_between_forward_and_backward, weights_stepped_by_a_foreach_optimizer, out_argument, foreach_write, copy_into, custom_function,
    with_anomaly_detection, backward_twice, leaf_in_place, view_of_leaf_in_place, no_gradient, batch_norm_statistics,
]  # fmt: skip


# torch_npu's `_foreach_*_` count no writes: on an NPU the bare program does not raise.
WRITTEN_BY_FOREACH = (
    module_weight_stepped_between_forward_and_backward,
    weights_stepped_by_a_foreach_optimizer,
    foreach_write,
)


def error_of(program: Callable[[], None]) -> tuple[type[BaseException], str] | None:
    """Return the error of a program; None where it has none, which is so on an NPU alone."""
    seed_all(0)
    try:
        program()
    except Exception as error:
        return type(error), str(error)
    assert here().type == "npu" and program in WRITTEN_BY_FOREACH
    return None


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
@pytest.mark.parametrize("level", ["aten", "api", "module", "mix"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_error_is_that_of_the_bare_program(tmp_path: Path, program: Callable[[], None], level: str) -> None:
    expected = error_of(program)
    assert expected is None or expected[0] is RuntimeError
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level)):
        found = error_of(program)
    assert found == expected


@pytest.mark.parametrize("data", ["structure", "hash", "tensor", "full"])
def test_every_kind_of_data(tmp_path: Path, data: str) -> None:
    expected = error_of(exp_output)
    assert expected is not None and "modified by an inplace operation" in expected[1]
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data=data)):
        assert error_of(exp_output) == expected


def _versions(model: str, optimizer: str, steps: Callable[[Program], object]) -> dict[str, int]:
    program = build(model, optimizer)
    steps(program)
    tensors = dict(program.model.named_parameters()) | dict(program.model.named_buffers())
    found = {name: tensor._version for name, tensor in tensors.items()}
    found |= {f"{n}.grad": p.grad._version for n, p in program.model.named_parameters() if p.grad is not None}
    names = {id(p): n for n, p in program.model.named_parameters()}
    for parameter, state in program.optimizer.state.items():
        found |= {f"{names[id(parameter)]}.{k}": v._version for k, v in state.items() if isinstance(v, Tensor)}
    return found


@pytest.mark.parametrize("level", ["module", "mix"])
@pytest.mark.parametrize(
    ("model", "optimizer"), [("resnet", "sgd_momentum"), ("resnet", "adamw_foreach"), ("gpt2", "adamw_fused")]
)
def test_version_counters_are_those_of_the_bare_program(tmp_path: Path, model: str, optimizer: str, level: str) -> None:
    """They are what autograd's check stands on. (Any dispatch mode keeps `_foreach_*_` and `_fused_*_` from counting.)"""

    def dumped(program: Program) -> None:
        with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level), model=program.model) as dump:
            train_step(program, 2)
            dump.step()

    assert _versions(model, optimizer, dumped) == _versions(model, optimizer, lambda program: train_step(program, 2))


def test_graph_made_inside_and_run_outside(tmp_path: Path) -> None:
    x = _x()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_graph_made_outside_and_run_inside(tmp_path: Path) -> None:
    x = _x()
    y = x.exp()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))) as dump:
        y.sum().backward()
        dump.step()
    assert_same(x.detach().exp(), x.grad)  # type: ignore[arg-type]


def test_writes_that_torch_allows_are_allowed(tmp_path: Path) -> None:
    """A write after a save that does not need the old value, and writes through .data, pass as they do bare."""

    def program() -> Tensor:
        seed_all(0)
        x = _x()
        y = x + 1
        y.mul_(3)  # add saves nothing
        z = y.exp()
        z.data.mul_(2)  # not counted, by contract
        z.sum().backward()
        return x.grad  # type: ignore[return-value]

    expected = program()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))):
        assert_same(expected, program())


def test_saved_tensor_hooks_of_the_user_still_run(tmp_path: Path) -> None:
    x = _x()
    packed, unpacked = [], []
    with (
        DumpMode(DumpConfig(path=str(tmp_path / "dump"))),
        torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(1) or t.clone(), lambda t: unpacked.append(1) or t
        ),
    ):
        x.exp().sum().backward()
    assert (packed, unpacked) == ([1], [1])


@pytest.mark.parametrize("outside", [True, False])
def test_save_on_cpu_outside_and_inside(tmp_path: Path, outside: bool) -> None:
    x = _x()
    mode, save = DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")), torch.autograd.graph.save_on_cpu()
    first, second = (save, mode) if outside else (mode, save)
    with first, second:
        (x.exp() * x).sum().backward()
    d = x.detach()
    assert torch.allclose(x.grad, d.exp() * d + d.exp())  # type: ignore[arg-type]


def test_functorch_grad_works(tmp_path: Path) -> None:
    x = torch.randn(4)
    expected = torch.func.grad(lambda t: t.sin().sum())(x)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")):
        found = torch.func.grad(lambda t: t.sin().sum())(x)
        vmapped = torch.func.vmap(torch.func.grad(lambda t: t.sin().sum()))(x[None])
    assert_same(expected, found)
    assert_same(expected[None], vmapped)
