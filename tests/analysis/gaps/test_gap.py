"""One value of two programs: a trainer's log-probabilities against an engine's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aten_dump
from aten_dump import ConfigError, DumpConfig, DumpMode, MissingDataError
from aten_dump.analysis.gaps.named_values import parse_at
from tests.analysis.wrong_ops import Wrong
from tests.cli.conftest import Run, run  # noqa: F401 - a fixture

WIDTH, HEADS, TOKENS = 32, 4, 50
HEAD = WIDTH // HEADS


def rotated(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat([one * table[0] - other * table[1], other * table[0] + one * table[1]], -1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.cache: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], by_hand: bool, caches: bool) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, HEADS, HEAD).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = rotated(q, table), rotated(k, table)
        if caches:
            self.cache.append((k, v))
            k, v = (torch.cat(parts, 2) for parts in zip(*self.cache, strict=True))
        if by_hand:
            scores = (q @ k.mT) * HEAD**-0.5
            hidden = torch.ones(length, k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - length)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(TOKENS, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(
        self, ids: Tensor, start: int = 200, table: torch.dtype = torch.float32, by_hand: bool = False,
        caches: bool = False,
    ) -> Tensor:  # fmt: skip
        frequencies = 1 / 100.0 ** (torch.arange(0, HEAD, 2) / HEAD)
        positions = torch.arange(start, start + ids.shape[1])
        angles = torch.outer(positions.to(table), frequencies.to(table))
        dtype = self.head.weight.dtype
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, (angles.cos().to(dtype), angles.sin().to(dtype)), by_hand, caches)
        return self.head(x)


def tokens() -> Tensor:
    return torch.randint(TOKENS, (2, 12), generator=torch.Generator().manual_seed(1))


def model(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def log_probabilities(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    of_all = torch.log_softmax((logits / temperature).float(), -1)
    return of_all.gather(-1, ids[..., None]).squeeze(-1)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trainer") / "dump"
    net, ids = model(), tokens()
    with DumpMode(DumpConfig(path=path, data="tensor"), model=net) as dump:
        found = log_probabilities(net(ids)[:, :-1], ids[:, 1:])
        dump.save("logp", found)
        found.mean().backward()
    return path


def engine(
    path: Path, *, temperature: float = 1.0, dtype: torch.dtype = torch.float32,
    change: Callable[[Net], Any] = lambda net: None, **options: Any,
) -> Path:  # fmt: skip
    net, ids = model(dtype), tokens()
    change(net)
    with torch.no_grad(), DumpMode(DumpConfig(path=path, data="tensor"), model=net) as dump:
        dump.save("rollout", log_probabilities(net(ids, by_hand=True, **options)[:, :-1], ids[:, 1:], temperature))
    return path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine(tmp_path_factory.mktemp("honest") / "engine")


def test_other_code_for_the_same_function(honest: Path, trainer: Path) -> None:
    found = aten_dump.compare_at(honest, trainer, "rollout=logp")
    assert found.exit_code == 0
    assert "the same function, and rounding explains it" in found.answer()
    parts = found.gap.parts
    assert found.gap.relative(parts["other function"]) < 1e-14
    torch.testing.assert_close(sum(parts.values()), found.gap.difference, rtol=0, atol=1e-12)


def test_precision_that_honest_bfloat16_costs(tmp_path: Path, trainer: Path) -> None:
    found = aten_dump.compare_at(engine(tmp_path / "engine", dtype=torch.bfloat16), trainer, "rollout=logp")
    assert found.exit_code == 0
    assert found.gap.relative(found.gap.parts["other function"]) < 1e-14
    assert found.gap.relative(found.gap.parts["precision of the target"]) > 1e-4
    assert "precision of the target (bfloat16)" in found.answer()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_another_function_is_told_from_the_precision_beside_it(
    tmp_path: Path, trainer: Path, dtype: torch.dtype
) -> None:
    path = engine(tmp_path / "engine", temperature=0.9, dtype=dtype)
    found = aten_dump.compare_at(path, trainer, ("rollout", "logp"))
    assert found.exit_code == 1
    answer = found.answer()
    assert "other is 0.9, in the baseline 1.0" in answer
    assert "They are other functions." in answer
    assert found.gap.relative(found.gap.parts["other function"]) > 0.01
    assert found.gap.relative(found.gap.parts["precision of the target"]) < 2e-3
    assert found.gap.cause is not None
    assert found.gap.cause.named.op == "aten::div.Tensor"
    largest = int(found.gap.difference.abs().argmax())
    first = answer.split("Most apart:\n")[1].splitlines()[0]
    assert first.strip().startswith(f"[{largest // 11}, {largest % 11}] ")


def test_a_stale_weight(tmp_path: Path, trainer: Path) -> None:
    def change(net: Net) -> None:
        with torch.no_grad():
            net.layers[1].up.weight[3] *= 1.5

    found = aten_dump.compare_at(engine(tmp_path / "engine", change=change), trainer, "rollout=logp")
    assert found.exit_code == 1
    assert "module layers.1.up" in found.answer()


def test_where_precision_is_lost(tmp_path: Path, trainer: Path) -> None:
    found = aten_dump.compare_at(engine(tmp_path / "engine", table=torch.bfloat16), trainer, "rollout=logp")
    assert found.exit_code == 1
    assert found.gap.parting is not None
    assert found.gap.parting.call.op == "aten::_to_copy"
    assert "precision is lost" in found.answer()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_a_wrong_kernel_and_what_it_does_to_the_value(tmp_path: Path, trainer: Path, dtype: torch.dtype) -> None:
    with Wrong(torch.ops.aten.addmm.default, 2, lambda result: result * 1.5):
        path = engine(tmp_path / "engine", dtype=dtype)
    found = aten_dump.compare_at(path, trainer, "rollout=logp")
    assert found.exit_code == 1
    assert [wrong.call.name for wrong in found.gap.wrong] == ["Aten.addmm.2.forward"]
    of_kernels = found.gap.relative(found.gap.parts["kernels of the target"])
    assert of_kernels > 1e-3
    assert found.gap.relative(found.gap.parts["precision of the target"]) < of_kernels
    torch.testing.assert_close(sum(found.gap.parts.values()), found.gap.difference, rtol=0, atol=1e-12)


def decoded(path: Path, shift: int = 0) -> Path:
    """Prefill of five tokens, then one at a time, each saved under the same name."""
    net, ids = model(), tokens()
    with torch.no_grad(), DumpMode(DumpConfig(path=path, data="tensor"), model=net) as dump:
        logits = net(ids[:, :5], by_hand=True, caches=True)
        dump.save("rollout", log_probabilities(logits, ids[:, 1:6]))
        for place in range(5, 11):
            logits = net(ids[:, place : place + 1], start=200 + place + shift, by_hand=True, caches=True)
            dump.save("rollout", log_probabilities(logits, ids[:, place + 1 : place + 2]))
    return path


@pytest.mark.slow
def test_decoded_positions_against_the_whole_sequence(tmp_path: Path, trainer: Path) -> None:
    found = aten_dump.compare_at(decoded(tmp_path / "engine"), trainer, "rollout=logp")
    assert found.exit_code == 0, found.answer()
    assert found.gap.difference.shape == (2, 11)
    wrong = aten_dump.compare_at(decoded(tmp_path / "shifted", shift=1), trainer, "rollout=logp")
    assert wrong.exit_code == 1
    assert not wrong.gap.parts["other function"][:, :5].abs().gt(1e-9).any()  # the prefill is right
    assert wrong.gap.cause is not None


def test_a_request_of_several(tmp_path: Path, trainer: Path) -> None:
    net, ids = model(), tokens()
    with torch.no_grad(), DumpMode(DumpConfig(path=tmp_path / "served", data="tensor"), model=net) as dump:
        for request, shift in (("request-1", 3), ("request-2", 0)):
            with dump.scope(request):
                logits = net((ids + shift) % TOKENS, by_hand=True)
                dump.save("rollout", log_probabilities(logits[:, :-1], ids[:, 1:]))
    assert aten_dump.compare_at(tmp_path / "served", trainer, "request-2/rollout=logp").exit_code == 0
    assert aten_dump.compare_at(tmp_path / "served", trainer, "request-1/rollout=logp").exit_code == 1


def test_calls_and_slots_name_values_too(honest: Path, trainer: Path) -> None:
    at = "Module.layers.0.0.forward.output.0=Module.layers.0.0.forward"
    assert aten_dump.compare_at(honest, trainer, at).exit_code == 0
    assert aten_dump.compare_at(honest, honest, "rollout").gap.relative(torch.zeros(1)) == 0


def test_what_cannot_be_compared(tmp_path: Path, honest: Path, trainer: Path) -> None:
    path = honest
    with pytest.raises(MissingDataError, match="saved are rollout"):
        aten_dump.compare_at(path, trainer, "logp")
    with pytest.raises(MissingDataError, match=r"the shape \[2, 11\].*\[2, 12, 32\]"):
        aten_dump.compare_at(path, trainer, "rollout=Module.layers.0.0.forward")
    for at in ("", "=", "a=", ("a", "b", "c")):
        with pytest.raises(ConfigError, match="NAME=NAME"):
            aten_dump.compare_at(path, trainer, at)
    with (
        contextlib.suppress(aten_dump.AtenDumpError),
        DumpMode(DumpConfig(path=tmp_path / "hash", data="hash")) as dump,
    ):
        dump.save("x", torch.ones(3))
    with pytest.raises(MissingDataError, match="lacks bytes of ops"):
        aten_dump.compare_at(tmp_path / "hash", trainer, "x=logp")


def test_the_command(run: Run, tmp_path: Path, trainer: Path) -> None:  # noqa: F811
    path = engine(tmp_path / "engine", temperature=0.9)
    result = run("compare", path, trainer, "--at", "rollout=logp")
    assert result.exit_code == 1
    assert result.stdout.startswith("rollout is 0.0")
    assert "Most apart:" in result.stdout
    assert run("compare", path, trainer, "--at", "rollout=logp", "--format", "csv").exit_code == 2
    assert run("compare", path, trainer, "--at", "nothing").exit_code == 2


def test_one_name_stands_for_both_sides() -> None:
    assert parse_at("logp") == parse_at(("logp", "logp")) == ("logp", "logp")
    assert parse_at("rollout=logp") == ("rollout", "logp")
