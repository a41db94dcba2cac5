"""Planted bugs in models of many kinds, each written as somebody would write it who had not read the rules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, recording
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
from .planted import planted, train

Then = Callable[[torch.optim.Optimizer], object]


def _loop(path: Path, model: Trained, optimizer: torch.optim.Optimizer, then: Then, steps: int = 2) -> None:
    """Train a model; `then` is all that follows a backward pass."""
    with recording(path, model) as dump:
        for _ in range(steps):
            model.loss().backward()
            then(optimizer)
            dump.step()


# -- gradients ----------------------------------------------------------------------------------------------------------


@planted("no-gradient")
def latents_by_their_data(path: Path) -> None:
    class Net(Autoencoder):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = F.silu(self.encode(x))
            latent = self.mean(h) + self.spread(h)
            latent = latent.data  # bug
            return self.decode(latent.clamp(-3, 3)), latent, latent

        def loss(self) -> Tensor:
            x = torch.rand(8, 12)
            return F.mse_loss(self(x)[0], x)

    model = Net()
    train(path, model, model.loss)


@planted("no-gradient")
def weight_normalised_through_its_data(path: Path) -> None:
    class Net(Pairs):
        def scores(self) -> Tensor:
            texts = self.texts.weight.data  # bug
            texts = texts / texts.norm(dim=1, keepdim=True)
            one = F.normalize(self.pictures(torch.randn(6, 12)), dim=-1)
            return self.scale.exp() * one @ F.linear(torch.randn(6, 6), texts, self.texts.bias).T

    model = Net()
    train(path, model, model.loss)


@planted("no-gradient")
def states_between_pieces_by_their_data(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            _, (h, _) = self.lstm(self.words(words))
            carried = h.data  # bug
            return self.head(carried.mean(0))

        def loss(self) -> Tensor:
            return F.cross_entropy(self(torch.randint(0, 30, (4, 7))), torch.randint(0, 4, (4,)))

    model = Net()
    train(path, model, model.loss)


@planted("no-gradient")
def trunk_of_a_reward_model_detached(path: Path) -> None:
    class Net(Trained):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = Pretrained("gpt2").inner.transformer, nn.Linear(16, 3)

        def forward(self, ids: Tensor) -> Tensor:
            states = self.trunk(ids).last_hidden_state
            states = states.detach()  # bug
            return self.head(states.mean(1))

        def loss(self) -> Tensor:
            return F.cross_entropy(self(torch.randint(3, 40, (3, 10))), torch.randint(0, 3, (3,)))

    model = Net()
    train(path, model, model.loss, steps=1)


# -- optimizers ---------------------------------------------------------------------------------------------------------


@planted("gradient-applied-twice")
def step_of_the_optimizer_after_that_of_the_scaler(path: Path) -> None:
    model = Vision()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), torch.amp.GradScaler("cpu")
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(model.loss()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.step()  # bug
            optimizer.zero_grad()
            dump.step()


@planted("gradient-applied-twice")
def trunk_of_actor_and_critic_in_both_optimizers(path: Path) -> None:
    model = ActorCritic()
    actor = torch.optim.Adam([*model.trunk.parameters(), *model.policy.parameters()], 1e-3)
    critic = torch.optim.Adam([*model.trunk.parameters(), *model.value.parameters()], 1e-2)
    with recording(path, model) as dump:
        for _ in range(2):
            actor.zero_grad()
            critic.zero_grad()
            model.loss().backward()
            actor.step()
            critic.step()  # bug
            dump.step()


@planted("no-optimizer")
def group_without_decay_forgotten(path: Path) -> None:
    class Net(Translator):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory = self.encoder(self.words(source) + self.places[: source.shape[1]])  # bug
            return self.head(self.decoder(self.words(target), memory))  # bug

    model = Net()
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1]
    kept = [p for n, p in model.named_parameters() if p.dim() == 1]
    assert kept
    train(path, model, model.loss, torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}], 1e-3))


@planted("no-optimizer")
def layers_of_a_graph_by_a_slice(path: Path) -> None:
    model = Graph()
    first = [*model.layers[:2].parameters(), *model.out.parameters()]
    train(path, model, model.loss, torch.optim.Adam(first, 1e-3))


@planted("no-optimizer")
def head_of_another_task_after_the_optimizer_was_made(path: Path) -> None:
    class Net(Vision):
        def forward(self, images: Tensor) -> Tensor:
            h = self.stem(images)
            return self.head(F.relu(h + self.block(h)).mean((2, 3)))  # bug

    model = Net(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    model.head = nn.Linear(8, 5)
    train(path, model, model.loss, optimizer)


@planted("no-optimizer")
def head_forgotten_whole(path: Path) -> None:
    class Net(Vision):
        def forward(self, images: Tensor) -> Tensor:
            h = self.stem(images)
            return self.head(F.relu(h + self.block(h)).mean((2, 3)))  # bug

    model = Net()
    train(path, model, model.loss, torch.optim.AdamW([*model.stem.parameters(), *model.block.parameters()], 1e-3))


@planted("no-optimizer")
def last_two_parameters_by_a_slice(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.lstm(self.words(words))[0])  # bug

    model = Net()
    train(path, model, model.loss, torch.optim.AdamW(list(model.parameters())[:-2], 1e-3))


@planted("no-optimizer")
def embedding_forgotten(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.lstm(self.words(words))[0])  # bug

    model = Net()
    train(path, model, model.loss, torch.optim.AdamW([*model.lstm.parameters(), *model.head.parameters()], 1e-3))


@planted("no-optimizer")
def projection_of_a_second_model(path: Path) -> None:
    model, projection = Vision(), nn.Linear(5, 7)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, {"model": model, "projection": projection}) as dump:
        for _ in range(2):
            found = projection(model(torch.randn(6, 3, 8, 8)))  # bug
            F.cross_entropy(found, torch.randint(0, 7, (6,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            projection.zero_grad()
            dump.step()


@planted("no-optimizer")
def critic_whose_optimizer_is_gone(path: Path) -> None:
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)), nn.Linear(6, 1)
    torch.optim.Adam(critic.parameters(), 1e-3)
    optimizer = torch.optim.Adam(generator.parameters(), 1e-3)
    with recording(path, {"generator": generator, "critic": critic}) as dump:
        for _ in range(2):
            loss = F.softplus(-critic(generator(torch.randn(8, 4)))).mean()  # bug
            optimizer.zero_grad()
            critic.zero_grad()
            loss.backward()
            optimizer.step()
            dump.step()


@planted("no-optimizer")
def vocabulary_grown_after_the_optimizer_was_made(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.lstm(self.words(words))[0])  # bug

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    grown = nn.Embedding(34, 12)
    with torch.no_grad():
        grown.weight[:30] = model.words.weight
    model.words = grown
    train(path, model, model.loss, optimizer)


@planted("stale-gradient")
def parentheses_of_zero_grad_forgotten(path: Path) -> None:
    model = Vision()

    def then(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()  # bug
        optimizer.zero_grad

    _loop(path, model, torch.optim.SGD(model.parameters(), 0.01), then)


@planted("stale-gradient")
def cleared_once_for_each_epoch(path: Path) -> None:
    model, seen = Tagger(), [0]

    def then(optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()  # bug
        seen[0] += 1
        if seen[0] % 100 == 0:
            optimizer.zero_grad()

    _loop(path, model, torch.optim.RMSprop(model.parameters(), 1e-3), then, steps=3)


@planted("clip-after-step")
def recurrent_net_clipped_after_the_step(path: Path) -> None:
    model = Tagger()

    def then(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01, error_if_nonfinite=True)  # bug
        optimizer.zero_grad()

    _loop(path, model, torch.optim.SGD(model.parameters(), 0.5), then)


@planted("clip-after-step")
def unscaled_and_clipped_after_the_step_of_the_scaler(path: Path) -> None:
    model, scaler = Denoiser(), torch.amp.GradScaler("cpu", init_scale=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(model.loss()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # bug
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            dump.step()


@planted("clip-after-step")
def scaled_by_hand_to_a_norm_after_the_step(path: Path) -> None:
    model = Translator()

    def then(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))  # type: ignore[union-attr, misc]
        for parameter in model.parameters():
            parameter.grad.mul_(0.1 / (norm + 1e-6))  # type: ignore[union-attr] # bug
        optimizer.zero_grad()

    _loop(path, model, torch.optim.Adam(model.parameters(), 1e-3), then)


@planted("clip-after-step")
def policy_clipped_after_both_optimizers(path: Path) -> None:
    model = ActorCritic()
    one = torch.optim.RMSprop([*model.trunk.parameters(), *model.policy.parameters()], 1e-3)
    two = torch.optim.RMSprop(model.value.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            one.zero_grad()
            two.zero_grad()
            model.loss().backward()
            one.step()
            two.step()
            nn.utils.clip_grad_value_(model.parameters(), 0.001, foreach=False)  # bug
            dump.step()


# -- scalers ------------------------------------------------------------------------------------------------------------


def _scaled(
    path: Path,
    model: Trained,
    optimizer: torch.optim.Optimizer,
    before: Callable[[], object] | None = None,
    scale: float = 512.0,
    batches: int = 1,
) -> None:
    """Train with a scaler: clip while scaled and step by the scaler, or step beside it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with recording(path, model) as dump:
        for _ in range(2):
            for _ in range(batches):
                scaler.scale(model.loss() / batches).backward()
            if before is None:
                optimizer.step()  # bug
            else:
                before()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            dump.step()


