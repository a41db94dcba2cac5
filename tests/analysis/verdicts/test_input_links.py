"""What is known of each input of a pair of calls, and of all together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
Body = Callable[[], object]


def _trained(path: Path, forward: Callable[[nn.Linear, torch.Tensor], torch.Tensor]) -> Path:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for _ in range(2):
            forward(model, torch.randn(5, 4)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def _by_autocast(model: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x)


def _by_einsum(model: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,kj->ik", x, model.weight) + model.bias


def test_weights_of_the_second_step_without_a_common_reader_are_counterparts(tmp_path: Path) -> None:
    changed, plain = _trained(tmp_path / "changed", _by_autocast), _trained(tmp_path / "plain", nn.Linear.forward)
    assert compare(changed, plain).verdict == "within"
    assert compare(plain, changed).verdict == "within"


def test_other_weights_in_the_second_step_are_no_counterparts(tmp_path: Path) -> None:
    seen = []

    def slips(model: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return torch.einsum("ij,kj->ik", x, model.weight * (1 if len(seen) == 1 else 1.001)) + model.bias

    found = compare(_trained(tmp_path / "changed", slips), _trained(tmp_path / "plain", _by_einsum))
    assert found.first is not None and found.first[0].steps == (1, 1)
    assert found.first[1].row.place.call == "Aten.mul.0.forward"


# -- states --------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """Two weights of one shape, which differ by some roundings on both sides as they do after a few steps."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.weights = fused, nn.ParameterList(X * (2 + fused * 5e-7) * n for n in (1, 1 + 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            if self.fused:
                x = torch.ops.aten.native_layer_norm(x, [4], weight, None, 1e-5)[0]
            else:
                x = (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5) * weight
        return x


class Attention(nn.Module):
    """The gradient of its key's bias is rounding alone, of which AdamW makes steps as long as any."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 4, -1) @ self.value(x)


def trained(path: Path, *, beta: float = 0.999, **form: bool) -> Path:
    """Record three steps of AdamW; `beta` is its second one at the last of them."""
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **form)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for step, x in enumerate(torch.randn(3, 4, 7, 16)):
            optimizer.param_groups[0]["betas"] = (0.9, beta if step == 2 else 0.999)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def test_moments_that_a_fused_optimizer_is_given_in_lists_are_those_of_a_looped_one(tmp_path: Path) -> None:
    looped = trained(tmp_path / "looped", foreach=False)
    found = compare(trained(tmp_path / "fused", fused=True), looped)
    assert found.verdict == "within", found.answer()
    wrong = compare(trained(tmp_path / "wrong", fused=True, beta=0.998), looped)
    assert wrong.verdict == "different"
    assert wrong.first is not None and wrong.first[0].steps == (2, 2)


def test_a_nested_tensor_has_no_counterpart_among_padded_ones(tmp_path: Path) -> None:
    """Nothing is recorded of it but its class."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    rows = [torch.randn(n, 4) for n in (3, 2)]

    def nested() -> torch.Tensor:
        found: torch.Tensor = torch.relu(model(torch.nested.nested_tensor(rows, layout=torch.jagged))).values()
        return found.sum()

    def padded(factor: float) -> torch.Tensor:
        mask = torch.arange(3) < torch.arange(3, 1, -1)[:, None]
        return (torch.relu(model(nn.utils.rnn.pad_sequence(rows, batch_first=True))) * mask[..., None] * factor).sum()

    def dump(name: str, loss: Callable[[], torch.Tensor]) -> Path:
        model.zero_grad()
        with DumpMode(DumpConfig(path=str(tmp_path / name)), model=model):
            loss().backward()
        return tmp_path / name

    target = dump("nested", nested)
    found = compare(target, dump("padded", lambda: padded(1.0)))
    assert found.exit_code == 0, found.cause
    assert compare(target, dump("wrong", lambda: padded(1.01))).exit_code == 1


def rows(path: Path, *, padded: bool, scale: float = 1.0) -> Path:
    """Take the mean of what a layer makes of each sequence, of nested rows or of padded ones."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    given = [torch.randn(length, 4) for length in (2, 5, 3)]
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=layer):
        if padded:
            whole = layer(nn.utils.rnn.pad_sequence(given, batch_first=True)).relu() * scale
            made = [row[: len(one)] for row, one in zip(whole, given, strict=True)]
        else:
            made = list((layer(torch.nested.nested_tensor(given, layout=torch.jagged)).relu() * scale).unbind())
        torch.stack([row.mean(0) for row in made]).square().sum().backward()
    return path


def test_rows_that_are_nested_on_one_side_are_compared_beneath(tmp_path: Path) -> None:
    baseline = rows(tmp_path / "baseline", padded=False)
    assert compare(rows(tmp_path / "again", padded=False), baseline).exit_code == 0
    found = compare(rows(tmp_path / "wrong", padded=False, scale=1.1), baseline)
    assert found.exit_code == 1, found.answer()
    assert compare(rows(tmp_path / "padded", padded=True), baseline).cause is None
    wrong = compare(rows(tmp_path / "wrong padded", padded=True, scale=1.1), baseline)
    assert wrong.exit_code == 1, wrong.answer()
