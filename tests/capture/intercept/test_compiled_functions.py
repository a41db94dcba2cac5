"""torch.compile under the dump: run as written or left compiled, never harmed, and the dump says which."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from aten_dump.capture.intercept.compiled_functions import CompiledCalls
from aten_dump.capture.intercept.when_imported import WhenImported
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from aten_dump.capture.torch_internals.mode_stack import push_dispatch_mode, take_dispatch_mode_off
from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls
from tests.capture.intercept.watched import Watched
from tests.capture.process_state import changes, picture
from tests.capture.same_outcome import batch, note, ops, outcome, recorded, trained
from tests.models import seed_all
from tests.torch_features import needs_results_of_compiled

pytestmark = pytest.mark.filterwarnings("ignore:aten_dump. the compiled function")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.tanh(self.first(x))))


def _model() -> Model:
    seed_all(3)
    return Model()


class Backend:
    """Counts what is compiled, and how often that runs."""

    def __init__(self) -> None:
        self.compiled = self.runs = 0

    def __call__(self, graph: Any, examples: Any) -> Any:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run


_INDUCTOR = pytest.param(
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    ],
)


@needs_results_of_compiled
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager", _INDUCTOR])
def test_opaque_is_bitwise_the_compiled_program(tmp_path: Path, backend: str) -> None:
    model = _model()
    program = trained(model, torch.compile(model, backend=backend, fullgraph=True))
    rank = recorded(tmp_path, program, compile="opaque")
    call = rank["Torch.compile.Model.0.forward"]
    assert_same(batch(), call.inputs[0][0].tensor())
    assert_same(program()[0], call.outputs.tensor())
    assert_linked(rank)
    backward = rank["Torch.compile.Model.0.backward"]
    assert_same(torch.ones(5, 3), backward.inputs[0][0].tensor())
    assert note(rank, "compile_opaque").count == 1
    if backend == "inductor" and compiles_alike_under_modes:
        assert ops(call.children) == ["aten::addmm.out", "aten::addmm.out"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_eager_is_bitwise_the_program_as_written(tmp_path: Path, backend: str) -> None:
    model = _model()
    bare = outcome(trained(model, model))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full"), model=model):
        assert outcome(trained(model, compiled)) == bare
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert "aten::tanh" in ops(calls(rank, kind="aten", phase="forward"))
    assert [c.module for c in calls(rank, op="aten::addmm")] == ["first", "second"]
    assert note(rank, "compile_eager").count == 1
    assert_linked(rank)


@pytest.mark.parametrize("mode", ["eager", "opaque"])
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_what_is_compiled_stays_compiled(tmp_path: Path, mode: str, fullgraph: bool, before: bool) -> None:
    """The compiler skips a function for good that it meets under a mode which it does not know."""
    backend, model = Backend(), _model()
    run = torch.compile(model, backend=backend, fullgraph=fullgraph)
    if before:
        run(batch())
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), compile=mode)):
        run(batch())
        run(batch())
    assert backend.runs == before + (2 if mode == "opaque" else 0)
    run(batch())
    assert backend.compiled == 1, "compiled anew"
    assert backend.runs == before + (2 if mode == "opaque" else 0) + 1, "it runs eagerly after the block"


@pytest.mark.parametrize("mode", ["eager", "opaque"])
def test_compiling_inside_the_block(tmp_path: Path, mode: str) -> None:
    backend, model = Backend(), _model()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), compile=mode)):
        module = torch.compile(model, backend=backend, fullgraph=True)
        function = torch.compile(lambda x: model(x) + 1, backend=backend, fullgraph=True)
        in_place = _model()
        in_place.compile(backend=backend, fullgraph=True)
        found = [module(batch()), function(batch()), in_place(batch())]
    expected = model(batch())
    for one, value in zip(found, (expected, expected + 1, expected), strict=True):
        assert_same(value, one)
    assert backend.runs == (3 if mode == "opaque" else 0)
    for one, value in zip((module, function, in_place), (expected, expected + 1, expected), strict=True):
        assert_same(value, one(batch()))
    assert (backend.compiled, backend.runs) == ((3, 6) if mode == "opaque" else (3, 3))


@pytest.mark.parametrize("mode", ["eager", "opaque"])
def test_graph_breaks_and_errors(tmp_path: Path, mode: str) -> None:
    seen: list[str] = []

    def body(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        seen.append("ran")
        if y.sum() > 1e6:
            return y
        raise ValueError("the program's own")

    compiled = torch.compile(body, backend="eager")

    def program() -> Any:
        compiled(batch())

    bare = outcome(program)
    before = picture()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), compile=mode)):
        assert outcome(program) == bare
    assert not changes(before, picture())
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert "aten::sin" in ops(rank.calls) or (mode == "opaque" and not compiles_alike_under_modes)
    if mode == "opaque":
        call = next(c for c in rank.calls if c.op.startswith("torch.compile:"))
        assert call.error == "ValueError: the program's own"
    assert seen == ["ran", "ran"]


@pytest.mark.parametrize("mode", ["eager", "opaque"])
def test_one_warning_says_which(tmp_path: Path, mode: str) -> None:
    first, second = (torch.compile(f, backend="eager") for f in (torch.nn.Tanh(), lambda x: x + 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with DumpMode(DumpConfig(path=str(tmp_path / "dump"), compile=mode)) as dump:
            for _ in range(2):
                first(batch()), second(batch())
                dump.step()
    found = [w for w in caught if "aten_dump" in str(w.message)]
    assert len(found) == 1
    assert "Tanh" in str(found[0].message)
    assert ("runs as written while" in str(found[0].message)) == (mode == "eager")
    for step in (0, 1):
        found_note = note(open_dump(str(tmp_path / "dump")).step(step).rank(0), f"compile_{mode}")
        assert found_note.count == 2
        assert "Tanh" in found_note.message


def test_higher_order_operators_in_a_compiled_function(tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: torch.cond(x.sum() > 100, torch.sin, torch.cos, (x,)) + 1, backend="eager")
    rank = recorded(tmp_path, lambda: compiled(batch()))
    assert "aten::cos" in ops(rank.calls)


def test_the_compiler_imported_inside_the_block(tmp_path: Path) -> None:
    """In a fresh process nothing has imported dynamo when the step begins."""
    import subprocess

    code = f"""
