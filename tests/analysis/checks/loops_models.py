"""Models of many kinds trained as they should be, and what looks like a mistake of an optimizer or a loss and is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import LOOPS, batch, loop, net, recording
from .models import (
    ActorCritic,
    Autoencoder,
    Clicks,
    Denoiser,
    Graph,
    Pairs,
    Pretrained,
    Tagger,
    Trained,
    Translator,
    Vision,
)


def _train(path: Path, model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> None:
    with recording(path, model) as dump:
        for _ in range(2):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def _add(name: str, make: Callable[[], Trained]) -> None:
    def record(path: Path) -> None:
        model, scaler = make(), torch.amp.GradScaler("cpu", init_scale=64.0)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        with recording(path, model) as dump:
            for _ in range(2):
                scaler.scale(model.loss()).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                dump.step()

    LOOPS[f"scaled {name}"] = record


for _make in (ActorCritic, Autoencoder, Clicks, Denoiser, Graph, Pairs, Tagger, Translator, Vision):
    _add(_make.__name__.lower(), _make)
for _name in ("gpt2", "llama", "bert", "t5"):
    _add(_name, lambda name=_name: Pretrained(name))  # type: ignore[misc]


@loop
def loss_whose_number_is_another(path: Path) -> None:
    model = net()

    def loss() -> Tensor:
        x, y = batch()
        found = F.cross_entropy(model(x), y)
        shown = F.mse_loss(model(x), torch.zeros(16, 3))
        return found + (shown - found).detach()

    _train(path, model, loss, torch.optim.SGD(model.parameters(), 0.1))


@loop
def score_function_of_a_magic_box(path: Path) -> None:
    model = ActorCritic()

    def loss() -> Tensor:
        policy, value, entropy = model.parts()
        return (policy - policy.detach()).exp() * 0.7 + value - 0.01 * entropy

    _train(path, model, loss, torch.optim.Adam(model.parameters(), 1e-3))


@loop
def losses_in_balance_by_their_size(path: Path) -> None:
    model = Autoencoder()

    def loss() -> Tensor:
        rebuilt, kl = model.parts()
        return rebuilt + kl * (rebuilt / kl.abs().clamp(min=1e-3)).detach()

    _train(path, model, loss, torch.optim.Adam(model.parameters(), 1e-3))


@loop
def constant_of_a_loss_from_a_number(path: Path) -> None:
    model = net()

    def loss() -> Tensor:
        x, y = batch()
        floor = y.float().mean().item()
        return F.cross_entropy(model(x), y) + floor

    _train(path, model, loss, torch.optim.SGD(model.parameters(), 0.1))


@loop
def clipped_by_hand_each_layer(path: Path) -> None:
    model = Vision()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model.loss().backward()
            for parameter in model.parameters():
                gradient = parameter.grad
                assert gradient is not None
                limit = 0.01 * parameter.detach().norm().clamp(min=1e-3)
                parameter.grad.copy_(gradient * (limit / gradient.norm()).clamp(max=1.0))  # type: ignore[union-attr]
            optimizer.step()
            dump.step()


@loop
def gradients_clipped_by_hand_after_unscaling(path: Path) -> None:
    model, scaler = Tagger(), torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(model.loss()).backward()
            for parameter in model.parameters():
                parameter.grad.div_(2)  # type: ignore[union-attr]
            scaler.unscale_(optimizer)
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # type: ignore[union-attr]
            for parameter in model.parameters():
                parameter.grad.mul_((1.0 / norm).clamp(max=1.0))  # type: ignore[union-attr]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()


@loop
def centres_of_a_loss_in_the_optimizer(path: Path) -> None:
    model, centres = Vision(), nn.Parameter(torch.randn(5, 5))
    optimizer = torch.optim.SGD([*model.head.parameters(), centres], 0.01)

    def loss() -> Tensor:
        labels = torch.randint(0, 5, (6,))
        found = model(torch.randn(6, 3, 8, 8))
        return F.cross_entropy(found, labels) + 0.01 * (found - centres[labels]).square().mean()

    _train(path, model, loss, optimizer)


@loop
def head_alone_without_freezing(path: Path) -> None:
    model = Vision()
    _train(path, model, model.loss, torch.optim.SGD(model.head.parameters(), 0.01))


@loop
def trunk_in_eval_that_is_not_trained(path: Path) -> None:
    model = nn.ModuleDict({"trunk": nn.Linear(6, 8).eval(), "head": nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))})

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model["head"](model["trunk"](x)), y)

    _train(path, model, loss, torch.optim.SGD(model["head"].parameters(), 0.01))


@loop
def loss_by_a_network_of_its_own(path: Path) -> None:
    model, seen_by = nn.Conv2d(3, 3, 3, padding=1), Vision()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(path, {"model": model, "seen_by": seen_by}) as dump:
        for _ in range(2):
            images = torch.randn(6, 3, 8, 8)
            optimizer.zero_grad()
            F.mse_loss(seen_by(model(images)), seen_by(images)).backward()
            optimizer.step()
            dump.step()


@loop
def input_alone_is_optimized(path: Path) -> None:
    model, change = Vision(), torch.zeros(6, 3, 8, 8, requires_grad=True)
    optimizer = torch.optim.Adam([change], 1e-2)
    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            (-F.cross_entropy(model(torch.randn(6, 3, 8, 8) + change), torch.randint(0, 5, (6,)))).backward()
            optimizer.step()
            dump.step()


@loop
def optimizer_of_the_critic_rests(path: Path) -> None:
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)), nn.Linear(6, 1)
    for_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    with recording(path, {"generator": generator, "critic": critic}) as dump:
        for _ in range(3):
            for_generator.zero_grad()
            for_critic.zero_grad()
            F.softplus(-critic(generator(torch.randn(8, 4)))).mean().backward()
            for_generator.step()
            dump.step()
            for_critic = torch.optim.Adam(critic.parameters(), 1e-3)  # the one that was known is gone


@loop
def small_relu_that_is_alive(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU6(), nn.Linear(32, 32), nn.Hardtanh(-1, 1), nn.Linear(32, 3))

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x), y)

    _train(path, model, loss, torch.optim.SGD(model.parameters(), 0.1))


@loop
def logarithm_of_a_softmax_over_other_rows(path: Path) -> None:
    model = Pairs()

    def loss() -> Tensor:
        scores = model.scores()
        doubly = scores.softmax(0)
        return F.nll_loss(F.log_softmax(doubly.T, 0).T, torch.arange(6)) + F.cross_entropy(scores.T, torch.arange(6))

    _train(path, model, loss, torch.optim.Adam(model.parameters(), 1e-3))
