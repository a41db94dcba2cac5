"""Agree is said of what was proven, differ of what is not the same: programs that closeness told wrongly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from aten_dump import compare, open_dump, replay
from aten_dump.analysis.comparison import Comparison
from tests.analysis.by_distance.steps import record, seeded
from tests.analysis.transformer import OtherDevice

Program = Callable[[], object]


def both(tmp_path: Path, target: Program, baseline: Program, device: OtherDevice | None = None) -> Comparison:
    """Record both programs, each made anew, and compare them."""
    one = record(tmp_path / "target", lambda step: target(), device=device)
    return compare(one, record(tmp_path / "baseline", lambda step: baseline()))


def assert_agree(found: Comparison) -> None:
    assert found.exit_code == 0, found.answer()
    assert found.cause is None


# -- the same wiring ---------------------------------------------------------------------------------------------


def test_a_wrong_view_of_the_right_memory_is_found(tmp_path: Path) -> None:
    def program(view: Callable[[Tensor], Tensor]) -> Program:
        def run() -> None:
            x, w = seeded(8, 8), seeded(8, 8, seed=1)
            s = x @ w
            (torch.tanh(view(s)) * seeded(8, 8, seed=2)).sum()

        return run

    found = both(tmp_path, program(lambda s: s.t()), program(lambda s: s))
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.op in ("aten::t", "aten::tanh"), found.answer()
    assert "test_proofs.py" in found.cause.row.place.source


def test_the_order_of_a_fused_projection_is_found_in_the_forward(tmp_path: Path) -> None:
    def program(order: tuple[int, int, int]) -> Program:
        def run() -> None:
            x, w = seeded(2, 6, 8), seeded(24, 8, seed=1).requires_grad_()
            parts = F.linear(x, w).chunk(3, -1)
            q, k, v = (parts[n] for n in order)
            F.scaled_dot_product_attention(q, k, v).square().mean().backward()

        return run

    found = both(tmp_path, program((1, 0, 2)), program((0, 1, 2)), OtherDevice())
    assert found.exit_code == 1
    assert found.cause is not None
    assert found.cause.row.place.phase == "forward", found.answer()


def test_the_same_result_in_another_memory_format_is_the_same(tmp_path: Path) -> None:
    def program(layout: torch.memory_format) -> Program:
        def run() -> None:
            x, w = seeded(2, 4, 6, 6).contiguous(memory_format=layout), seeded(4, 4, 3, 3, seed=1).requires_grad_()
            y = F.conv2d(x, w, padding=1)
            (y.flatten(2).transpose(1, 2) @ seeded(4, 4, seed=2)).square().mean().backward()

        return run

    assert_agree(both(tmp_path, program(torch.channels_last), program(torch.contiguous_format), OtherDevice()))


def test_composed_attention_agrees_with_the_fused_op_through_views_of_other_shapes(tmp_path: Path) -> None:
    def program(fused: bool) -> Program:
        def run() -> None:
            x, w = seeded(2, 6, 8), seeded(24, 8, seed=1).requires_grad_()
            q, k, v = (p.view(2, 6, 2, 4).transpose(1, 2) for p in F.linear(x, w).chunk(3, -1))
            if fused:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mask = torch.full((6, 6), torch.finfo(x.dtype).min).triu(1)
                mixed = torch.softmax(q @ k.transpose(2, 3) * 0.5 + mask, -1) @ v
            mixed.transpose(1, 2).reshape(2, 6, 8).square().mean().backward()

        return run

    assert_agree(both(tmp_path, program(True), program(False), OtherDevice()))


def test_a_sum_that_keeps_a_dimension_that_a_view_takes_away_is_the_same(tmp_path: Path) -> None:
    def program(keepdim: bool) -> Program:
        def run() -> None:
            x = seeded(3, 5, 8) @ seeded(8, 8, seed=1)
            total = x.sum((0, 1), keepdim=keepdim)
            (total.view(8) * seeded(8, seed=2)).square().mean()

        return run

    assert_agree(both(tmp_path, program(True), program(False), OtherDevice()))


# -- the same sources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["swapped batch", "shifted labels"])
def test_other_data_in_a_later_step_are_found(change: str, tmp_path: Path) -> None:
    def run(path: Path, changed: bool, device: OtherDevice | None) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xs, ys = [seeded(4, 6, seed=s) for s in range(3)], [torch.arange(4) % 5 + 0 * s for s in range(3)]
        if changed and change == "swapped batch":
            xs[1] = xs[1][[1, 0, 2, 3]]
        elif changed:
            ys[1] = ys[1].roll(1)

        def body(step: int) -> None:
            F.cross_entropy(model(xs[step]), ys[step]).backward()
            optimizer.step()
            optimizer.zero_grad()

        return record(path, body, model, steps=3, device=device)

    baseline = run(tmp_path / "baseline", False, None)
    assert_agree(compare(run(tmp_path / "honest", False, OtherDevice()), baseline))
    found = compare(run(tmp_path / "target", True, OtherDevice()), baseline)
    assert found.first is not None, found.answer()
    assert found.first[0].steps == (1, 1)
    assert found.first[1].kind == "source"


class Counting(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Tensor:
        return seeded(6, seed=number)


def test_batches_of_workers_are_what_they_hold_not_when_they_came(tmp_path: Path) -> None:
    """Two workers' batches stand in the other order of arrival in one of the runs."""

    def run(path: Path, order: list[int]) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        stored = [seeded(4, 6, seed=n).untyped_storage() for n in range(2)]

        def body(step: int) -> None:
            arrived = {n: torch.empty(0).set_(stored[n], 0, (4, 6), (6, 1)) for n in order}
            for n in range(2):
                model(arrived[n]).square().mean().backward()

        return record(path, body, model)

    found = compare(run(tmp_path / "target", [1, 0]), run(tmp_path / "baseline", [0, 1]))
    assert_agree(found)