import sys, torch
from aten_dump import DumpConfig, DumpMode
assert "torch._dynamo" not in sys.modules, "this test needs a torch that imports dynamo late"
runs = []
def backend(graph, examples):
    def run(*args):
        runs.append(1)
        return graph(*args)
    return run
finders = list(sys.meta_path)
def ours():
    return [one for one in sys.meta_path if type(one).__module__.startswith("aten_dump.")]
with DumpMode(DumpConfig(path={str(tmp_path / "dump")!r})):
    assert len(ours()) == 1
    f = torch.compile(lambda x: x.sin(), backend=backend, fullgraph=True)
    f(torch.ones(2))
    assert not runs
assert not ours() and set(finders) <= set(sys.meta_path), sys.meta_path
f(torch.ones(2))
assert runs == [1], runs
import torch._dynamo.eval_frame as e
assert e.__loader__.__class__.__module__.startswith(("_frozen", "importlib")), e.__loader__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compile_eager" in {n.code for n in open_dump(str(tmp_path / "dump")).step(0).rank(0).notes}


# -- memory that the compiler's kernels write


def _unseen(graph: Any, examples: Any) -> Any:
    """Compile to code that takes the memory of its matrices again for something else, as inductor's kernels do."""

    def run(*args: Any) -> Any:
        results = graph(*args)
        for tensor in args:
            if isinstance(tensor, Tensor) and tensor.dim() == 2:
                before = tensor.detach().clone()
                for scale in (2, 3):
                    tensor.detach().numpy()[...] = scale * before.numpy() + scale
                    torch.mm(tensor, tensor.t())
                tensor.detach().numpy()[...] = before.numpy()
                torch.mm(tensor, tensor.t())
        return results

    return make_boxed_func(run)


def _assert_products_are_of_their_inputs(rank: Any, phase: str) -> None:
    products = [call for call in rank.calls if call.op in ("aten::mm", "aten::mm.out") and call.phase == phase]
    assert len(products) > 2
    for call in products:
        (one, other), _ = call.inputs
        results = [value.tensor() for _, value in call.result_values()]
        torch.testing.assert_close(one.tensor() @ other.tensor(), results[-1], msg=f"stale bytes in {call.name}")


@pytest.mark.parametrize("data", ["full", "tensor"])
def test_an_extern_kernel_is_recorded_with_the_bytes_that_it_read(tmp_path: Path, data: str) -> None:
    model = _model()
    backend = aot_autograd(fw_compiler=_unseen, bw_compiler=_unseen)
    rank = recorded(tmp_path, trained(model, torch.compile(model, backend=backend)), compile="opaque", data=data)
    if compiles_alike_under_modes:
        _assert_products_are_of_their_inputs(rank, "forward")
    _assert_products_are_of_their_inputs(rank, "backward")
    assert not replay(rank).suspects


def test_memory_that_a_compiled_call_only_reads_is_stored_once(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)

    def run(graph: Any, examples: Any) -> Any:
        return make_boxed_func(graph)

    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=run, bw_compiler=run))
    x = batch().requires_grad_()
    rank = recorded(tmp_path, lambda: compiled(x).sum().backward(), compile="opaque", data="tensor")
    if compiles_alike_under_modes:
        read = {call.inputs[0][2].id for call in rank.calls if call.op == "aten::addmm"}
        assert len(read) == 1


@pytest.mark.slow
@needs_results_of_compiled
@pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers")
def test_inductor_takes_saved_memory_again(tmp_path: Path) -> None:
    seed_all(3)
    model = nn.Sequential(nn.Linear(32, 16), nn.SiLU(), nn.Softmax(-1), nn.Linear(16, 4))
    compiled, x = torch.compile(model), torch.randn(8, 32, requires_grad=True)
    rank = recorded(tmp_path, lambda: compiled(x).square().mean().backward(), warm=False, compile="opaque")
    _assert_products_are_of_their_inputs(rank, "backward")
    assert not replay(rank).suspects