class _SteppedBesideScaler(torch.amp.GradScaler):
    """A scaler as a library subclasses it."""

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)


@planted("step-beside-scaler")
def convolutions_stepped_beside_the_scaler(path: Path) -> None:
    model = Vision()
    _scaled(path, model, torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True))


@planted("step-beside-scaler")
def tagger_stepped_beside_the_scaler_over_batches(path: Path) -> None:
    model = Tagger()
    _scaled(path, model, torch.optim.RMSprop(model.parameters(), 1e-4), batches=3)


@planted("step-beside-scaler")
def critic_alone_stepped_beside_the_scaler(path: Path) -> None:
    model = ActorCritic()
    actor = torch.optim.Adam([*model.trunk.parameters(), *model.policy.parameters()], 1e-3)
    critic = torch.optim.Adam(model.value.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(model.loss()).backward()
            scaler.unscale_(actor)
            nn.utils.clip_grad_norm_(model.policy.parameters(), 1.0)
            scaler.step(actor)
            critic.step()  # bug
            scaler.update()
            model.zero_grad()
            dump.step()


@planted("step-beside-scaler")
def autocast_and_a_scaler_that_does_not_step(path: Path) -> None:
    model, scaler = Pretrained("bert"), _SteppedBesideScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    with recording(path, model) as dump:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model.loss()
            scaler.scale(loss).backward()
            optimizer.step()  # bug
            scaler.update(256.0)
            optimizer.zero_grad()
            dump.step()


@planted("step-beside-scaler")
def closure_of_the_optimizer_scales_its_loss(path: Path) -> None:
    model, scaler = Graph(), torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def finish(schedule: Any) -> None:
        optimizer.step()  # bug
        schedule.step()
        optimizer.zero_grad()

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    with recording(path, model) as dump:
        for _ in range(2):
            losses = scaler.scale([model.loss(), model.loss()])
            sum(losses).backward()  # type: ignore[union-attr]
            finish(schedule)
            dump.step()


@planted("clip-before-unscale")
def recurrent_net_clipped_while_scaled(path: Path) -> None:
    model = Tagger()
    _scaled(
        path,
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False),  # bug
    )


