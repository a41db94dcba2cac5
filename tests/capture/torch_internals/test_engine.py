"""What autograd's engine is asked, by names that say what it is."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.torch_internals.engine import (
    ACCUMULATE_GRAD,
    is_grad_enabled,
    pass_makes_graph,
    queue_callback,
    running_node,
    runs_hook,
    top_saved_hooks,
)
from tests.torch_features import needs_saved_hooks_shown


def test_the_running_node_is_known_inside_a_backward_only() -> None:
    x = torch.ones(1, requires_grad=True)
    y, found = x.exp(), []
    assert y.grad_fn is not None and running_node() is None
    y.grad_fn.register_prehook(lambda gradients: found.append(running_node()._sequence_nr()))
    x.register_hook(lambda gradient: found.append(is_grad_enabled()))
    y.backward()
    assert found == [y.grad_fn._sequence_nr(), False] and is_grad_enabled()


def test_the_number_of_nodes_that_accumulate_into_a_leaf() -> None:
    x = torch.ones(1, requires_grad=True)
    leaf = x.exp().grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert leaf._sequence_nr() == ACCUMULATE_GRAD


def test_a_callback_comes_when_the_last_node_has_run_and_may_queue_another() -> None:
    x, order = torch.ones(1, requires_grad=True), []

    def last() -> None:
        order.append("first callback")
        queue_callback(lambda: order.append("second callback"))

    def hook(gradient: torch.Tensor) -> None:
        order.append("node")
        queue_callback(last)

    y = x.exp()
    y.register_hook(hook)
    x.register_post_accumulate_grad_hook(lambda leaf: order.append("leaf"))
    y.backward()
    assert order == ["node", "leaf", "first callback", "second callback"]


@pytest.mark.parametrize("creates_graph", [False, True])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_whether_a_pass_makes_a_graph_is_told_in_hooks_with_any_grad_mode(creates_graph: bool) -> None:
    x, found = torch.ones(1, requires_grad=True), []

    def hook(gradient: torch.Tensor) -> None:
        with torch.set_grad_enabled(not creates_graph):
            found.append(pass_makes_graph(sys._getframe(), is_grad_enabled()))

    y = x.exp()
    y.register_hook(hook)
    y.backward(create_graph=creates_graph, retain_graph=True)
    torch.autograd.grad(x.sin() * y, x, create_graph=creates_graph)
    assert found == [creates_graph] * 2
    x.grad = None


@pytest.mark.parametrize("has_grad", [False, True])
def test_where_no_frame_tells_whether_a_pass_makes_a_graph_the_grad_mode_does(has_grad: bool) -> None:
    assert pass_makes_graph(None, has_grad) is pass_makes_graph(sys._getframe(), has_grad) is has_grad


GRAPH = torch.autograd.graph.__file__


class Asking(TorchDispatchMode):
    """Asks about each op, and about those that it is itself asked for."""

    def __init__(self, question: Callable[[], bool]) -> None:
        super().__init__()
        self.question = question
        self.found: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if running_node() is not None:
            self.found.append((func.__name__.partition(".")[0], self.question()))
        return func(*args, **(kwargs or {}))


def test_what_a_hook_runs_is_told_from_a_formula_by_the_frames_below() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x.exp()

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.abs()

    y.register_hook(hook)

    def asked() -> bool:
        frame = sys._getframe()
        while frame.f_code.co_filename != GRAPH and frame.f_code.co_name != "hook":  # what calls modes, and they
            assert frame.f_back is not None
            frame = frame.f_back
        return runs_hook(frame, True)

    with Asking(asked) as mode:
        y.cos().backward()
    assert ("abs", True) in mode.found
    assert {found for found in mode.found if found[0] != "abs"} == {
        ("sin", False),
        ("neg", False),
        ("mul", False),
        ("detach", False),
    }


def test_where_the_program_s_mode_hands_an_op_on_nobody_knows_who_called_it() -> None:
    with Asking(lambda: runs_hook(sys._getframe(), True)) as mode:
        torch.ones(1, requires_grad=True).exp().backward()
    assert mode.found and not any(is_hook for _, is_hook in mode.found)


def test_on_a_thread_of_the_engine_s_all_frames_are_a_hook_s() -> None:
    def hook() -> tuple[bool, bool]:
        return runs_hook(sys._getframe(), False), runs_hook(sys._getframe(), True)

    found: list[tuple[bool, bool]] = []
    done = threading.Event()
    _thread.start_new_thread(lambda: (found.append(hook()), done.set()), ())  # as the engine's: with no frame below
    assert done.wait(10) and found == [(True, False)]
    thread = threading.Thread(target=lambda: found.append(hook()))
    thread.start()
    thread.join()
    assert found[1] == (False, False), "a thread of the program's"
    assert not runs_hook(None, False)


@needs_saved_hooks_shown
def test_the_innermost_saved_tensor_hooks_are_the_program_s() -> None:
    assert top_saved_hooks(False) is None
    pack, unpack = (lambda t: t), (lambda t: t)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        found = top_saved_hooks(False)
    assert found is not None and found[0] is pack and found[1] is unpack
