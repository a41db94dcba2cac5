"""Promise 3: every backward op knows its forward call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.autograd.graph_links import OUTPUT_BITS, note_input_edges
from aten_dump.capture.naming.call_name import API, MODULE, CallName
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.store import records as r
from tests.capture.autograd.links import Cube, assert_linked, is_accumulation
from tests.capture.bits import assert_same, calls, only, values
from tests.capture.calls.recorded_ops import Recorded
from tests.capture.oracle import run
from tests.devices import here, op_here
from tests.models import build, train_step
from tests.torch_features import needs_saved_tensors

Record = Callable[..., Any]

# The forward op whose autograd node has this name.
FAMILIES = {
    "AddmmBackward0": {"aten::addmm"},
    "MmBackward0": {"aten::mm"},
    "BmmBackward0": {"aten::bmm"},
    "TBackward0": {"aten::t"},
    "AddBackward0": {"aten::add.Tensor", "aten::add_.Tensor"},
    "MulBackward0": {"aten::mul.Tensor", "aten::mul_.Tensor"},
    "PowBackward0": {"aten::pow.Tensor_Scalar"},
    "TanhBackward0": {"aten::tanh"},
    "GeluBackward0": {"aten::gelu"},
    "SiluBackward0": {"aten::silu"},
    "RsqrtBackward0": {"aten::rsqrt"},
    "ReluBackward0": {"aten::relu", "aten::relu_"},
    "SoftmaxBackward0": {"aten::_softmax"},
    "LogSoftmaxBackward0": {"aten::_log_softmax"},
    "NllLossBackward0": {"aten::nll_loss_forward"},
    "NativeLayerNormBackward0": {"aten::native_layer_norm"},
    "NativeBatchNormBackward0": {"aten::native_batch_norm"},
    "NativeDropoutBackward0": {"aten::native_dropout"},
    "ConvolutionBackward0": {"aten::convolution"},
    "MaxPool2DWithIndicesBackward0": {"aten::max_pool2d_with_indices"},
    "EmbeddingBackward0": {"aten::embedding"},
    "SplitBackward0": {"aten::split.Tensor"},
    "CatBackward0": {"aten::cat"},
    "CloneBackward0": {"aten::clone"},
    "ViewBackward0": {"aten::view"},
    "UnsafeViewBackward0": {"aten::_unsafe_view"},
    "TransposeBackward0": {"aten::transpose.int"},
    "UnsqueezeBackward0": {"aten::unsqueeze"},
    "ExpandBackward0": {"aten::expand"},
    "SliceBackward0": {"aten::slice.Tensor"},
    "ScaledDotProductFlashAttentionForCpuBackward0": {"aten::_scaled_dot_product_flash_attention_for_cpu"},
}


@pytest.mark.parametrize("level", ["aten", "mix"])
@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "resnet"])
def test_every_backward_call_of_a_model_has_its_forward_call(record: Record, model: str, level: str) -> None:
    program = build(model)
    rank = record(lambda: train_step(program, 2), program.model, level=level, data="structure")
    assert assert_linked(rank) > 100
    aten = calls(rank, kind="aten", phase="backward")
    assert all(call.forward.kind == "aten" for call in aten if not is_accumulation(call))


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "resnet"])
def test_nodes_belong_to_an_op_of_their_family_with_the_same_shapes(record: Record, model: str) -> None:
    program = build(model)
    rank = record(lambda: train_step(program, 2), program.model, data="structure")
    families = 0
    for node in calls(rank, kind="node", phase="backward"):
        name = node.name.split(".")[1]
        if name in FAMILIES:
            families += 1
            assert node.forward.op in FAMILIES[name], f"{node.name} belongs to {node.forward.name}"
            gradients, outputs = values(node.inputs), values(node.forward.outputs)
            shapes = [tuple(v.shape) for v in outputs]
            assert all(tuple(g.shape) in shapes for g in gradients), (
                f"{node.name}: gradients do not fit {node.forward.name}"
            )
            assert node.sequence_nr == node.forward.sequence_nr
    assert families > (30 if here().type == "cuda" else 40)  # cuDNN has nodes of its own names


@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_nodes_run_in_the_reverse_order_of_their_forward_calls(record: Record, model: str) -> None:
    """The engine runs the node with the greatest sequence number that is ready, in one chain of layers."""
    program = build(model)
    rank = record(lambda: train_step(program), program.model, data="structure")
    nodes = [
        n
        for n in calls(rank, kind="node", phase="backward")
        if n.name.split(".")[1] in ("AddmmBackward0", "ConvolutionBackward0")
    ]
    forward_ids = [node.forward.id for node in nodes]
    assert len(set(forward_ids)) == len(forward_ids) > 4
    assert forward_ids == sorted(forward_ids, reverse=True)


class _Watch(TorchDispatchMode):
    """Notes which node runs while each op runs, told by prehooks on the nodes."""

    running: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func.name(), self.running))
        return run(func, args, kwargs or {})


def test_links_agree_with_prehooks_on_every_node(record: Record) -> None:
    watch = _Watch()
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    lines: list[Callable[[Tensor], Tensor]] = [
        lambda y: torch.mm(y, w), torch.exp, lambda y: y + x, lambda y: y.mul_(2), lambda y: y * x, torch.tanh, lambda y: y.view(6, 4), lambda y: y.t(),
        lambda y: y.sigmoid(), lambda y: torch.cat([y, y]), lambda y: y[:4], lambda y: torch.addmm(x, y, w),
        torch.relu_, lambda y: y - x, lambda y: y.pow(2), lambda y: y / (x.detach().abs() + 1), lambda y: y.clone(), lambda y: y.sum(1, keepdim=True),
        lambda y: y.expand(4, 6), lambda y: torch.mm(y, w), lambda y: y.softmax(-1), lambda y: torch.where(y > 0, y, x), torch.neg, torch.sum,
    ]  # fmt: skip
    made: list[int] = []  # which recorded op made the node of each line

    def body() -> None:
        y = x * 1
        with watch:
            for i, line in enumerate(lines):
                y = line(y)
                # Some ops detach what they save: the op that made the node is the one before.
                made.append(max(n for n, (op, _) in enumerate(watch.seen) if op != "aten::detach"))
                y.grad_fn.register_prehook(lambda _grads, i=i: setattr(watch, "running", i))  # type: ignore[union-attr]
            y.backward()

    rank = record(body, data="structure")
    recorded = list(calls(rank, kind="aten"))[1:]  # the first is x * 1
    assert [c.op for c in recorded[: len(watch.seen)]] == [op for op, _ in watch.seen]
    linked = 0
    for call, (op, line) in zip(recorded, watch.seen, strict=True):
        if line is None or is_accumulation(call) or call.parent is None or call.parent.kind != "node":
            continue
        made_by = recorded[made[line]]
        if call.forward.op == "aten::mul.Tensor" and line == 0:
            continue  # x * 1, the one node without a prehook
        assert call.forward.id == made_by.id, (
            f"{op} ran under the node of {made_by.name} but links to {call.forward.name}"
        )
        linked += 1
    assert linked >= 15


def test_in_place_write_to_a_view(record: Record) -> None:
    """The view's node is made anew behind the op (CopySlices): still every op has a forward call."""
    x = torch.randn(4, 5, requires_grad=True)

    def body() -> None:
        y = x * 2
        y[1].mul_(3)
        v = y[2]
        v.exp_()
        (y.sum() + v.sum()).backward()

    rank = record(body, data="structure")
    assert assert_linked(rank) > 5


