"""Threads and worker processes: recorded where the program asks for it, left alone elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.step.threads import Threads, ThreadState
from aten_dump.errors import CaptureError
from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, values
from tests.capture.process_state import changes, picture
from tests.devices import here
from tests.other_thread import in_thread

Record = Callable[..., Any]


def _dump(path: Path, body: Callable[[DumpMode], object], model: nn.Module | None = None, **config: Any) -> Any:
    with DumpMode(DumpConfig(path=str(path), **{"data": "tensor", **config}), model=model) as dump:
        body(dump)
    return open_dump(path).step(0).rank(0)


def test_a_thread_that_does_not_ask_is_not_recorded(tmp_path: Path) -> None:
    """Nor disturbed: its stacks are empty and its backward is its own."""
    model, seen = nn.Linear(3, 3), []

    def other() -> None:
        seen.append((torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()))
        model(torch.ones(2, 3, device=model.weight.device)).sum().backward()

    rank = _dump(tmp_path / "d", lambda dump: (torch.ones(2).exp(), in_thread(other), torch.ones(2).log()))
    assert seen == [(0, 0)]
    assert [c.op for c in calls(rank, kind="aten")] == ["aten::ones", "aten::exp", "aten::ones", "aten::log"]
    assert {c.kind for c in rank.calls} == {"api", "aten"}, "no node of the other thread's backward"
    assert {c.thread for c in rank.calls} == {0}
    assert model.weight.grad is not None


def test_a_thread_that_asks_is_recorded(tmp_path: Path) -> None:
    model, device = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), here()
    before = picture()

    def body(dump: DumpMode) -> None:
        def worker() -> None:
            with dump.thread():
                model(torch.ones(2, 3, device=device)).sum().backward()
            torch.ones(2).sin()
            assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == (0, 0)

        torch.ones(2).exp()
        in_thread(worker)
        with dump.thread():  # it is recorded already
            torch.ones(2).cos()
        with pytest.raises(CaptureError, match="thread that entered"):
            in_thread(dump.step)

    rank = _dump(tmp_path / "d", body, model)
    assert rank["Module.0.0.forward"].thread == 1
    assert rank["Module.0.0.forward"].module == "0"
    assert not calls(rank, op="aten::sin") and len(calls(rank, op="aten::cos")) == 1
    assert set(rank.gradients) == {"0.weight", "0.bias"}
    assert assert_linked(rank) > 3
    assert [c for c in changes(before, picture()) if not c.startswith("files")] == []


def test_equal_sequence_numbers_of_two_threads(tmp_path: Path) -> None:
    """Both threads make graphs whose nodes have the same numbers; one backward runs over both."""
    functions: list[Callable[[Tensor], Tensor]] = [
        torch.exp,
        torch.sin,
        torch.tanh,
        torch.cos,
        torch.sigmoid,
        torch.square,
    ]

    def body(dump: DumpMode) -> None:
        made: dict[int, Tensor] = {}
        numbers: dict[int, list[int]] = {0: [], 1: []}
        turn = threading.Barrier(2)

        def worker(which: int) -> None:
            with dump.thread():
                y = torch.full((4,), 0.3 + which, requires_grad=True)
                for function in functions if which else reversed(functions):
                    turn.wait()
                    y = function(y)
                    numbers[which].append(y.grad_fn._sequence_nr())  # type: ignore[union-attr]
                made[which] = y

        threads = [threading.Thread(target=worker, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(numbers[0]) & set(numbers[1]), "the numbers collide"
        (made[0] * made[1]).sum().backward()

    rank = _dump(tmp_path / "d", body)
    nodes = [c for c in calls(rank, kind="node") if c.name.split(".")[1] in FAMILIES]
    assert len(nodes) == 12
    for node in nodes:
        assert node.forward.op == FAMILIES[node.name.split(".")[1]], f"{node.name} belongs to {node.forward.name}"
        assert [tuple(v.shape) for v in values(node.inputs)] == [(4,)]
    assert {node.forward.thread for node in nodes} == {1, 2}
    assert len({node.forward.id for node in nodes}) == 12
    assert assert_linked(rank) > 12


FAMILIES = {
    "ExpBackward0": "aten::exp",
    "SinBackward0": "aten::sin",
    "TanhBackward0": "aten::tanh",
    "CosBackward0": "aten::cos",
    "SigmoidBackward0": "aten::sigmoid",
    "PowBackward0": "aten::pow.Tensor_Scalar",
}


def test_many_threads_at_once(tmp_path: Path) -> None:
    """Tables are shared: ids stay unique, every value keeps the bytes of its own thread, results are the bare ones."""
    device = here()  # other threads have no default device

    def work(seed: int) -> list[Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(16, 16, generator=generator, device=device, requires_grad=True)
        y = x
        for _ in range(25):
            y = torch.addmm(x, y, x).mul(0.05)
        y.sum().backward()
        return [y.detach(), x.grad]  # type: ignore[list-item]

    bare = [work(seed) for seed in range(4)]
    found: list[list[Tensor]] = []

    def body(dump: DumpMode) -> None:
        def run(seed: int) -> list[Tensor]:
            with dump.thread():
                return work(seed)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # let threads change places between any two lines of the recorder
        try:
            with ThreadPoolExecutor(4) as pool:
                found.extend(pool.map(run, range(4)))
        finally:
            sys.setswitchinterval(interval)

    rank = _dump(tmp_path / "d", body, stacks=False)
    for expected, got in zip(bare, found, strict=True):
        assert_same(expected[0], got[0])
        assert_same(expected[1], got[1])
    addmm = calls(rank, kind="aten", op="aten::addmm")
    assert len(addmm) == 100
    for call in addmm:
        a, b, c = (value.tensor().to(device) for value in values(call.inputs))
        assert_same(torch.addmm(a, b, c), call.outputs.tensor(), call.name)
        assert (only_node(call).thread == call.thread) == (here().type == "cpu"), "a device has one for all backwards"
    ids = [value.id for value in rank.values]
    assert len(set(ids)) == len(ids)
    assert assert_linked(rank) >= 200


def only_node(call: Any) -> Any:
    (node,) = [c for c in call.backward if c.kind == "node" and "Addmm" in c.name]
    return node


def test_backward_in_a_thread_that_is_not_recorded(tmp_path: Path) -> None:
    """The graph's hooks are run there: they keep still."""
    x = torch.ones(3, requires_grad=True)
    after: list[int] = []

    def body(dump: DumpMode) -> None:
        y = (x * 2).exp()

        def other() -> None:
            y.sum().backward()
            after.append(torch._C._len_torch_function_stack())

        in_thread(other)

    rank = _dump(tmp_path / "d", body)
    assert not calls(rank, phase="backward") and after == [0]
    assert_same(2 * (x.detach() * 2).exp(), x.grad)  # type: ignore[arg-type]


