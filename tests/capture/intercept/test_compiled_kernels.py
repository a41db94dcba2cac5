"""compile="kernels": each kernel that inductor generated is a call, and the program runs as without the dump."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, RankDump, open_dump, replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from aten_dump.report.html.payload.call_tree import tree_section
from tests.capture.bits import assert_same
from tests.models import seed_all
from tests.report.sections_read import Read

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]


class Model(nn.Module):
    """Has running statistics that are written in place, dropout, a `cat` and memory that is taken again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.norm(self.embed(x))))
        found: Tensor = self.last(torch.cat([h, h[:, :4] * 2], 1)).softmax(-1)
        return found


def _trained(path: Path | None) -> list[Tensor]:
    """Train for two steps, compiled, and return all that came of it; the second step is recorded to `path`."""
    torch._dynamo.reset()
    seed_all(3)
    model = Model()
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = (compiled(torch.tensor([1, 4, 7, 1])) * torch.arange(8.0)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    if path is None:
        step(), step()
    else:
        with DumpMode(DumpConfig(path=str(path), data="tensor", compile="kernels", steps=1), model=model) as dump:
            step()
            dump.step()
            step()
    return [*losses, *(p.detach() for p in model.parameters()), *model.buffers()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tensor], list[Tensor], RankDump]:
    """What a bare run came to, what a recorded one did, and the recording."""
    path = tmp_path_factory.mktemp("kernels") / "dump"
    recorded, bare = _trained(path), _trained(None)
    return bare, recorded, open_dump(str(path)).step(1).rank(0)


Run = tuple[list[Tensor], list[Tensor], RankDump]


def test_the_program_is_bitwise_what_it_is_without_the_dump(run: Run) -> None:
    for bare, recorded in zip(*run[:2], strict=True):
        assert_same(bare, recorded)


def test_what_reads_and_makes_what(run: Run) -> None:
    """Nothing in compiled code is from nowhere: each result has a maker, and each kernel reads what another made."""
    rank = run[2]
    kernels = [call for call in rank.calls if call.kernel is not None]
    assert {call.phase for call in kernels} == {"forward", "backward"}
    outside = {value.storage for call in kernels for _, value in call.input_values() if value.producer is None}
    names = {name for name, _ in Model().named_parameters()} | {name for name, _ in Model().named_buffers()}
    assert len(outside) <= len(names), "kernels read more from outside of the step than the model has"
    for call in kernels:
        assert call.kind == "aten"
        assert call.op.startswith("inductor::cpp_fused")
        assert call.outputs is None
        for value in call.mutated_values["out"]:
            assert value.producer == (call, value.producer[1])
    assert not rank.notes


def test_a_kernel_is_known_by_its_nodes_source_and_module(run: Run) -> None:
    rank = run[2]
    call = next(call for call in rank.calls if call.kernel and "softmax" in call.op and call.phase == "forward")
    kernel = call.kernel
    assert kernel is not None
    assert "kernel(" in kernel.code
    assert {"aten::amax", "aten::exp", "aten::sub.Tensor"} <= {node.op for node in kernel.nodes}
    assert kernel.given[0] == ("addmm",)
    assert any(frame.file == __file__ for node in kernel.nodes for frame in node.stack)
    assert call.source is not None
    assert call.source.file == __file__
    modules = {call.module for call in rank.calls if call.kernel}
    assert {"norm", "embed"} <= modules | {m.rpartition(".")[2] for m in modules}
    backward = next(call for call in rank.calls if call.kernel and "softmax" in call.op and call.phase == "backward")
    assert backward.forward == call


def test_the_report_opens_a_kernel_into_its_ops_and_lines(run: Run) -> None:
    tree = Read(tree_section(run[2]))
    kernels = {tree.json["ops"][int(at)][1]: kernel for at, kernel in tree.json["kernels"].items()}
    assert kernels.keys() == {call.op for call in run[2].calls if call.kernel is not None}
    found = next(kernel for op, kernel in kernels.items() if "softmax" in op and kernel["graph"].endswith("forward"))
    assert {"aten::amax", "aten::exp"} <= {op for _, op, *_ in found["nodes"]}
    assert any(source.startswith(f"{__file__}:") for *_, source in found["nodes"])


def test_a_compiled_graph_is_a_call_around_its_kernels(run: Run) -> None:
    rank = run[2]
    graphs = [call for call in rank.calls if call.op.startswith("inductor.graph:")]
    assert [call.phase for call in graphs] == ["forward", "backward"]
    for graph in graphs:
        (given,) = graph.inputs[0]
        assert all(value.has_data for value in given if hasattr(value, "has_data"))
    inner = [call for call in rank.calls if call.kernel is not None]
    assert {call.parent.name for call in inner if call.parent is not None} == {graph.name for graph in graphs}


def test_replay_judges_each_kernel_against_its_graph(run: Run) -> None:
    found = replay(run[2])
    judged = {op.name for op in found.ops if op.op.startswith("inductor::")}
    assert judged == {call.name for call in run[2].calls if call.kernel is not None}
    assert not found.suspects