def test_custom_autograd_function(record: Record) -> None:
    x = torch.randn(3, requires_grad=True)

    def body() -> None:
        Cube.apply(x * 1).sum().backward()

    rank = record(body, data="tensor")
    assert_linked(rank)
    node = only([c for c in calls(rank, kind="node") if "Cube" in c.name])
    inner = [c for c in calls(rank, kind="aten") if node.id in _ancestors(c)]
    assert [c.op for c in inner] == ["aten::mul.Tensor"] * 3
    assert_same(3 * x.detach() * x.detach(), values(node.outputs)[0].tensor())


def _ancestors(call: Any) -> list[int]:
    found = []
    while call.parent is not None:
        call = call.parent
        found.append(call.id)
    return found


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recompute_points_at_the_original_call(record: Record, reentrant: bool) -> None:
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def inner(y: Tensor) -> Tensor:
        return torch.tanh(y @ w)

    rank = record(lambda: checkpoint(inner, x, use_reentrant=reentrant).sum().backward(), data="tensor")
    again = calls(rank, kind="aten", phase="recompute")
    computing = [call for call in again if call.op != "aten::detach"]
    assert [call.op for call in computing] == [op_here("aten::mm"), "aten::tanh"]
    for call in computing:
        assert call.forward is not None and call.forward.phase == "forward", f"{call.name} has no original call"
        assert call.forward.op == call.op
        assert_same(call.forward.outputs.tensor(), call.outputs.tensor(), call.name)
    assert_linked(rank)
    assert_same(torch.autograd.grad(inner(x).sum(), w)[0], w.grad)


