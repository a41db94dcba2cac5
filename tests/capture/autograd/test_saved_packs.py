"""saved_tensors="hooks": what is saved and fetched, by whom and in which order, and every trap of such hooks shut."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from aten_dump import CaptureError, DumpConfig, DumpMode, RankDump, open_dump
from aten_dump.capture.autograd.saved_packs import _is_within
from aten_dump.capture.naming.call_name import CallName
from aten_dump.capture.step.open_calls import OpenCall
from tests.capture.autograd import test_inplace_errors as inplace
from tests.capture.bits import assert_same
from tests.torch_features import needs_one_detach, needs_saved_hooks_shown

pytestmark = needs_saved_hooks_shown
Program = Callable[[], Any]


def config(path: Path, **fields: Any) -> DumpConfig:
    return DumpConfig(path, saved_tensors="hooks", overwrite=True, **{"data": "full", **fields})


def recorded(path: Path, program: Program, **fields: Any) -> tuple[Any, RankDump]:
    with DumpMode(config(path, **fields)):
        result = program()
    return result, open_dump(path).step(0).rank(0)


def block(seed: int = 0, **kwargs: Any) -> list[Tensor]:
    """Train a small block for one step; return the loss and the gradients."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 3), nn.Tanh())
    x = torch.randn(5, 4)
    loss = nn.functional.cross_entropy(model(x) * x[:, :3].softmax(-1), torch.tensor([0, 1, 2, 1, 0]))
    loss.backward(**kwargs)
    return [loss, *(p.grad for p in model.parameters())]


def same(expected: list[Tensor], found: list[Tensor]) -> None:
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def agreed(rank: RankDump) -> int:
    return sum(note.count for note in rank.notes if note.code == "saved_tensors")


# -- what is recorded


@needs_one_detach
def test_everything_else_is_recorded_as_with_nodes(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "nodes", data="full")):
        block()
    _, hooks = recorded(tmp_path / "hooks", block)
    nodes = open_dump(tmp_path / "nodes").step(0).rank(0)
    assert [call.name for call in hooks.calls] == [call.name for call in nodes.calls]
    saved = [[(one.call.name, one.node, one.nbytes) for one in rank.saved_for_backward()] for rank in (nodes, hooks)]
    assert saved[0] == saved[1] and len(saved[0]) > 8
    assert nodes.packed_tensors() == [] and agreed(nodes) == 0