@planted("clip-before-unscale")
def gradients_clamped_by_hand_while_scaled(path: Path) -> None:
    model = Denoiser()

    def before() -> None:
        for parameter in model.parameters():
            parameter.grad.clamp_(-1, 1)  # type: ignore[union-attr] # bug

    _scaled(path, model, torch.optim.AdamW(model.parameters(), 1e-3), before)


@planted("clip-before-unscale")
def norm_by_hand_while_scaled(path: Path) -> None:
    model = Translator()

    def before() -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        share = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(share)  # bug

    _scaled(path, model, torch.optim.SGD(model.parameters(), 0.1), before)


@planted("clip-before-unscale")
def each_layer_to_its_own_norm_while_scaled(path: Path) -> None:
    model = Vision()

    def before() -> None:
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            limit = 0.01 * parameter.detach().norm().clamp(min=1e-3)
            if gradient.norm() > limit:
                parameter.grad.copy_(gradient * (limit / gradient.norm()))  # type: ignore[union-attr] # bug

    _scaled(path, model, torch.optim.SGD(model.parameters(), 0.1), before)


@planted("clip-before-unscale")
def clipped_while_scaled_after_accumulation(path: Path) -> None:
    model = Pretrained("gpt2")
    _scaled(
        path,
        model,
        torch.optim.AdamW(model.parameters(), 1e-3),
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),  # bug
        batches=2,
    )


# -- losses -------------------------------------------------------------------------------------------------------------


@planted("detached-term")
def divergence_taken_as_a_number(path: Path) -> None:
    model = Autoencoder()

    def loss() -> Tensor:
        rebuilt, kl = model.parts()
        return rebuilt + kl.item()  # bug

    train(path, model, loss)


@planted("detached-term")
def divergence_detached_for_the_log(path: Path) -> None:
    model = Autoencoder()

    def loss() -> Tensor:
        rebuilt, kl = model.parts()
        logged = {"rebuilt": rebuilt.detach(), "kl": kl.detach()}
        return rebuilt + 0.1 * logged["kl"]  # bug

    train(path, model, loss)


@planted("detached-term")
def entropy_computed_without_grad(path: Path) -> None:
    model = ActorCritic()

    def loss() -> Tensor:
        policy, value, _ = model.parts()
        with torch.no_grad():
            scores, _ = model(torch.randn(10, 5))
            bonus = torch.distributions.Categorical(logits=scores).entropy().mean()
        return policy + 0.5 * value - 0.01 * bonus  # bug

    train(path, model, loss)


@planted("detached-term")
def losses_put_into_a_new_tensor(path: Path) -> None:
    model = Translator()

    def loss() -> Tensor:
        source = torch.randint(0, 20, (3, 9))
        smooth = (model.words(source)[:, 1:] - model.words(source)[:, :-1]).square().mean()
        return torch.stack([model.loss(), smooth.detach()]).sum() / 2  # bug

    train(path, model, loss)