def test_a_second_backward_is_another_call(record: Record) -> None:
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    first, second = torch.randn(4, 3), torch.randn(4, 3)

    def body() -> None:
        y = F.linear(x, w)
        y.backward(first, retain_graph=True)
        y.backward(second)

    rank = record(body, data="tensor")
    forward = rank["Functional.linear.0.forward"]
    names = [c.name for c in forward.backward if c.kind == "api"]
    assert names == ["Functional.linear.0.backward", "Functional.linear.0.backward.1"]
    assert_same(first, rank.tensor("Functional.linear.0.backward.input.0"))
    assert_same(second, rank.tensor("Functional.linear.0.backward.1.input.0"))
    assert_same(second.t() @ x.detach(), rank.tensor("Functional.linear.0.backward.1.output.1"))
    assert_linked(rank)


def test_backward_inside_backward(record: Record) -> None:
    """create_graph: ops of the first backward are forward calls of the second."""
    x = torch.randn(5, requires_grad=True)

    def body() -> None:
        (g,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        g.pow(2).sum().backward()

    rank = record(body, data="tensor")
    backward = [call for call in calls(rank, kind="aten", phase="backward") if not is_accumulation(call)]
    assert len(backward) > 10
    for call in backward:
        assert call.forward is not None, f"{call.name} ({call.op}) has no forward call"
    assert torch.allclose(x.grad, 36 * x.detach() ** 3)  # type: ignore[arg-type]


# -- by hand: ops run unseen, and calls claim what they made


class Linked:
    """The links of a step; `ran` says that an aten call has made what torch has made since the last."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        self.links, self.tags = self.recorded.links, self.recorded.tags
        self.count = 100

    def ran(self) -> int:
        self.count += 1
        thread = self.recorded.thread
        thread.grad = torch.is_grad_enabled()  # as an op that begins has it set
        self.tags.claims.claim(thread, self.count, _get_sequence_nr())
        thread.last_call = self.count
        return self.count

    def call(self, *inputs: Tensor, parent: OpenCall | None = None, kind: int = API) -> OpenCall:
        """Begin a call that is given these tensors."""
        call = OpenCall(self.recorded.step.next_id(), kind, CallName("f", "Torch", "f"), parent)
        note_input_edges(call, [((i,), tensor) for i, tensor in enumerate(inputs)])
        call.sequence_start = torch._C._autograd._get_sequence_nr()
        return call

    def track(self, call: OpenCall, *outputs: Tensor) -> None:
        self.links.track(call, [((i,), tensor) for i, tensor in enumerate(outputs)], self.recorded.thread)

    def tag(self, tensor: Tensor) -> Any:
        tag = self.tags.of(tensor.grad_fn)
        assert tag is not None
        return tag


def test_edges_are_those_of_tensors_with_gradient_and_of_views_by_output() -> None:
    leaf, plain = torch.ones(2, requires_grad=True), torch.ones(2)
    made = leaf.exp()
    low, high = made.unbind()
    number, split = made.grad_fn._sequence_nr(), low.grad_fn._sequence_nr()  # type: ignore[union-attr]
    call = OpenCall(1, API, CallName("f", "Torch", "f"), None)
    note_input_edges(call, [((0,), plain)])
    assert (call.input_edges, call.edge_paths) == (None, ())
    note_input_edges(call, [((0,), leaf), ((1,), made), ((2,), high), (("k",), leaf), ((4,), plain), ((5,), low)])
    to_leaf, to_made, to_low = -id(leaf), number << OUTPUT_BITS, split << OUTPUT_BITS
    assert call.input_edges == dict.fromkeys((to_leaf, to_made, to_low, to_low + 1), 0)
    assert call.edge_paths == (to_leaf, (0,), to_made, (1,), to_low + 1, (2,), to_leaf, ("k",), to_low, (5,))


def test_nodes_between_a_call_s_inputs_and_outputs_are_the_call_s() -> None:
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    before = x.exp()
    first = linked.ran()
    call = linked.call(before, x)
    middle = before.sin()
    second = linked.ran()
    after = middle * x
    third = linked.ran()
    linked.track(call, after)
    assert [linked.tag(t).forward for t in (before, middle, after)] == [first, second, third]
    assert [linked.tag(t).owner for t in (before, middle, after)] == [None, call, call]
    assert linked.tag(after).receives == (0, None, (0,)) and linked.tag(middle).receives == ()
    number = before.grad_fn._sequence_nr()  # type: ignore[union-attr]
    to_before, to_x = number << OUTPUT_BITS, -id(x)
    assert linked.tag(middle).sends == (0, None, to_before)
    assert linked.tag(after).sends == (1, None, to_x), "and not the edge that stays inside"
    assert call.input_edges == {to_before: 1, to_x: 1}


def test_a_leaf_belongs_to_the_first_call_that_used_it_and_to_its_module() -> None:
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    module = linked.call(x, kind=MODULE)
    call = linked.call(x, parent=module)
    y = x.exp()
    first = linked.ran()
    z = x.sin()
    second = linked.ran()
    linked.track(call, z)
    leaf = linked.tags.of(z.grad_fn.next_functions[0][0])  # type: ignore[union-attr]
    assert leaf is not None and (leaf.leaf, leaf.forward, leaf.owner) == (id(x), second, module)
    linked.track(call, y)
    assert leaf.forward == first


def test_a_call_that_hands_on_what_it_was_given_made_nothing() -> None:
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    y = x.exp()
    linked.ran()
    call = linked.call(y)
    linked.track(call, y)
    assert linked.tag(y).receives == () and linked.tag(y).owner is None


def test_gradients_to_an_input_come_from_each_node_that_used_it() -> None:
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    outer = linked.call(x, kind=MODULE)
    inner = linked.call(x, parent=outer)
    y = x.exp() + x.sin() + x
    linked.ran()
    linked.track(inner, y)
    assert inner.input_edges == outer.input_edges == {-id(x): 3}


def test_a_graph_of_before_the_step_is_not_walked() -> None:
    x = torch.ones(2, requires_grad=True)
    old = x.exp()
    linked = Linked()
    y = old.sin()
    linked.ran()
    linked.track(linked.call(), y)
    assert linked.tags.of(y.grad_fn) is not None and linked.tags.of(old.grad_fn) is None


def test_a_tag_of_another_step_is_replaced() -> None:
    x = torch.ones(2, requires_grad=True)
    first, second = Linked(), Linked()
    y = x.exp()
    for linked in (first, second):
        linked.ran()
        linked.track(linked.call(), y)
    assert second.tag(y).tags is second.tags and first.tags.of(y.grad_fn) is None


@needs_saved_tensors
def test_what_a_node_saved_is_told_under_the_op_that_made_it() -> None:
    linked = Linked()
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    ids = [linked.recorded.values.value_of(t, False) for t in (x, w)]
    y = x * w
    made = linked.ran()
    (y + 1).sum()
    linked.ran()
    linked.track(linked.call(), y)
    (saved,) = linked.recorded.sink.of(r.SAVED)
    assert (saved.call, saved.node, set(saved.values)) == (made, "MulBackward0", set(ids))


@needs_saved_tensors
def test_python_numbers_that_a_node_saved_are_left_out_but_not_a_tensor_without_dimensions() -> None:
    linked, x, scale = Linked(), torch.ones(2, requires_grad=True), torch.tensor(2.0)
    number = linked.recorded.values.value_of(scale, False)
    for factor, expected in ((2.0, []), (scale, [[number]])):
        y = x * factor
        linked.ran()
        linked.track(linked.call(), y)
        assert [list(saved.values) for saved in linked.recorded.sink.of(r.SAVED)] == expected


@needs_saved_tensors
def test_a_node_under_the_program_s_saved_tensor_hooks_runs_python_and_is_counted() -> None:
    for hooked in (True, False):
        linked, x = Linked(), torch.ones(2, requires_grad=True)
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
        if hooked:
            with hooks:
                y = x.exp()
                linked.ran()
                linked.track(linked.call(), y)
        else:
            y = x.exp()
            linked.ran()
            linked.track(linked.call(), y)
        assert linked.tag(y).runs_python is hooked
        assert linked.recorded.notes() == ({"saved_hooks": 1} if hooked else {})


def test_the_backward_of_a_custom_function_is_that_of_all_of_its_forward() -> None:
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    call = linked.call(x)
    call.name, call.is_function = CallName("Cube", "Torch", "Cube"), True
    y = Cube.apply(x)
    linked.ran()
    linked.track(call, y)
    assert linked.tag(y).forward == call.id and linked.tag(y).runs_python
    linked, x = Linked(), torch.ones(2, requires_grad=True)
    y = Cube.apply(x)
    made = linked.ran()
    linked.track(linked.call(), y)
    assert linked.tag(y).forward == made, "where its apply was not seen, the op that has claimed it"


def _of_another_thread(make: Callable[[], Tensor]) -> Tensor:
    """Return what a thread that has made no node yet makes: its nodes are numbered from 0."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def test_of_inputs_whose_nodes_have_one_number_no_edge_leads_to_either() -> None:
    """Each was given the sum of both gradients."""
    x = torch.ones(2, requires_grad=True)
    one, other = (_of_another_thread(lambda: x * 2) for _ in range(2))
    assert one.grad_fn is not other.grad_fn and one.grad_fn._sequence_nr() == other.grad_fn._sequence_nr()  # type: ignore[union-attr]
    call = OpenCall(1, API, CallName("f", "Torch", "f"), None)
    note_input_edges(call, [((0,), x), ((1,), one), ((2,), other), ((3,), one)])
    assert call.edge_paths == (-id(x), (0,))


def test_an_input_of_another_thread_that_is_ahead_has_no_edge() -> None:
    """A node that this call is about to make would be taken for it."""
    x, count = torch.ones(2, requires_grad=True), _get_sequence_nr() + 10
    ahead = _of_another_thread(lambda: [x * 2 for _ in range(count)][-1])
    call = OpenCall(1, API, CallName("f", "Torch", "f"), None)
    call.sequence_start = _get_sequence_nr()
    note_input_edges(call, [((0,), x), ((1,), ahead)])
    assert call.edge_paths == (-id(x), (0,)) and call.input_edges == {-id(x): 0}


def test_gradients_of_inputs_that_several_threads_made_are_right_or_not_told(tmp_path: Path) -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")):
        one = _of_another_thread(lambda: a * 2)
        other = _of_another_thread(lambda: b * 3)
        torch.mul(torch.mul(one, other), one.detach()).sum().backward()
    calls = open_dump(tmp_path / "dump").step(0).rank(0)
    assert list(calls["Torch.mul.0.backward"].outputs) == [None, None]
    found, _ = calls["Torch.mul.1.backward"].outputs
    assert found.tensor().tolist() == [2.0, 2.0], "this thread's own"


class _OwnName(torch.Tensor):
    @property
    def grad_fn(self) -> Any:
        return "made by a class of the program's"


class _Raises(torch.Tensor):
    @property
    def grad_fn(self) -> Any:
        raise RuntimeError("not here")


@pytest.mark.parametrize("kind", [_OwnName, _Raises])
def test_a_class_whose_grad_fn_is_no_node(tmp_path: Path, kind: Any) -> None:
    model = torch.nn.Linear(3, 3)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full"), model=model):
        x = torch.randn(2, 3, requires_grad=True).as_subclass(kind)
        (model(x) * 2).sum().backward()
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    assert not [note for note in rank.notes if note.code == "failed"]
    assert "aten::mm" in {call.op for call in rank.calls if call.phase == "backward"}