def test_each_pack_and_fetch(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.full((3,), 2.0, requires_grad=True)
        y = x * torch.arange(3.0)
        (y.exp() * x).sum().backward()

    _, rank = recorded(tmp_path, program)
    packs = rank.packed_tensors()
    assert [pack.call.name for pack in packs] == [
        "Tensor.mul.0.forward", "Tensor.exp.0.forward", "Tensor.mul.1.forward", "Tensor.mul.1.forward"
    ]  # fmt: skip
    assert [pack.value.tensor().tolist() for pack in packs[:2]] == [[0.0, 1.0, 2.0], packs[1].value.tensor().tolist()]
    fetched = sorted((at, call.name) for pack in packs for call, at in pack.fetched)
    assert [name for _, name in fetched] == [
        "Node.MulBackward0.0.backward", "Node.MulBackward0.0.backward", "Node.ExpBackward0.0.backward",
        "Node.MulBackward0.1.backward",
    ]  # fmt: skip
    saved_at = [pack.at_ns for pack in packs]
    assert saved_at == sorted(saved_at) and saved_at[-1] < fetched[0][0]
    assert agreed(rank) == 4


def test_a_tensor_that_is_fetched_twice(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x.exp().sum()
        y.backward(retain_graph=True)
        y.backward()

    _, rank = recorded(tmp_path, program)
    [pack] = rank.packed_tensors()
    assert [call.name for call, _ in pack.fetched] == [
        "Node.ExpBackward0.0.backward",
        "Node.ExpBackward0.1.backward",
    ] or [call.op for call, _ in pack.fetched] == ["ExpBackward0"] * 2


CPP = """
#include <torch/extension.h>
struct Square : public torch::autograd::Function<Square> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor x, torch::Tensor w) {
    ctx->save_for_backward({x, w});
    return x * x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list g) {
    auto saved = ctx->get_saved_variables();
    return {g[0] * 2 * saved[0] * saved[1], g[0] * saved[0] * saved[0]};
  }
};
torch::Tensor square(torch::Tensor x, torch::Tensor w) { return Square::apply(x, w); }
TORCH_LIBRARY(aten_dump_test, m) { m.def("square(Tensor x, Tensor w) -> Tensor"); }
TORCH_LIBRARY_IMPL(aten_dump_test, Autograd, m) { m.impl("square", &square); }
TORCH_LIBRARY_IMPL(aten_dump_test, CPU, m) { m.impl("square", &square); }
"""


# Some wheels of older versions keep to the strings of older compilers.
_ABI = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_what_a_function_in_cpp_saves(tmp_path: Path) -> None:
    from torch.utils import cpp_extension

    (tmp_path / "square.cpp").write_text(CPP.replace("torch/extension.h", "torch/torch.h"))
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    command = [
        "g++",
        "-O0",
        "-std=c++20",
        "-shared",
        "-fPIC",
        _ABI,
        *includes,
        "square.cpp",
        "-o",
        "square.so",
        *libraries,
    ]
    subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10"], cwd=tmp_path, check=True, timeout=280)
    torch.ops.load_library(str(tmp_path / "square.so"))

    def program() -> list[Tensor]:
        x, w = torch.arange(3.0, requires_grad=True), torch.full((3,), 4.0, requires_grad=True)
        y = torch.ops.aten_dump_test.square(x * 1, w)
        y.sum().backward()
        return [x.grad, w.grad]  # type: ignore[list-item]

    bare = program()
    found, rank = recorded(tmp_path / "dump", program)
    same(bare, found)
    [saved] = [one for one in rank.saved_for_backward() if "Square" in one.node]
    assert [value.tensor().tolist() for value in saved.values] == [[0.0, 1.0, 2.0], [4.0, 4.0, 4.0]]
    with DumpMode(DumpConfig(tmp_path / "nodes")):
        program()
    without = open_dump(tmp_path / "nodes").step(0).rank(0)
    assert [one for one in without.saved_for_backward() if "Square" in one.node] == []


# -- traps


def test_results_are_bitwise_those_of_the_bare_program(tmp_path: Path) -> None:
    for seed in range(3):
        bare = block(seed)
        found, rank = recorded(tmp_path / str(seed), lambda seed=seed: block(seed))
        same(bare, found)
        assert agreed(rank) > 10


def test_a_graph_is_freed(tmp_path: Path) -> None:
    """A hook that keeps the tensor itself leaks all of it: here 80 MB."""
    import weakref

    x = torch.ones(1000, requires_grad=True)
    graphs = []
    with DumpMode(config(tmp_path, data="structure")):
        for _ in range(20):
            y = x.exp() * x
            mark = nn.Identity()
            y.grad_fn.metadata["mark"] = mark
            graphs.append(weakref.ref(mark))
            del y, mark
        alive = [graph for graph in graphs if graph() is not None]
    assert alive == []
    gc.collect()
    code = (
        "import resource, sys, torch\nfrom aten_dump import DumpConfig, DumpMode\n"
        "x = torch.ones(1000, 1000, requires_grad=True)\n"
        "def run():\n    for _ in range(50): x.exp().sin().sum()\n"
        "high = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with DumpMode(DumpConfig(sys.argv[1], data='structure', saved_tensors='hooks')):\n"
        "    x.exp().sin().sum()\n    before = high()\n    run()\n    print(high() - before)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "dump"]
    apart = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # freed memory goes back, no heap with holes
    done = subprocess.run(command, env=apart, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 10, "KiB; 400 MB without a detach"


INPLACE = [
    one for one in vars(inplace).values() if callable(one) and getattr(one, "__module__", "") == inplace.__name__
]
PROGRAMS = [one for one in INPLACE if one.__code__.co_argcount == 0 and not one.__name__.startswith(("_", "test_"))]


def second_result_of_a_call() -> None:
    _, r = torch.linalg.qr(torch.eye(3, requires_grad=True) * 2)
    y = r * r
    with torch.no_grad():
        r.add_(1)
    y.sum().backward()


def second_result_that_is_saved() -> None:
    values, indices = torch.rand(4, requires_grad=True).mul(1).max(0)
    indices.zero_()
    values.backward()


def output_whose_name_is_gone() -> None:
    y = torch.ones(3, requires_grad=True) * 2
    view = y[0]
    z = y * y
    del y
    view.add_(1)
    z.sum().backward()


def input_in_half_precision() -> None:
    x = torch.ones(3, requires_grad=True, dtype=torch.bfloat16) * 2
    y = x * x
    x.add_(1)
    y.sum().backward()


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        *PROGRAMS,
        second_result_of_a_call,
        second_result_that_is_saved,
        output_whose_name_is_gone,
        input_in_half_precision,
    ],
    ids=lambda one: one.__name__,
)
def test_errors_of_modified_tensors_word_for_word(tmp_path: Path, program: Program, anomaly: bool) -> None:
    with torch.autograd.set_detect_anomaly(anomaly):
        bare = inplace.error_of(program)
        with DumpMode(config(tmp_path)):
            found = inplace.error_of(program)
    assert found == bare


def test_a_second_backward_raises_as_it_does(tmp_path: Path) -> None:
    def program() -> None:
        y = torch.ones(3, requires_grad=True).exp().sum()
        y.backward()
        y.backward()

    bare = inplace.error_of(program)
    assert bare is not None
    with DumpMode(config(tmp_path)):
        assert inplace.error_of(program) == bare


def test_torch_func_is_stepped_aside_for(tmp_path: Path) -> None:
    x = torch.randn(4)

    def program() -> list[Tensor]:
        def f(t: Tensor) -> Tensor:
            return (t.sin() * t).sum()

        y = x.clone().requires_grad_()
        (y.exp() * torch.func.grad(f)(x)).sum().backward()
        return [torch.func.grad(f)(x), torch.func.hessian(f)(x), torch.func.vmap(torch.func.grad(f))(x[None]), y.grad]

    bare = program()
    found, rank = recorded(tmp_path, program)
    same(bare, found)
    assert agreed(rank) > 0


@pytest.mark.parametrize("outside", [True, False])
def test_save_on_cpu(tmp_path: Path, outside: bool) -> None:
    def program() -> list[Tensor]:
        return block(1)

    bare = program()
    mode = DumpMode(config(tmp_path))
    first, second = (save_on_cpu(), mode) if outside else (mode, save_on_cpu())
    with first, second:
        found = program()
    same(bare, found)
    assert len(open_dump(tmp_path).step(0).rank(0).packed_tensors()) > 10


@pytest.mark.parametrize("outside", [True, False])
def test_hooks_of_the_program_see_what_they_saw(tmp_path: Path, outside: bool) -> None:
    def run(mode: Any) -> tuple[list[Tensor], list[str]]:
        seen: list[str] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(f"pack {tuple(tensor.shape)}")
            return tensor.detach().clone()

        def unpack(tensor: Tensor) -> Tensor:
            seen.append(f"unpack {tuple(tensor.shape)}")
            return tensor

        first, second = saved_tensors_hooks(pack, unpack), mode
        if not outside:
            first, second = second, first
        with first, second:
            return block(2), seen

    import contextlib

    bare = run(contextlib.nullcontext())
    found = run(DumpMode(config(tmp_path)))
    same(bare[0], found[0])
    assert bare[1] == found[1]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("early_stop", [True, False])
def test_checkpoint(tmp_path: Path, use_reentrant: bool, early_stop: bool) -> None:
    from torch.utils.checkpoint import set_checkpoint_early_stop

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5)) for _ in range(3))
        x = torch.randn(2, 4, requires_grad=True)
        y = x
        with set_checkpoint_early_stop(early_stop):
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=use_reentrant)
            (y * y).sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]  # type: ignore[list-item]

    bare = program()
    found, rank = recorded(tmp_path, program)
    same(bare, found)
    assert any(call.phase == "recompute" for call in rank.calls)
    assert all(call.recomputed or call.phase != "recompute" for call in rank.calls) or agreed(rank)