def test_a_graph_that_was_freed_within_a_compiled_function(tmp_path: Path) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * ctx.saved_tensors[0]

    model = _model()

    @torch.compile(backend="eager")
    def train() -> Tensor:
        loss = Scaled.apply(model(batch())).sum()
        loss.backward()
        return loss

    def program() -> Any:
        model.zero_grad()
        return train().detach(), [p.grad for p in model.parameters()]

    recorded(tmp_path, program, compile="opaque")


# -- by hand


class Compiled:
    """Knows of compiled calls; what steps aside and comes back is noted."""

    def __init__(self, how: str) -> None:
        self.watched = Watched(compile=how)
        self.log: list[str] = []
        self.calls = CompiledCalls(self.watched.watch, self.watched.config, self._aside)

    def _aside(self, ops_too: bool) -> Any:
        self.log.append("aside")
        return lambda: self.log.append("back")

    def run(self, function: Any, *args: Any) -> Any:
        self.calls.install()
        try:
            push_dispatch_mode(self.watched.modes.dispatch)
            return function(*args)
        finally:
            take_dispatch_mode_off(self.watched.modes.dispatch)
            self.calls.remove()


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize(("how", "compiled"), [("eager", 0), ("opaque", 1)])
def test_the_configuration_says_whether_it_runs_compiled(how: str, compiled: int) -> None:
    one, backend = Compiled(how), Backend()
    function = torch.compile(_plus_one, backend=backend)
    assert one.run(function, torch.ones(2)).tolist() == [2, 2]
    assert (backend.compiled, backend.runs) == (compiled, compiled)
    assert one.watched.notes() == {f"compile_{how}": 1}
    assert one.log == (["aside", "back"] if compiled else [])
    assert one.watched.names() == (["Torch.compile._plus_one"] if compiled else [])
    assert one.watched.recorder.step.here.state.aside == 0


def test_an_error_in_a_compiled_call_is_the_call_s() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("bad")

    one = Compiled("opaque")
    with pytest.raises(ValueError, match="bad"):
        one.run(torch.compile(fails, backend=Backend()), torch.ones(2))
    (call,) = one.watched.calls
    assert call.error is not None and "bad" in call.error and one.log == ["aside", "back"]


def test_memory_of_before_a_compiled_call_is_not_trusted_after_it() -> None:
    one, x = Compiled("opaque"), torch.ones(2)
    values = one.watched.recorder.values
    before = values.value_of(x, False)
    one.run(torch.compile(_plus_one, backend=Backend()), x)
    assert values.value_of(x, False) != before


def test_nodes_that_a_compiled_call_made_are_its_own() -> None:
    one, x = Compiled("opaque"), torch.ones(2, requires_grad=True)
    y = one.run(torch.compile(_plus_one, backend=Backend()), x)
    thread = one.watched.recorder.step.here.state
    (call,) = one.watched.calls
    assert y.grad_fn is not None and thread.made[y.grad_fn._sequence_nr()] == call.id
    assert thread.claimed == torch._C._autograd._get_sequence_nr() and thread.last_call == call.id


def test_what_runs_as_written_already_or_unseen_is_left_alone() -> None:
    one, function = Compiled("eager"), torch.compile(_plus_one, backend=Backend())
    one.calls.install()
    function(torch.ones(2))  # no mode is on this thread's stack
    one.watched.watch.turn_off()
    with one.watched.modes.dispatch:
        function(torch.ones(2))
    one.calls.remove()
    assert one.watched.notes() == {} and one.log == []


def test_dynamo_may_compile_where_calls_are_known_before_it_looks() -> None:
    for how, alone in (("eager", False), ("opaque", True)):
        one = Compiled(how)
        assert one.calls.lets_compile() is alone
        one.calls.install()
        assert one.calls.lets_compile()
        one.calls.remove()
        assert one.calls.lets_compile() is alone


def test_what_dynamo_asks_is_put_back() -> None:
    import torch._dynamo.eval_frame as module

    before, one = module._maybe_set_eval_frame, Compiled("eager")
    one.calls.install()
    one.calls.install()
    assert module._maybe_set_eval_frame is not before
    one.calls.remove()
    one.calls.remove()
    assert module._maybe_set_eval_frame is before


def test_an_import_is_waited_for_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_module.py").write_text("value = 3\n")
    (tmp_path / "other_module.py").write_text("value = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[str] = []
    finder = WhenImported("awaited_module", lambda: told.append(sys.modules["awaited_module"].value))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import importlib

    importlib.import_module("other_module")
    assert told == []
    module = importlib.import_module("awaited_module")
    assert told == [3], "when it has run"
    assert type(module.__loader__).__module__ != CompiledCalls.__module__ and module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__, "the loader is the one it would have had"
    importlib.import_module("awaited_module")
    assert told == [3]
    for name in ("awaited_module", "other_module"):
        monkeypatch.delitem(sys.modules, name)