def test_inductor_is_left_as_it_was(run: Run) -> None:
    lowering = sys.modules["torch._inductor.graph"].GraphLowering
    kernel = sys.modules["torch._inductor.ir"].ExternKernel
    cpp = sys.modules["torch._inductor.codegen.cpp"].KernelGroup
    for owner, name in (
        (lowering, "run_node"),
        (lowering, "compile_to_module"),
        (kernel, "copy_input"),
        (cpp, "call_kernel"),
    ):
        assert getattr(owner, name).__module__.startswith("torch._inductor"), name
    assert torch._inductor.config.fx_graph_cache
    assert torch._functorch.config.enable_autograd_cache
    for module in sys.modules["torch._inductor.codecache"].PyCodeCache.modules:
        ours = [name for name, found in vars(module).items() if "aten_dump" in str(getattr(found, "__module__", ""))]
        assert not ours, module


@pytest.mark.filterwarnings("ignore:aten_dump. the compiled function")
def test_code_that_was_compiled_before_is_said_not_to_be_seen(run: Run, tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x * 2 + 1))
    x = torch.linspace(-1, 1, 12)
    expected = compiled(x)
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", compile="kernels")):
        assert_same(expected, compiled(x))
        after = compiled(x) + 1
    rank = open_dump(str(tmp_path)).step(0).rank(0)
    assert [note.code for note in rank.notes if note.code == "kernels_unseen"]
    assert_same(after, rank["Aten.add.0.forward"].outputs.tensor())
    assert_same(expected, rank["Aten.add.0.forward"].inputs[0][0].tensor())


def test_memory_that_kernels_write_in_parts(tmp_path: Path) -> None:
    """A kernel that writes two parts of a `cat` and reads all of it is given the third, which another kernel wrote."""

    def function(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.sin(x)
        b = a @ w
        whole = torch.cat([a, b.cos(), b[:, :8].neg()], 1)
        return whole.sum(0), whole @ v

    torch._dynamo.reset()
    given = [torch.randn(*size, generator=torch.Generator().manual_seed(5)) for size in ((16, 16), (16, 16), (40, 8))]
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", compile="kernels")):
        torch.compile(function)(*given)
    rank = open_dump(str(tmp_path)).step(0).rank(0)
    first, last = (call for call in rank.calls if call.kernel is not None)
    part = last.inputs[0][1]
    assert part.producer is not None
    assert part.producer[0] == first
    assert not part.undefined
    assert part.shape == (16, 16)
    found = replay(rank)
    assert not found.suspects
    assert {first.name, last.name} <= {op.name for op in found.ops}


def test_code_that_was_compiled_before_is_recorded_once_it_is_compiled_again(tmp_path: Path) -> None:
    """Inductor makes one module of equal code: there is what runs an unknown kernel, and then what records it."""
    function, x = (lambda x: torch.sigmoid(x * 3 + 2)), torch.linspace(-1, 1, 12)
    torch._dynamo.reset()
    expected = torch.compile(function)(x)
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", compile="kernels")):
        for _ in range(2):
            torch._dynamo.reset()
            assert_same(expected, torch.compile(function)(x))
    rank = open_dump(str(tmp_path)).step(0).rank(0)
    assert len([call for call in rank.calls if call.kernel is not None]) == 2
    assert not rank.notes


def test_another_backend_is_recorded_as_one_call(tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    with pytest.warns(UserWarning, match="one call"), DumpMode(DumpConfig(path=str(tmp_path), compile="kernels")):
        compiled(torch.ones(3))
    assert "compile_opaque" in {note.code for note in open_dump(str(tmp_path)).step(0).rank(0).notes}


class Broken(nn.Module):
    """Has a break in its graph, and a size that differs from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.gelu(self.one(x))
        torch._dynamo.graph_break()
        found: Tensor = self.other(h * h.shape[0]).cumsum(0)
        return found


@pytest.mark.slow
def test_graph_breaks_recompilation_and_a_compiled_optimizer(tmp_path: Path) -> None:
    def trained(path: Path | None) -> list[Any]:
        torch._dynamo.reset()
        seed_all(3)
        model = Broken()
        compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
        step, losses = torch.compile(optimizer.step), []
        config = DumpConfig(path=str(path), data="tensor", compile="kernels", overwrite=True)
        dump = DumpMode(config, model=model).start() if path is not None else None
        for rows in (4, 5, 6, 4):
            optimizer.zero_grad()
            loss = compiled(torch.linspace(-1, 1, rows * 8).reshape(rows, 8)).square().mean()
            loss.backward()
            step()
            losses.append(loss.detach())
            if dump is not None:
                dump.step()
        if dump is not None:
            dump.close()
        return [*losses, *(p.detach() for p in model.parameters())]

    for recorded, bare in zip(trained(tmp_path), trained(None), strict=True):
        assert_same(bare, recorded)
    for rows, step in zip((4, 5, 6, 4), range(4), strict=True):
        rank = open_dump(str(tmp_path)).step(step).rank(0)
        kernels = [call for call in rank.calls if call.kernel is not None]
        assert {call.phase for call in kernels} == {"forward", "backward", "optimizer"}
        sizes = {size for call in kernels for name, size in call.inputs[1].items() if name != "out"}
        assert sizes == (set() if not step else {rows})
        found = replay(rank)
        assert not found.suspects
        assert {call.name for call in kernels} <= {op.name for op in found.ops}