def test_a_function_of_the_program_that_uses_hooks_inside_a_call(tmp_path: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            [x] = ctx.saved_tensors
            return g * torch.func.grad(lambda t: (t * t).sum())(x)

    def program() -> Tensor:
        x = torch.ones(3, requires_grad=True)
        Twice.apply(x).sum().backward()
        return x.grad  # type: ignore[return-value]

    bare = program()
    found, _ = recorded(tmp_path, program)
    assert_same(bare, found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("saved_tensors", ["nodes", "hooks"])
def test_a_tensor_without_a_shape(tmp_path: Path, saved_tensors: Any) -> None:
    def program() -> list[Tensor]:
        parts = [torch.ones(2, device="cpu"), torch.ones(3, device="cpu")]  # an NPU has no nested tensors
        x = torch.nested.nested_tensor(parts, requires_grad=True)
        (x.sin() * x).to_padded_tensor(0).sum().backward()
        return list(x.grad.unbind())  # type: ignore[union-attr]

    bare = program()
    with DumpMode(DumpConfig(tmp_path, saved_tensors=saved_tensors, data="full")):
        same(bare, program())
    assert len(open_dump(tmp_path).step(0).rank(0).saved_for_backward()) > 0


def test_double_backward(tmp_path: Path) -> None:
    def program() -> list[Tensor]:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        [g] = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
        [gg] = torch.autograd.grad(g.sum(), x)
        return [g.detach(), gg]

    bare = program()
    found, rank = recorded(tmp_path, program)
    same(bare, found)
    assert agreed(rank) > 0


def test_nothing_of_it_stays(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(config(tmp_path)):
        y = x.exp()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    y.sum().backward()
    assert_same(x.grad, y.detach())
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_a_graph_of_an_earlier_step(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(config(tmp_path)) as dump:
        y = x.exp()
        dump.step()
        y.sum().backward()
    assert_same(x.grad, y.detach())
    assert open_dump(tmp_path).step(1).rank(0).packed_tensors() == []


@needs_one_detach
def test_modes_of_the_program_see_what_they_see_without(tmp_path: Path) -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen() as bare:
        x = torch.ones(3, requires_grad=True)
        y = x.exp() * x
    with DumpMode(config(tmp_path)), Seen() as found:
        x = torch.ones(3, requires_grad=True)
        y = x.exp() * x
    assert found.ops == bare.ops
    del y


def test_where_the_ties_differ_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import aten_dump.capture.autograd.saved_packs as packs

    monkeypatch.setattr(packs, "_is_within", lambda call, outer: False)
    with pytest.raises(CaptureError, match=r"ExpBackward0 fetched a tensor that torch\.Tensor\.exp had saved"):
        recorded(tmp_path, lambda: torch.ones(3, requires_grad=True).exp().sum().backward())


def test_a_call_is_within_itself_and_what_is_around_it() -> None:
    name = CallName("x", "X", "x")
    outer = OpenCall(1, 1, name, None)
    inner, other = OpenCall(2, 1, name, outer), OpenCall(3, 1, name, None)
    assert _is_within(inner, inner) and _is_within(inner, outer)
    assert not _is_within(outer, inner) and not _is_within(inner, other) and not _is_within(None, outer)