def test_equal_runs_with_a_worker_are_equal(tmp_path: Path) -> None:
    def run(path: Path) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)

        def body(step: int) -> None:
            for batch in DataLoader(Counting(), batch_size=2, num_workers=2):
                model(batch).square().mean().backward()

        return record(path, body, model)

    assert_agree(compare(run(tmp_path / "target"), run(tmp_path / "baseline")))


def test_a_deep_copy_hides_nothing(tmp_path: Path) -> None:
    def program(approximate: str) -> Program:
        def run() -> None:
            x = seeded(8, 8) @ seeded(8, 8, seed=1)
            kept = copy.deepcopy(x)
            y = F.gelu(kept, approximate=approximate)
            copy.deepcopy(y).sum()

        return run

    assert_agree(both(tmp_path / "honest", program("none"), program("none"), OtherDevice()))
    found = both(tmp_path / "wrong", program("tanh"), program("none"), OtherDevice())
    assert found.cause is not None
    assert found.cause.row.place.op == "aten::gelu", found.answer()


# -- memory that nobody wrote --------------------------------------------------------------------------------------


def garbage(*shape: int, seed: int) -> Tensor:
    """Memory that holds something, as memory does that was used before."""
    return seeded(*shape, seed=seed) * 1e20


def test_what_a_call_only_writes_to_is_not_compared(tmp_path: Path) -> None:
    def program(seed: int) -> Program:
        out, kept, zeroed = garbage(4, 4, seed=seed), garbage(4, 4, seed=seed + 1), garbage(4, 4, seed=seed + 2)

        def run() -> None:
            x = seeded(4, 4)
            torch.mm(x, x, out=out)
            kept.copy_(x)
            zeroed.zero_()
            (out + kept + zeroed).sum()

        return run

    assert_agree(both(tmp_path, program(10), program(20), OtherDevice()))


def test_an_op_on_undefined_memory_is_not_blamed(tmp_path: Path) -> None:
    def program(fill: float) -> Program:
        def run() -> None:
            shapes = torch.empty(4, 8)
            shapes.data_ptr()
            F.layer_norm(shapes, (8,))  # only its shape is used
            seeded(4, 4).square().sum()

        return run

    found = both(tmp_path, program(0.0), program(1.0))
    assert_agree(found)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def lstm(path: Path, device: OtherDevice | None = None) -> Path:
    torch.manual_seed(0)
    model = Recurrent()
    return record(path, lambda step: model(seeded(2, 5, 6)).square().mean().backward(), model, device=device)


def test_workspaces_are_no_data(tmp_path: Path) -> None:
    """The workspace of oneDNN's LSTM holds other bytes in two equal runs."""
    target, baseline = lstm(tmp_path / "target"), lstm(tmp_path / "baseline")
    assert_agree(compare(target, baseline))
    assert_agree(compare(lstm(tmp_path / "other", OtherDevice()), baseline))
    found: Any = replay(open_dump(target).step(0).rank(0))
    assert found.guilty is None
    assert any("mkldnn_rnn_layer" in op.op for op in found.ops)


# -- precisions, sparse tensors --------------------------------------------------------------------------------------


def test_half_precision_agrees_with_float32(tmp_path: Path) -> None:
    def program(dtype: torch.dtype) -> Program:
        def run() -> None:
            x, w = seeded(2, 6, 8).half().to(dtype), seeded(8, 8, seed=1).half().to(dtype).requires_grad_()
            scores = (x @ w) @ x.transpose(1, 2) * 0.3
            mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, torch.finfo(dtype).min)
            weights = torch.softmax(scores, -1, dtype=torch.float32).to(dtype)
            (weights @ x).float().square().mean().backward()

        return run

    assert_agree(both(tmp_path, program(torch.float16), program(torch.float32)))
    found = both(tmp_path / "wrong", _times(program, 1.01), program(torch.float32))
    assert found.exit_code == 1