@pytest.fixture
def _worker_data_in_host_memory() -> Iterator[None]:
    """A worker that was forked cannot use the accelerator of its parent, in any program."""
    with torch.device("cpu"):
        yield


class Noise(Dataset[Tensor]):
    """A data set that computes with torch in the worker, and tells which process it ran in."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Tensor:
        y = self.model(torch.full((4,), float(number)))
        y.sum().backward()
        return torch.cat([y.detach(), torch.tensor([float(os.getpid()), torch.rand(()).item()])])


@pytest.mark.slow
@pytest.mark.usefixtures("_worker_data_in_host_memory")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(tmp_path: Path, start: str) -> None:
    data = Noise()

    def batches(dump: Any = None) -> list[Tensor]:
        torch.manual_seed(3)
        loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=start, persistent_workers=False)
        found = []
        for batch in loader:
            found.append(batch)
            if dump is not None:
                batch.exp()
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":  # the loader does not wait for those that feed its queues
                thread.join(30)
        return found

    bare = batches()
    before = picture()  # the first DataLoader of a process sets a handler of SIGCHLD, and leaves it
    found: list[Tensor] = []
    rank = _dump(tmp_path / "d", lambda dump: found.extend(batches(dump)))
    for expected, got in zip(bare, found, strict=True):
        assert int(got[0, 4]) != os.getpid()
        assert_same(torch.cat([expected[:, :4], expected[:, 5:]], 1), torch.cat([got[:, :4], got[:, 5:]], 1), "a batch")
    assert len(calls(rank, kind="aten", op="aten::exp")) == 3
    assert not calls(rank, kind="module") and not calls(rank, phase="backward")
    assert rank.complete and data.model.weight.grad is None
    assert [c for c in changes(before, picture()) if not c.startswith("files")] == []


def test_a_forked_child_may_end_the_block(tmp_path: Path) -> None:
    """A child that leaves the block writes nothing and damages nothing; it may record a dump of its own."""
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="tensor")) as dump:
        torch.ones(2).exp()
        child = os.fork()
        if child == 0:
            try:
                with torch.device("cpu"):  # nor can a child that was forked use its parent's accelerator
                    torch.ones(2).sin()
                    dump.step()
                    dump.close()
                    with DumpMode(DumpConfig(path=str(tmp_path / "child"), data="tensor")):
                        torch.ones(2).cos()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(2).log()
    rank = open_dump(tmp_path / "d").step(0).rank(0)
    assert rank.complete and open_dump(tmp_path / "d").steps == [0]
    assert [c.op for c in calls(rank, kind="aten") if c.op != "aten::ones"] == ["aten::exp", "aten::log"]
    assert open_dump(tmp_path / "child").step(0).rank(0).complete


def test_a_second_dump_mode_is_refused_in_plain_words(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "a"))) as outer:
        with (
            pytest.raises(CaptureError, match=r"writes to .*a'.*is still entered.*close\(\)"),
            DumpMode(DumpConfig(path=str(tmp_path / "b"))),
        ):
            pass
        with pytest.raises(CaptureError, match="already entered"):
            outer.__enter__()
        torch.ones(2).exp()
    assert calls(open_dump(tmp_path / "a").step(0).rank(0), op="aten::exp")
    assert not (tmp_path / "b").exists()
    with DumpMode(DumpConfig(path=str(tmp_path / "b"))):
        torch.ones(2).exp()


def test_threads_have_states_of_their_own_and_a_lock_from_the_second_on() -> None:
    threads = Threads()
    assert threads.here.state is threads.main and threads.main.own.lock is None
    found: list[ThreadState] = []
    in_thread(lambda: found.extend([threads.here.state, threads.here.state]))
    assert found[0] is found[1] and found[0] is not threads.main
    assert [state.number for state in threads.all] == [0, 1]
    assert threads.main.own.lock is found[0].own.lock is not None
    in_thread(lambda: found.append(threads.here.state))
    assert found[2].number == 2 and found[2].own.lock is threads.main.own.lock


def test_a_thread_that_is_new_waits_for_what_was_begun_without_the_lock() -> None:
    threads, joined = Threads(), threading.Event()
    threads.main.own.depth = 1

    def join() -> None:
        threads.here.state
        joined.set()

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    assert not joined.wait(0.1)
    assert threads.main.own.lock is not None, "what begins from now on takes it"
    threads.main.own.depth = 0
    assert joined.wait(20)


def test_a_thread_claims_from_the_node_it_makes_next() -> None:
    torch.ones(1, requires_grad=True).exp()
    state = Threads().main
    y = torch.ones(1, requires_grad=True).exp()
    assert y.grad_fn is not None
    assert state.first == state.claimed == state.noted == y.grad_fn._sequence_nr()


def test_an_optimizer_runs_in_a_backward_only_while_that_very_pass_runs() -> None:
    state, found = ThreadState(0, 0), []
    assert state.optimizer_runs_in_backward(), "no pass runs, and the optimizer began in none"
    state.optimizer_pass = 10**9
    assert not state.optimizer_runs_in_backward()
    y = torch.ones(1, requires_grad=True).exp()

    def hook(gradient: Tensor) -> None:
        found.append(state.optimizer_runs_in_backward())
        state.optimizer_pass = torch._C._current_graph_task_id()
        found.append(state.optimizer_runs_in_backward())

    y.register_hook(hook)
    y.backward(retain_graph=True)
    assert found == [False, True]
    assert not state.optimizer_runs_in_backward(), "the pass has ended"


def test_the_state_of_the_running_thread_is_the_same_by_either_way() -> None:
    threads = Threads()
    assert threads.running() is threads.here.state is threads.main
    found: list[ThreadState] = []
    in_thread(lambda: found.extend((threads.running(), threads.here.state)))
    assert found[0] is found[1] is not threads.main
