"""Promise 1 over what real programs do: each of these gives the same bits bare and dumped."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same, calls, tensors
from tests.capture.compared_with_oracle import compare_call
from tests.capture.oracle import Oracle
from tests.devices import here
from tests.models import build, seed_all, train_step


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3))


def _gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def checkpoint_without_reentry() -> Any:
    net, x = _net(), torch.randn(4, 6, requires_grad=True)
    checkpoint(net, x, use_reentrant=False).pow(2).sum().backward()
    return x.grad, _gradients(net), torch.rand(1)


def checkpoint_with_reentry() -> Any:
    net, x = _net(), torch.randn(4, 6, requires_grad=True)
    checkpoint(net, x, use_reentrant=True).pow(2).sum().backward()
    return x.grad, _gradients(net), torch.rand(1)


def checkpoint_of_a_part() -> Any:
    net, x = _net(), torch.randn(4, 6, requires_grad=True)
    checkpoint_sequential(net, 2, x, use_reentrant=False).sum().backward()
    return x.grad, _gradients(net)


def selective_checkpoint() -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    net, x = _net(), torch.randn(4, 6, requires_grad=True)
    out = checkpoint(net, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    out.sum().backward()
    return x.grad, _gradients(net)


def autocast() -> Any:
    net, x = _net(), torch.randn(4, 6)
    with torch.autocast(here().type, dtype=torch.bfloat16):
        out = net(x)
    out.float().sum().backward()
    return out, _gradients(net)


def vmap_of_grad() -> Any:
    w = torch.randn(5, 3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((x @ w).tanh() - y).pow(2).sum()

    return torch.func.vmap(torch.func.grad(loss))(torch.randn(7, 5), torch.randn(7, 3)), torch.func.jacrev(
        lambda x: x.sin()
    )(w)


def forward_mode_gradient() -> Any:
    return torch.func.jvp(lambda x: x.exp().sum(), (torch.randn(4),), (torch.ones(4),))


def functional_call() -> Any:
    net = nn.Linear(3, 2)
    weights = {n: torch.randn_like(p, requires_grad=True) for n, p in net.named_parameters()}
    torch.func.functional_call(net, weights, (torch.randn(4, 3),)).sum().backward()
    return [w.grad for w in weights.values()]


def gradient_penalty() -> Any:
    net, x = _net().eval(), torch.randn(4, 6, requires_grad=True)
    (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (g.norm(dim=1) - 1).pow(2).mean().backward()
    return _gradients(net), x.grad


def lstm() -> Any:
    net = nn.LSTM(4, 5, num_layers=2, dropout=0.2, batch_first=True)
    out, (h, c) = net(torch.randn(2, 3, 4))
    (out.sum() + h.sum() + c.sum()).backward()
    return out, _gradients(net)


def packed_sequence() -> Any:
    net = nn.GRU(4, 5)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    out, _ = nn.utils.rnn.pad_packed_sequence(net(packed)[0])
    out.sum().backward()
    return out, _gradients(net)


def transformer_encoder() -> Any:
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    out = net(torch.randn(2, 5, 8))
    out.sum().backward()
    return out, _gradients(net)


def transformer_encoder_inference() -> Any:
    """torch takes a fused path here, unless `has_torch_function` says that a TorchFunctionMode is on."""
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        return net(torch.randn(2, 5, 8))


def scripted_module() -> Any:
    net = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    x = torch.randn(2, 3, requires_grad=True)
    for _ in range(3):
        net(x).sum().backward()
    return x.grad, _gradients(net)


def compiled_eager() -> Any:
    torch._dynamo.reset()
    net = torch.compile(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), backend="eager")
    x = torch.randn(2, 3, requires_grad=True)
    net(x).sum().backward()
    return x.grad, _gradients(net)


def user_hooks() -> Any:
    net, x, seen = _net(), torch.randn(4, 6, requires_grad=True), []
    net[0].register_forward_hook(lambda _m, _i, out: out * 2)
    net[2].register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
    net[2].register_full_backward_hook(lambda _m, gi, go: (gi[0] * 3,))
    net[5].weight.register_hook(lambda g: g * 0.5)
    net[5].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = net(x)
    y.register_hook(lambda g: seen.append(g.clone()))
    y.sum().backward()
    return y, x.grad, _gradients(net), seen


def optimizer_in_backward() -> Any:
    net = _net()
    for p in net.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.register_post_accumulate_grad_hook(lambda _p, o=optimizer: o.step())
        p.register_post_accumulate_grad_hook(lambda _p, o=optimizer: o.zero_grad())
    for _ in range(2):
        net(torch.randn(4, 6)).sum().backward()
    return list(net.parameters())


def clipped_gradients() -> Any:
    net = _net()
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)
    for _ in range(2):
        net(torch.randn(4, 6)).pow(2).sum().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return norm, list(net.parameters())


def lbfgs() -> Any:
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (w - 1).pow(4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return w


def weight_sharing_and_parametrization() -> Any:
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    c = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    d = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    d(c(b(a(torch.randn(2, 4))))).sum().backward()
    return _gradients(nn.ModuleList([a, b, c, d]))


def saving_and_copying() -> Any:
    net = _net()
    twin = copy.deepcopy(net)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    twin.load_state_dict(torch.load(buffer))
    ema = torch.optim.swa_utils.AveragedModel(net)
    ema.update_parameters(net)
    return list(twin.parameters()), list(ema.module.parameters())


def inference_mode() -> Any:
    net, x = _net().eval(), torch.randn(4, 6)
    with torch.inference_mode():
        y = net(x)
        y.add_(1)
        z = y[1:].clone()
    return y.clone(), z, y.is_inference() and torch.ones(1)


def data_surgery() -> Any:
    w = nn.Parameter(torch.randn(4))
    w.data = w.data * 2
    w.data.mul_(3)
    with torch.no_grad():
        w.set_(torch.randn(4))
    x = torch.zeros(2)
    x.resize_(4).fill_(1)
    x.untyped_storage().resize_(32)
    return w * 1, x


def threads() -> Any:
    x, results = torch.randn(4, 4, requires_grad=True), []

    def work() -> None:
        results.append(torch.autograd.grad((x @ x).sum(), x)[0])

    y = x.exp()
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    y.sum().backward()
    return results, x.grad


def data_loader_workers() -> Any:
    with torch.device("cpu"):  # workers that are forked cannot use an accelerator of their parent's
        data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, num_workers=1)
        return [batch[0] * 2 for batch in loader]


def random_numbers() -> Any:
    generator = torch.Generator(here()).manual_seed(4)
    own = torch.rand(3, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        inner = torch.randn(2)
    sample = torch.distributions.Categorical(logits=torch.randn(5)).sample((4,))
    return own, inner, sample, torch.randperm(6), torch.bernoulli(torch.full((5,), 0.5)), torch.rand(2)


def fft_linalg_and_complex() -> Any:
    x = torch.randn(4, 4, requires_grad=True)
    y = torch.fft.rfft2(x).abs().sum() + torch.linalg.svdvals(x).sum() + torch.linalg.inv(x + 5 * torch.eye(4)).sum()
    y.backward()
    return y, x.grad


def indexing() -> Any:
    x = torch.randn(5, 4, requires_grad=True)
    y = x * 1
    y[y > 0] = 0
    y[[0, 2], 1:3] *= 2
    y.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4))
    z = y.gather(1, torch.zeros(5, 1, dtype=torch.long)) + torch.nonzero(y > 0).sum()
    z.sum().backward()
    return y, z, x.grad


def flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention as attend

    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    return attend(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))


def conditional_operator() -> Any:
    x = torch.randn(4)
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


def custom_op() -> Any:
    name = "aten_dump_test::twice"
    if not hasattr(torch.ops.aten_dump_test, "twice"):

        @torch.library.custom_op(name, mutates_args=("out",))
        def twice(x: Tensor, out: Tensor) -> None:
            out.copy_(x * 2)

    x, out = torch.randn(3), torch.zeros(3)
    torch.ops.aten_dump_test.twice(x, out)
    return out, out + 1


def multi_grad_and_accumulation_into_views() -> Any:
    flat = torch.zeros(12)
    w = nn.Parameter(torch.randn(3, 4))
    w.grad = flat.view(3, 4)
    for _ in range(3):
        (w * torch.randn(3, 4)).sum().backward()
    return flat, w.grad


def eval_between_steps() -> Any:
    program = build("resnet")
    results = []
    for _ in range(2):
        results.append(train_step(program))
        program.model.eval()
        with torch.no_grad():
            results.append(program.loss(program.model))
        program.model.train()
    return results, list(program.model.buffers())


PROGRAMS: list[Callable[[], Any]] = [
    checkpoint_without_reentry, checkpoint_with_reentry, checkpoint_of_a_part, selective_checkpoint, autocast, vmap_of_grad,
    forward_mode_gradient, functional_call, gradient_penalty, lstm, packed_sequence, transformer_encoder, transformer_encoder_inference,
    scripted_module, compiled_eager, user_hooks, optimizer_in_backward, clipped_gradients, lbfgs, weight_sharing_and_parametrization,
    saving_and_copying, inference_mode, data_surgery, threads, data_loader_workers, random_numbers, fft_linalg_and_complex,
    indexing, flex_attention, conditional_operator, custom_op, multi_grad_and_accumulation_into_views, eval_between_steps,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("level", "data"), [("mix", "full"), pytest.param("module", "structure", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_same_bits(tmp_path: Path, program: Callable[[], Any], level: str, data: str) -> None:
    seed_all(0)
    expected = tensors(program())
    seed_all(0)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level, data=data)) as dump:
        result = program()
        dump.step()
    found = tensors(result)
    assert len(found) == len(expected) > 0
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert_same(a, b, f"result {i}", stride=True)
    if level == "mix":
        assert_values_flow(open_dump(str(tmp_path / "dump")).step(0).rank(0))


# These are compiled, which a second mode prevents, or run in another process.
WITHOUT_ORACLE = {compiled_eager, flex_attention, conditional_operator, data_loader_workers}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in WITHOUT_ORACLE], ids=lambda p: p.__name__)
def test_recorded_tensors_are_those_that_an_oracle_sees(tmp_path: Path, program: Callable[[], Any]) -> None:
    seed_all(0)
    oracle = Oracle()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor")) as dump:
        with oracle:
            program()
        dump.step()
    recorded = calls(open_dump(str(tmp_path / "dump")).step(0).rank(0), kind="aten")
    assert [call.op for call in recorded] == oracle.ops
    problems = [
        problem for step, call in zip(oracle.steps, recorded, strict=True) for problem in compare_call(step, call)
    ]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:20])


def assert_values_flow(rank: Any) -> None:
    """Every recorded value can be read, and every backward op has its forward call."""
    for value in rank.values:
        if value.has_data:
            assert value.tensor().dtype == value.dtype
    assert len(calls(rank, kind="aten")) > 0
    names = [call.name for call in rank.calls]
    assert len(set(names)) == len(names), "two calls have one name"
