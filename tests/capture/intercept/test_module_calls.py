"""Module calls: seen with what the caller gave and what pre-hooks made of it, and no trace left on a module."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from aten_dump.capture.intercept.module_calls import ModuleCalls, PreHooks
from aten_dump.store import records as r
from tests.capture.intercept.modes import Asked
from tests.capture.intercept.watched import Watched


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(x) * scale


PICKLES: list[bytes] = []


def keep_pickle(module: nn.Module, args: Any) -> None:
    PICKLES.append(pickle.dumps(module))


class Seen:
    """A network whose calls are recorded."""

    def __init__(self) -> None:
        self.net = Net()
        self.watched = Watched(self.net)
        self.mode = Asked()
        self.calls = ModuleCalls(self.watched.watch, self.watched.paths, self.mode)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with self.watched.modes.dispatch:
            return self.net(*args, **kwargs)


@pytest.fixture
def seen() -> Iterator[Seen]:
    one = Seen()
    one.calls.install()
    yield one
    one.calls.remove()
    one.watched.recorder.close()


def test_each_module_is_a_call_by_its_path(seen: Seen) -> None:
    x = torch.ones(1, 2)
    y = seen.run(x, scale=2.0)
    assert seen.watched.names() == ["Module.fc", "Module.Net"], "the model itself by its class"
    inner, outer = seen.watched.calls
    assert inner.parent == outer.id and outer.kwargs == {"scale": 2.0}
    assert outer.outputs == (r.TREE_VALUE, seen.watched.recorder.values.value_of(y, False))


def test_an_error_is_the_program_s_and_the_calls(seen: Seen) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        seen.run(torch.ones(1, 3))
    assert [call.error is not None for call in seen.watched.calls] == [True, True]


def test_nothing_is_recorded_where_no_mode_is_or_recording_has_stopped(seen: Seen) -> None:
    seen.net(torch.ones(1, 2))
    assert seen.watched.notes() == {"other_threads": 2}
    seen.watched.watch.turn_off()
    seen.run(torch.ones(1, 2))
    assert seen.watched.names() == []
    seen.watched.watch.turn_on(seen.watched.recorder)


def test_pre_hooks_make_the_arguments_of_the_call(seen: Seen) -> None:
    x, other = torch.ones(1, 2), torch.zeros(1, 2)
    seen.net.register_forward_pre_hook(lambda module, args, kwargs: ((other,), {"scale": 5.0}), with_kwargs=True)
    seen.run(x)
    call = seen.watched.calls[-1]
    assert call.args == ((r.TREE_VALUE, seen.watched.recorder.values.value_of(other, False)),)
    assert call.kwargs == {"scale": 5.0}


def test_a_failure_to_find_a_path_lets_the_module_run(seen: Seen) -> None:
    class Odd(nn.Module):
        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("odd")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    with seen.watched.modes.dispatch:
        assert Odd()(torch.ones(1)).tolist() == [2]
    assert [type(error) for error in seen.watched.told.aloud] == [KeyError]


@pytest.mark.parametrize(("training", "depth"), [(True, 1), (False, 0)])
def test_modules_with_a_fast_path_take_it_as_in_the_bare_program(seen: Seen, training: bool, depth: int) -> None:
    """They ask whether any function mode is on; other modules run under ours."""
    depths: list[int] = []
    around = torch._C._len_torch_function_stack()
    attention = nn.MultiheadAttention(4, 1, batch_first=True).train(training)
    attention.register_forward_pre_hook(lambda *args: depths.append(torch._C._len_torch_function_stack()))
    x = torch.ones(1, 2, 4)
    with seen.watched.modes.dispatch, seen.mode:
        attention(x, x, x)
        seen.net.eval()
        seen.net.register_forward_pre_hook(lambda *args: depths.append(torch._C._len_torch_function_stack()))
        seen.net(torch.ones(1, 2))
        assert torch._C._len_torch_function_stack() == around + 1
    assert depths == [around + depth, around + 1]


def test_what_was_there_is_put_back() -> None:
    before, one = nn.Module.__call__, Seen()
    one.calls.remove()
    one.calls.install()
    assert nn.Module.__call__ is not before
    one.calls.remove()
    one.calls.remove()
    assert nn.Module.__call__ is before


# -- pre-hooks


def test_the_watch_sees_what_the_program_s_pre_hooks_made_and_is_gone_at_once() -> None:
    net, found = Net(), []
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    with PreHooks(net, lambda args, kwargs: found.append((args, kwargs, len(net._forward_pre_hooks)))):
        assert len(net._forward_pre_hooks) == 3
        net(torch.ones(1, 2), scale=3.0)
    ((args, kwargs, left),) = found
    assert args[0].tolist() == [[2, 2]] and kwargs == {"scale": 3.0} and left == 1
    assert len(net._forward_pre_hooks) == 1 and net._forward_pre_hooks_with_kwargs == {}


def test_it_is_gone_after_an_error_too() -> None:
    net = Net()

    def fails() -> None:
        with PreHooks(net, lambda args, kwargs: None):
            raise ValueError("the program's")

    with pytest.raises(ValueError, match="the program's"):
        fails()
    assert net._forward_pre_hooks == {} and net._forward_pre_hooks_with_kwargs == {}


def test_another_module_that_has_it_is_not_watched() -> None:
    net, other, found = Net(), Net(), []
    watch = PreHooks(net, lambda args, kwargs: found.append(args))
    watch(other, (1,), {})
    watch(net, (2,), {})
    assert found == []
    with watch:
        watch(other, (1,), {})
        watch(net, (2,), {})
        watch(net, (3,), {})
    assert found == [(2,)]


def test_a_copy_of_a_module_that_a_pre_hook_makes_has_no_watch_of_ours(seen: Seen) -> None:
    copies: list[nn.Module] = []
    seen.net.register_forward_pre_hook(lambda module, args: copies.append(copy.deepcopy(module)))
    seen.run(torch.ones(1, 2))
    seen.calls.remove()
    assert not any(isinstance(hook, PreHooks) for hook in copies[0]._forward_pre_hooks.values())
    before = len(seen.watched.calls)
    copies[0](torch.ones(1, 2))
    assert len(seen.watched.calls) == before
    seen.calls.install()


def test_a_pre_hook_sees_and_saves_the_module_without_ours(seen: Seen) -> None:
    """`torch.save(module)` in a pre-hook failed: a local function cannot be pickled."""
    PICKLES.clear()
    net = seen.net.cpu()
    net.register_forward_pre_hook(keep_pickle)
    seen.run(torch.ones(1, 2, device="cpu"))
    assert len(PICKLES) == 1
    assert len(pickle.loads(PICKLES[0])._forward_pre_hooks) == 1 == len(net._forward_pre_hooks)
    assert net._forward_pre_hooks_with_kwargs == {}


def test_a_copy_that_a_pre_hook_for_all_modules_makes_works_as_the_program_s_own(seen: Seen) -> None:
    copies: list[nn.Module] = []
    seen.net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def copies_once(module: nn.Module, args: Any) -> None:
        if not copies:
            copies.append(copy.deepcopy(module))

    handle = register_module_forward_pre_hook(copies_once)
    try:
        found = seen.run(torch.ones(1, 2))
    finally:
        handle.remove()
    assert torch.equal(copies[0](torch.ones(1, 2)), found)


def test_a_module_can_be_pickled_inside_the_block(seen: Seen) -> None:
    seen.run(torch.ones(1, 2))
    net = seen.net.cpu()  # torch_npu warns that an NPU's tensors cannot be pickled: the bare program crashes
    assert isinstance(pickle.loads(pickle.dumps(net)), Net)