def _times(program: Callable[[torch.dtype], Program], factor: float) -> Program:
    def run() -> None:
        x, w = seeded(2, 6, 8).half(), seeded(8, 8, seed=1).half().requires_grad_()
        scores = (x @ w) @ x.transpose(1, 2) * (0.3 * factor)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, torch.finfo(torch.float16).min)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(torch.float16)
        (weights @ x).float().square().mean().backward()

    return run


def test_sparse_gradients_are_made_in_the_step(tmp_path: Path) -> None:
    def program() -> Program:
        torch.manual_seed(0)
        table, head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

        def run() -> None:
            head(table(torch.tensor([1, 2, 2, 5]))).square().mean().backward()
            optimizer.step()

        return run

    assert_agree(both(tmp_path, program(), program(), OtherDevice()))


# -- the ends -----------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


def trained(
    path: Path, change: Callable[[Normed], object], device: OtherDevice | None, optimizer: Any = torch.optim.Adam
) -> Path:
    torch.manual_seed(0)
    model = Normed().bfloat16()
    state = optimizer(model.parameters(), lr=1e-2)

    def body(step: int) -> None:
        model(seeded(16, 8, dtype=torch.bfloat16)).float().square().mean().backward()
        change(model)
        state.step()
        state.zero_grad()

    return record(path, body, model, device=device)


def _scaled_gradient(model: Normed) -> None:
    assert model.norm.weight.grad is not None
    model.norm.weight.grad.mul_(0.97)


def _row_left_out(model: Normed) -> None:
    assert model.norm.bias.grad is not None
    model.norm.bias.grad[3] = 0


@pytest.mark.parametrize("change", [_scaled_gradient, _row_left_out])
def test_a_gradient_that_is_a_little_wrong_is_found(change: Callable[[Normed], object], tmp_path: Path) -> None:
    """The first step of Adam takes no notice of a gradient's scale: what it leaves hides the error."""
    baseline = trained(tmp_path / "baseline", lambda model: None, None)
    assert_agree(compare(trained(tmp_path / "honest", lambda model: None, OtherDevice()), baseline))
    found = compare(trained(tmp_path / "target", change, OtherDevice()), baseline)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.op in (
        "aten::mul_.Tensor",
        "aten::fill_.Tensor",
        "aten::fill_.Scalar",
        "aten::copy_",
    ), found.answer()


def test_a_parameter_that_was_detached_is_named(tmp_path: Path) -> None:
    class Detached(Normed):
        def forward(self, x: Tensor) -> Tensor:
            hidden = F.layer_norm(self.first(x), (8,), self.norm.weight.detach(), self.norm.bias)
            return self.last(F.gelu(hidden))

    def run(path: Path, kind: type[Normed]) -> Path:
        torch.manual_seed(0)
        model = kind()
        return record(path, lambda step: model(seeded(16, 8)).square().mean().backward(), model, device=OtherDevice())

    found = compare(run(tmp_path / "target", Detached), run(tmp_path / "baseline", Normed))
    assert found.exit_code == 1, found.answer()
    assert "norm.weight" in found.answer(), found.answer()


def test_a_wrong_kernel_is_found_by_compare_as_by_replay(tmp_path: Path) -> None:
    """With bitwise equal inputs the baseline's own rounding does not hide x1.05."""

    class Wrong(OtherDevice):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.native_layer_norm_backward.default:
                out = (out[0], out[1] * 1.05, out[2])
            return out

    baseline = trained(tmp_path / "baseline", lambda model: None, None)
    target = trained(tmp_path / "target", lambda model: None, Wrong())
    suspect: Any = replay(open_dump(target).step(0).rank(0))
    assert suspect.guilty is not None
    found = compare(target, baseline)
    assert found.cause is not None, found.answer()
    assert found.cause.row.place.call == suspect.guilty.name


@pytest.mark.parametrize(
    "kind", [pytest.param(torch.optim.Adam, marks=pytest.mark.slow), torch.optim.AdamW, torch.optim.SGD]
)
def test_fused_foreach_and_single_optimizers_agree(kind: Any, tmp_path: Path) -> None:
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    forms = {"fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}
    paths = {
        name: trained(
            tmp_path / name, lambda model: None, None, lambda p, lr, form=form: kind(p, lr=lr, **extra, **form)
        )
        for name, form in forms.items()
    }
    for target, baseline in (("fused", "single"), ("foreach", "single"), ("fused", "foreach")):
        found = compare(paths[target], paths[baseline])
        assert_agree(found)
        assert not found.ranks[0].unknown_ends
    wrong = trained(
        tmp_path / "wrong", lambda model: None, None, lambda p, lr: kind(p, lr=lr * 1.05, **extra, **forms["fused"])
    )
    assert compare(wrong, paths["single"]).exit_code == 1


def test_the_answer_says_how_much_was_proven(tmp_path: Path) -> None:
    found = compare(
        trained(tmp_path / "target", lambda model: None, OtherDevice()),
        trained(tmp_path / "baseline", lambda model: None, None),
    )
    (evidence,) = found.ranks
    assert evidence.proven == evidence.judged > 40
    assert f"proven for {evidence.proven} of {evidence.judged} calls" in found.answer()