@planted("softmax-of-one")
def attention_of_channels_with_one_map(path: Path) -> None:
    class Net(Denoiser):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.Conv2d(8, 1, 1)

        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            h = self.down(x)
            h = h * torch.softmax(self.attend(h), dim=1) + self.time(self.embedded(times))[:, :, None, None]  # bug
            return self.out(torch.cat([self.up(h), x], 1))

    model = Net()
    train(path, model, model.loss)


@planted("softmax-of-one")
def binary_classifier_with_the_loss_of_many(path: Path) -> None:
    class Net(Clicks):
        def loss(self) -> Tensor:
            wanted = torch.zeros(8, dtype=torch.long)
            return nn.CrossEntropyLoss()(self(torch.randn(8, 4), torch.randint(0, 20, (8, 3))), wanted)  # bug

    model = Net()
    train(path, model, model.loss)


@planted("softmax-twice")
def contrastive_probabilities_into_cross_entropy(path: Path) -> None:
    class Net(Pairs):
        def loss(self) -> Tensor:
            likely = self.scores().softmax(dim=1)
            return F.cross_entropy(likely, torch.arange(6))  # bug

    model = Net()
    train(path, model, model.loss)


@planted("softmax-twice")
def tagger_of_log_probabilities_along_channels(path: Path) -> None:
    class Net(Tagger):
        def loss(self) -> Tensor:
            found = F.log_softmax(self(torch.randint(0, 30, (4, 7))), dim=-1)
            return F.cross_entropy(found.transpose(1, 2), torch.randint(0, 4, (4, 7)))  # bug

    model = Net()
    train(path, model, model.loss)


@planted("targets-outside")
def pictures_normalised_before_the_autoencoder(path: Path) -> None:
    class Net(Autoencoder):
        def loss(self) -> Tensor:
            x = (torch.rand(8, 12) - 0.5) / 0.25
            return F.binary_cross_entropy_with_logits(self(x)[0], x)  # bug

    model = Net()
    train(path, model, lambda: model.loss() + 0 * model.spread.weight.sum())


@planted("targets-outside")
def mask_of_a_segmentation_with_its_void_class(path: Path) -> None:
    model = nn.Conv2d(3, 1, 3, padding=1)

    def loss() -> Tensor:
        mask = torch.randint(0, 2, (2, 1, 8, 8)).float()
        mask[:, :, 0] = 255
        return nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))(model(torch.randn(2, 3, 8, 8)), mask)  # bug

    train(path, model, loss)


@planted("targets-outside")
def numbers_of_clicks_as_labels(path: Path) -> None:
    class Net(Clicks):
        def loss(self) -> Tensor:
            clicks = torch.tensor([0.0, 1, 3, 0, 2, 1, 0, 7])[:, None]
            found = self(torch.randn(8, 4), torch.randint(0, 20, (8, 3)))
            return F.binary_cross_entropy_with_logits(found, clicks, weight=1 / (1 + clicks))  # bug

    model = Net()
    train(path, model, model.loss)


@planted("targets-outside")
def smoothed_to_the_wrong_side(path: Path) -> None:
    model = Graph()

    def loss() -> Tensor:
        found = model(torch.randn(9, 6), torch.randint(0, 9, (2, 20)))
        real = torch.ones(9) * 1.1
        return F.binary_cross_entropy_with_logits(found, real)  # bug

    train(path, model, loss)


@planted("broadcast-loss")
def q_values_gathered_as_a_column(path: Path) -> None:
    model, frozen = nn.Linear(5, 4), nn.Linear(5, 4)

    def loss() -> Tensor:
        states, actions = torch.randn(12, 5), torch.randint(0, 4, (12, 1))
        with torch.no_grad():
            best = torch.randn(12) + 0.9 * frozen(torch.randn(12, 5)).max(1).values
        return F.smooth_l1_loss(model(states).gather(1, actions), best)  # bug

    train(path, model, loss)


# -- layers -------------------------------------------------------------------------------------------------------------


def _evaluate(path: Path, model: nn.Module, *given: Tensor) -> None:
    model.eval()
    with torch.no_grad(), recording(path, model) as dump:
        for _ in range(2):
            model(*given)
            dump.step()


@planted("dropout-in-eval")
def dropout_between_layers_of_a_graph(path: Path) -> None:
    class Net(Graph):
        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            for layer in self.layers:
                nodes = F.dropout(F.relu(layer(nodes)), p=0.6, training=True)  # bug
            return self.out(nodes)

    _evaluate(path, Net(), torch.randn(9, 6), torch.randint(0, 9, (2, 20)))


@planted("dropout-in-eval")
def words_dropped_by_the_function(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            h = F.feature_alpha_dropout(self.words(words), 0.2, True)  # bug
            return self.head(self.lstm(h)[0])

    _evaluate(path, Net(), torch.randint(0, 30, (4, 7)))


@planted("dropout-in-eval")
def channels_dropped_in_a_denoiser(path: Path) -> None:
    class Net(Denoiser):
        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            h = torch.nn.functional.dropout2d(self.down(x), inplace=True)  # bug
            return self.out(torch.cat([self.up(h), x], 1))

    _evaluate(path, Net(), torch.randn(2, 1, 8, 8), torch.rand(2))


def _masked(path: Path, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
    class Net(Trained):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.attend = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.query, self.head = nn.Linear(8, 1), nn.Linear(8, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return forward(self, ids)

        def loss(self) -> Tensor:
            ids = torch.randint(1, 20, (3, 6))
            ids[1] = 0
            return self(ids).square().mean()

    model = Net()
    train(path, model, model.loss, torch.optim.SGD(model.parameters(), 0.0), steps=1)


@planted("masked-row")
def sample_of_nothing_but_padding(path: Path) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.words(ids)
        found, _ = self.attend(x, x, x, key_padding_mask=ids == 0)  # bug
        return self.head(found)

    _masked(path, forward)


@planted("masked-row")
def pooling_over_words_that_are_all_masked(path: Path) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.words(ids)
        scores = self.query(x).squeeze(-1)
        scores[ids == 0] = float("-inf")
        weights = torch.nn.functional.softmax(scores, dim=1)  # bug
        return self.head((weights[..., None] * x).sum(1))

    _masked(path, forward)


@planted("masked-row")
def window_that_moves_past_the_keys(path: Path) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.words(ids)
        at = torch.arange(ids.shape[1])
        near = (at[:, None] - at).abs() < 3
        near = near & (at[None] >= 4)
        scores = (x @ x.mT).where(near, -torch.inf)
        return self.head(scores.softmax(-1) @ x)  # bug

    _masked(path, forward)


@planted("masked-row")
def bias_of_infinities_for_another_document(path: Path) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.words(ids)
        document = torch.tensor([0, 0, 1, 1, 2, 2])
        other = torch.tensor([0, 0, 1, 1, 1, 1])
        bias = torch.zeros(6, 6).masked_fill_(document[:, None] != other, -torch.inf)
        likely = F.log_softmax(x @ x.mT + bias, -1).exp()  # bug
        return self.head(likely @ x)

    _masked(path, forward)


@planted("dead-layer")
def scale_of_a_norm_begun_far_below(path: Path) -> None:
    model = Vision()
    nn.init.constant_(model.stem[1].bias, -20.0)  # type: ignore[arg-type]

    def loss() -> Tensor:
        h = model.stem[1](model.stem[0](torch.randn(6, 3, 8, 8)))  # type: ignore[operator, index]
        h = F.relu(h, inplace=True)  # bug
        return F.cross_entropy(model.head(h.mean((2, 3)) + model.block(h).mean((2, 3))), torch.randint(0, 5, (6,)))

    train(path, model, loss)


@planted("dead-layer")
def relu_of_the_logarithm_of_shares(path: Path) -> None:
    class Net(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            likely = self.lstm(self.words(words))[0].softmax(-1)
            return self.head(nn.functional.relu(likely.log2()))  # bug

    model = Net()
    train(path, model, model.loss)


@planted("dead-layer")
def relu6_after_a_distance_with_the_wrong_sign(path: Path) -> None:
    class Net(Trained):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.head = nn.Parameter(torch.randn(10, 6)), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            near = -torch.cdist(x, self.centres)
            return self.head(F.relu6(near))  # bug

        def loss(self) -> Tensor:
            x, y = batch()
            return F.cross_entropy(self(x), y)

    model = Net()
    train(path, model, model.loss)


@planted("dead-layer")
def experts_killed_by_one_large_step(path: Path) -> None:
    class Net(Graph):
        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            for layer in self.layers:
                nodes = torch.relu(layer(nodes) - 100.0)  # bug
                nodes = nodes.index_add(0, edges[1], nodes[edges[0]])
            return self.out(nodes).squeeze(-1)

    model = Net()
    train(path, model, model.loss)


# -- half precision -----------------------------------------------------------------------------------------------------


@planted("half-angle")
def rotary_positions_in_the_dtype_of_the_model(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
            self.register_buffer("inverse", 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16))

        def forward(self, x: Tensor) -> Tensor:
            t = torch.arange(x.shape[1], device=x.device).type_as(self.inverse)  # type: ignore[arg-type]
            freqs = torch.einsum("i,j->ij", t, self.inverse)
            emb = torch.cat((freqs, freqs), dim=-1)
            cos, sin = emb.cos(), emb.sin()  # bug
            q, k = self.q(x), self.k(x)
            half = torch.cat((-q[..., 8:], q[..., :8]), -1)
            return ((q * cos + half * sin) @ k.mT).softmax(-1)

    model = Net().bfloat16()
    train(path, model, lambda: model(torch.randn(1, 400, 16).bfloat16()).float().square().sum(), steps=1)


@planted("half-angle")
def fourier_features_of_places_in_half(path: Path) -> None:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, x: Tensor) -> Tensor:
            powers = 2.0 ** torch.arange(10, dtype=x.dtype)
            angles = (x[..., None] * powers * math.pi).flatten(-2)
            return self.net(torch.cat([angles.sin(), angles.cos()], -1))  # bug

    model = Field().half()
    train(
        path,
        model,
        lambda: model(torch.rand(64, 2).half()).float().square().mean(),
        torch.optim.SGD(model.parameters(), 1e-3),
        steps=1,
    )


@planted("half-angle")
def table_of_places_made_in_bfloat16(path: Path) -> None:
    class Net(Translator):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            places = torch.arange(900, dtype=torch.bfloat16).unsqueeze(1)
            rates = torch.exp(torch.arange(0, 16, 2, dtype=torch.bfloat16) * (-math.log(10000.0) / 16))
            table = torch.zeros(900, 16, dtype=torch.bfloat16)
            table[:, 0::2] = torch.sin(places * rates)  # bug
            table[:, 1::2] = torch.cos(places * rates)
            memory = self.encoder(self.words(source) + self.places + table[-9:])
            return self.head(self.decoder(self.words(target), memory))

    model = Net()
    train(path, model, model.loss, steps=1)


@planted("half-angle")
def hour_of_the_year_as_an_angle(path: Path) -> None:
    model = nn.Linear(2, 1)

    def loss() -> Tensor:
        hours = torch.randint(0, 8760, (32,)).to(torch.float16)
        angle = 2 * math.pi * hours / 24
        x = torch.stack([torch.sin(angle), torch.cos(angle)], -1)  # bug
        return model(x.float()).square().mean()

    train(path, model, loss, steps=1)


@planted("half-angle")
def times_of_diffusion_under_a_cast(path: Path) -> None:
    class Net(Denoiser):
        def embedded(self, times: Tensor) -> Tensor:
            rates = torch.exp(-math.log(10000.0) * torch.arange(4) / 4)
            angles = times.bfloat16()[:, None] * rates.bfloat16()
            return torch.cat([angles.float().sin(), angles.float().cos()], -1)  # bug

        def loss(self) -> Tensor:
            noise = torch.randn(4, 1, 8, 8)
            return F.mse_loss(self(noise, torch.tensor([3.3, 871.7, 555.1, 990.4])), noise)

    model = Net()
    train(path, model, model.loss, steps=1)


@planted("half-index")
def rows_of_a_frame_in_one_half_tensor(path: Path) -> None:
    model = Clicks()
    model.tables[0] = nn.EmbeddingBag(9000, 6, mode="sum")

    def loss() -> Tensor:
        frame = torch.stack([torch.rand(8), torch.arange(8) * 1000 + 501.0], 1).half()
        users = frame[:, 1].long()  # bug
        rows = model.tables[0](users[:, None])
        return model.top(torch.cat([rows, frame[:, :1].float(), rows[:, :2]], 1)).square().mean()

    train(path, model, loss, torch.optim.SGD(model.parameters(), 0.1), steps=1)


@planted("half-index")
def bins_of_a_value_in_bfloat16(path: Path) -> None:
    table = nn.Embedding(1024, 4)

    def loss() -> Tensor:
        value = torch.rand(64).bfloat16()
        bins = (value * 1023).to(torch.int64)  # bug
        return table(bins).square().mean()

    train(path, table, loss, steps=1)


@planted("half-index")
def last_token_by_a_sum_of_a_half_mask(path: Path) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Tensor:
        mask = torch.ones(3, 701, dtype=torch.bfloat16)
        mask[0, 333:], mask[1, 511:] = 0, 0
        last = (mask.sum(1) - 1).long()  # bug
        states = model(torch.randn(3, 701, 4))
        return states[torch.arange(3), last].square().mean()

    train(path, model, loss, steps=1)


@planted("half-index")
def nodes_gathered_by_scaled_halves(path: Path) -> None:
    model = Graph()

    def loss() -> Tensor:
        nodes = torch.randn(3001, 6)
        at = torch.linspace(0, 2999, 40, dtype=torch.float16).int()  # bug
        picked = torch.index_select(nodes, 0, at)
        return model(picked, torch.randint(0, 40, (2, 80))).square().mean()

    train(path, model, loss, steps=1)


@planted("half-index")
def hash_of_cells_in_half(path: Path) -> None:
    grid = nn.Parameter(torch.randn(4096, 2))
    model = nn.ParameterList([grid])

    def loss() -> Tensor:
        place = (torch.rand(50, 2) * 64).half()
        cell = (place[:, 0].floor() * 64 + place[:, 1].floor()).long()  # bug
        return grid[cell].square().mean()

    train(path, model, loss, steps=1)


@planted("half-sum")
def degrees_of_nodes_in_the_dtype_of_the_weights(path: Path) -> None:
    model = Graph()

    def loss() -> Tensor:
        nodes, edges = torch.randn(9, 6), torch.randint(0, 9, (2, 5000))
        ones = torch.ones(5000, dtype=torch.bfloat16)
        degree = torch.zeros(9, dtype=torch.bfloat16).index_add_(0, edges[1], ones)  # bug
        return (model(nodes, edges[:, :20]) / degree.float()).square().mean()

    train(path, model, loss, steps=1)


@planted("half-sum")
def tokens_of_experts_counted_in_half(path: Path) -> None:
    model = Translator()

    def loss() -> Tensor:
        chosen = torch.randint(0, 2, (4000,))
        count = torch.zeros(2, dtype=torch.float16).index_add(0, chosen, torch.full((4000,), 0.4).half())  # bug
        return model.loss() + 0.01 * (count.float() / 4000).std()

    train(path, model, loss, steps=1)


@planted("half-sum")
def kinds_of_users_looked_up_in_half(path: Path) -> None:
    class Net(Clicks):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = nn.Embedding(2, 6)

        def loss(self) -> Tensor:
            kind = torch.zeros(2000, dtype=torch.long)
            rows = self.kinds(kind) + self.numbers(torch.rand(2000, 4).to(self.kinds.weight.dtype))  # bug
            return (rows.float() - 2).square().mean()

    model = Net().bfloat16()
    train(path, model, model.loss, torch.optim.SGD(model.parameters(), 1e-3), steps=1)


@planted("sum-stalls")
def loss_of_an_epoch_summed_in_bfloat16(path: Path) -> None:
    model, total = Pretrained("gpt2"), torch.tensor(2048.0, dtype=torch.bfloat16)

    def loss() -> Tensor:
        found = model.loss()
        total.add_(found.detach().bfloat16())  # bug
        return found

    train(path, model, loss, steps=1)


@planted("sum-stalls")
def hits_counted_in_half(path: Path) -> None:
    class Meter:
        def __init__(self) -> None:
            self.hits = torch.tensor(4096.0).half()

        def update(self, right: Tensor) -> None:
            self.hits += right.half().sum().clamp(max=1)  # bug

    model, meter = Vision(), Meter()

    def loss() -> Tensor:
        meter.update(torch.tensor([True, False, True]))
        return model.loss()

    train(path, model, loss, steps=1)


@planted("sum-stalls")
def steps_counted_in_the_dtype_of_the_weights(path: Path) -> None:
    class Net(Denoiser):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.tensor(300.0, dtype=torch.bfloat16))

        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            self.seen += 1  # bug
            return super().forward(x, times)

    model = Net()
    train(path, model, model.loss)


@planted("sum-stalls")
def losses_of_tasks_added_to_a_half_total(path: Path) -> None:
    model = nn.ModuleList([Graph(), Clicks()])

    def loss() -> Tensor:
        total = torch.tensor(1000.0, dtype=torch.bfloat16)
        for part in model:
            total = total + part.loss().detach().bfloat16()  # type: ignore[operator] # bug
        return model[0].loss() + model[1].loss()  # type: ignore[operator]

    train(path, model, loss, steps=1)


@planted("sum-stalls")
def average_of_codes_with_a_tiny_share(path: Path) -> None:
    model = nn.Linear(6, 4)
    counts = torch.full((4,), 600.0, dtype=torch.bfloat16)

    def loss() -> Tensor:
        x = model(batch()[0])
        counts.add_(F.one_hot(x.argmax(-1), 4).bfloat16().mean(0) + 0.1)  # bug
        return x.square().mean()

    train(path, model, loss, steps=1)


# -- memory -------------------------------------------------------------------------------------------------------------


@planted("saved-overwritten")
def weights_clamped_between_forward_and_backward(path: Path) -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(F.leaky_relu(self.first(x), 0.2))

    model = Critic()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            loss = model(torch.randn(8, 6)).mean() - model(torch.randn(8, 6) + 1).mean()
            for parameter in model.parameters():
                parameter.data.clamp_(-0.01, 0.01)  # bug
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dump.step()


@planted("saved-overwritten")
def buffer_of_states_used_again_for_the_next_batch(path: Path) -> None:
    model, buffer = ActorCritic(), torch.empty(10, 5)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            losses = []
            for _ in range(2):
                torch.randn(10, 5, out=buffer.data)  # bug
                scores, value = model(buffer)
                losses.append(scores.square().mean() + value.square().mean())
            sum(losses).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@planted("saved-overwritten")
def teacher_copied_into_the_student_before_backward(path: Path) -> None:
    model = Tagger()
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(0.9)
    with recording(path, model):
        loss = model.loss()
        for one, other in zip(model.parameters(), teacher.parameters(), strict=True):
            one.data.lerp_(other.data, 0.5)  # bug
        loss.backward()
        optimizer.step()


# -- rules that are selected --------------------------------------------------------------------------------------------

SELECTED: dict[str, tuple[str, Callable[[Path], None]]] = {}


def selected(rule: str, function: Callable[[Path], None]) -> None:
    SELECTED[f"{rule}: {function.__name__.replace('_', ' ')}"] = rule, function


def _all_in_eval(path: Path, model: Trained, optimizer: torch.optim.Optimizer | None = None) -> None:
    train(path, model, model.loss, optimizer)


def validated_and_never_put_back(path: Path) -> None:
    model = Vision()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def validate() -> None:
        model.eval()
        with torch.no_grad():
            model.loss()

    with recording(path, model) as dump:
        for _ in range(2):
            model.loss().backward()  # bug
            optimizer.step()
            optimizer.zero_grad()
            validate()
            dump.step()


def loaded_for_inference_and_trained(path: Path) -> None:
    model = Pretrained("bert")
    model.load_state_dict(model.state_dict())
    model.eval()
    _all_in_eval(path, model)


def generated_samples_before_the_epoch(path: Path) -> None:
    model = Pretrained("gpt2").eval()
    with torch.no_grad():
        model.inner(input_ids=torch.randint(3, 40, (1, 4)))
    _all_in_eval(path, model, torch.optim.SGD(model.parameters(), 0.01))


def copy_for_averages_trained_by_mistake(path: Path) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(Vision()).eval()
    train(path, averaged, lambda: F.cross_entropy(averaged(torch.randn(6, 3, 8, 8)), torch.randint(0, 5, (6,))))


def actor_put_to_evaluation_to_act(path: Path) -> None:
    model = ActorCritic()
    model.train(False)
    _all_in_eval(path, model, torch.optim.Adam(model.parameters(), 1e-3))


def recommender_in_evaluation(path: Path) -> None:
    _all_in_eval(path, Clicks().eval())


def translator_in_evaluation_over_batches(path: Path) -> None:
    model = Translator(dropout=0.1).eval()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, model):
        for _ in range(2):
            (model.loss() / 2).backward()
        optimizer.step()


def tagger_in_evaluation_with_a_scaler(path: Path) -> None:
    model = Tagger().eval()
    _scaled(path, model, torch.optim.SGD(model.parameters(), 0.01), lambda: None)


def parts_put_to_evaluation_one_by_one(path: Path) -> None:
    model = Denoiser()
    for part in model.modules():
        part.eval()
    _all_in_eval(path, model)


def encoder_called_by_its_method(path: Path) -> None:
    model = Pairs().eval()
    _all_in_eval(path, model)


for _one in (
    validated_and_never_put_back,
    loaded_for_inference_and_trained,
    generated_samples_before_the_epoch,
    copy_for_averages_trained_by_mistake,
    actor_put_to_evaluation_to_act,
    recommender_in_evaluation,
    translator_in_evaluation_over_batches,
    tagger_in_evaluation_with_a_scaler,
    parts_put_to_evaluation_one_by_one,
    encoder_called_by_its_method,
):
    selected("training-in-eval", _one)


class Half(Trained):
    """A model whose weights are cast, and its loss with them."""

    def __init__(self, inner: Trained, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def loss(self) -> Tensor:
        default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            return self.inner.loss().float()
        finally:
            torch.set_default_dtype(default)


def _stalls(name: str, make: Callable[[], tuple[Trained, torch.optim.Optimizer]]) -> None:
    def record(path: Path) -> None:
        model, optimizer = make()
        train(path, model, model.loss, optimizer)

    record.__name__ = name
    selected("update-stalls", record)


def _pure(
    inner: Callable[[], Trained], optimizer: Callable[..., torch.optim.Optimizer], lr: float, **options: Any
) -> Any:
    def make() -> tuple[Trained, torch.optim.Optimizer]:
        model = Half(inner())
        return model, optimizer(model.parameters(), lr=lr, **options)

    return make


_stalls("fine_tuned_in_bfloat16_with_the_rate_of_float32", _pure(lambda: Pretrained("llama"), torch.optim.AdamW, 1e-6))
_stalls("first_steps_of_a_warmup", _pure(lambda: Pretrained("gpt2"), torch.optim.AdamW, 1e-8))
_stalls("convolutions_by_plain_descent", _pure(Vision, torch.optim.SGD, 1e-5))
_stalls("tagger_by_momentum", _pure(Tagger, torch.optim.SGD, 1e-6, momentum=0.9))
_stalls("graph_by_adam_one_by_one", _pure(Graph, torch.optim.Adam, 1e-7, foreach=False))
_stalls("recommender_by_adagrad", _pure(lambda: Clicks(), torch.optim.Adagrad, 1e-7))
_stalls("pairs_by_rmsprop", _pure(Pairs, torch.optim.RMSprop, 1e-7))
_stalls("policy_by_nadam", _pure(ActorCritic, torch.optim.NAdam, 1e-7))
_stalls("translator_with_weight_decay_alone", _pure(Translator, torch.optim.AdamW, 1e-7, weight_decay=0.01))


def _half_sgd() -> tuple[Trained, torch.optim.Optimizer]:
    model = Half(Autoencoder(), torch.float16)
    return model, torch.optim.SGD(model.parameters(), lr=1e-7)


_stalls("autoencoder_in_float16", _half_sgd)
