"""Planted bugs that show in where values go: gradients nobody reads, choices that never vary, inputs without an end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, net, recording
from .planted import TwoParts, classify, planted, train
from .planted_blind import Attention, Language, ids, language_loss

Loss = Callable[[], Tensor]

# -- gradient-lost: zero_grad where a gradient is still needed ----------------------------------------------------------


def _accumulated(path: Path, clear: Callable[[nn.Module, torch.optim.Optimizer], None], each_recorded: bool) -> None:
    """Accumulate over two batches, and clear before each of them."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for number in range(4):
            clear(model, optimizer)
            (classify(model) / 2).backward()  # bug
            if number % 2:
                optimizer.step()
            if each_recorded or number % 2:
                dump.step()


@planted("gradient-lost")
def cleared_at_the_head_of_each_accumulated_batch(path: Path) -> None:
    _accumulated(path, lambda model, optimizer: optimizer.zero_grad(), each_recorded=False)  # bug


@planted("gradient-lost")
def model_cleared_in_place_for_each_accumulated_batch(path: Path) -> None:
    _accumulated(path, lambda model, optimizer: model.zero_grad(set_to_none=False), each_recorded=False)  # bug


@planted("gradient-lost")
def set_to_none_by_hand_for_each_accumulated_batch(path: Path) -> None:
    def clear(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.grad = None

    _accumulated(path, clear, each_recorded=False)


@planted("gradient-lost")
def cleared_for_each_accumulated_batch_that_is_a_recorded_step(path: Path) -> None:
    _accumulated(path, lambda model, optimizer: optimizer.zero_grad(), each_recorded=True)  # bug


@planted("gradient-lost")
def cleared_between_two_losses(path: Path) -> None:
    model = TwoParts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            classify(model).backward()  # bug
            optimizer.zero_grad()  # bug
            (0.1 * model(torch.randn(8, 6)).square().mean()).backward()
            optimizer.step()
            dump.step()


@planted("gradient-lost")
def critic_cleared_between_real_and_fake(path: Path) -> None:
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    generator = nn.Linear(4, 6)
    of_critic, of_generator = (torch.optim.Adam(m.parameters(), 1e-3) for m in (critic, generator))
    with recording(path, nn.ModuleDict({"critic": critic, "generator": generator})) as dump:
        for _ in range(2):
            fake = generator(torch.randn(8, 4))
            for inputs, label in ((torch.randn(8, 6), 1.0), (fake.detach(), 0.0)):
                of_critic.zero_grad()  # bug
                F.binary_cross_entropy_with_logits(critic(inputs), torch.full((8, 1), label)).backward()  # bug
            of_critic.step()
            of_generator.zero_grad()
            F.binary_cross_entropy_with_logits(critic(fake), torch.ones(8, 1)).backward()
            of_generator.step()
            dump.step()


@planted("gradient-lost")
def cleared_for_each_task(path: Path) -> None:
    model = nn.ModuleDict({"trunk": nn.Linear(6, 8), "a": nn.Linear(8, 3), "b": nn.Linear(8, 3)})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            for task in ("a", "b"):
                optimizer.zero_grad(set_to_none=False)  # bug
                x, y = batch()
                F.cross_entropy(model[task](model["trunk"](x).relu()), y).backward()  # bug
            optimizer.step()
            dump.step()


@planted("gradient-lost")
def chunks_of_a_sequence_cleared_one_by_one(path: Path) -> None:
    model = nn.ModuleDict({"cell": nn.GRUCell(4, 8), "head": nn.Linear(8, 2)})
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            state = torch.zeros(3, 8)
            for _ in range(3):
                state = model["cell"](torch.randn(3, 4), state.detach())
                optimizer.zero_grad()  # bug
                F.cross_entropy(model["head"](state), torch.tensor([0, 1, 0])).backward()  # bug
            optimizer.step()
            dump.step()


@planted("gradient-lost")
def helper_of_the_loss_clears_as_well(path: Path) -> None:
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)

    def backward(loss: Tensor) -> None:
        optimizer.zero_grad()  # bug
        loss.backward()  # bug

    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                backward(classify(model))
            optimizer.step()
            dump.step()


@planted("gradient-lost")
def language_model_cleared_in_its_micro_batches(path: Path) -> None:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            for _ in range(2):
                optimizer.zero_grad()  # bug
                language_loss(model).div(2).backward()  # bug
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            dump.step()


# -- repeated-pass: the same batch twice in one step; and repeated-batch: in two steps ----------------------------------

Batches = Callable[[], tuple[nn.Module, Loss]]
REPEATED: dict[str, Callable[[Path], None]] = {}


def repeated(make: Batches) -> Batches:
    """Plant a model and its loss, of the same batch each time, as two passes of one step and as two steps."""

    def two_passes(path: Path) -> None:
        model, loss = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        with recording(path, model):
            for _ in range(2):
                (loss() / 2).backward()  # bug
            optimizer.step()

    def two_steps(path: Path) -> None:
        model, loss = make()
        train(path, model, loss)

    two_passes.__name__ = make.__name__
    planted("repeated-pass")(two_passes)
    REPEATED[make.__name__.replace("_", " ")] = two_steps
    return make


@repeated
def loader_begun_anew_for_each_batch() -> tuple[nn.Module, Loss]:
    model = net()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch(64)), batch_size=8)

    def loss() -> Tensor:
        x, y = next(iter(loader))
        return F.cross_entropy(model(x), y)

    return model, loss


@repeated
def seed_set_in_the_function_of_batches() -> tuple[nn.Module, Loss]:
    model = net()

    def loss() -> Tensor:
        torch.manual_seed(1234)
        return classify(model)

    return model, loss


@repeated
def start_of_the_slice_never_moves() -> tuple[nn.Module, Loss]:
    model, (x, y) = net(), batch(64)

    def loss(start: int = 0) -> Tensor:
        return F.cross_entropy(model(x[start : start + 8]), y[start : start + 8])

    return model, loss


@repeated
def one_batch_taken_before_the_loop() -> tuple[nn.Module, Loss]:
    model, tokens = Language(), ids()
    return model, lambda: F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@repeated
def generator_of_the_shuffle_seeded_each_time() -> tuple[nn.Module, Loss]:
    model, (x, y) = net(), batch(64)

    def loss() -> Tensor:
        chosen = torch.randperm(64, generator=torch.Generator().manual_seed(7))[:16]
        return F.cross_entropy(model(x[chosen]), y[chosen])

    return model, loss


class Noise(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples that NumPy draws."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return torch.from_numpy(np.random.normal(size=6)).float(), 1


@repeated
def workers_that_are_seeded_alike() -> tuple[nn.Module, Loss]:
    model = net()
    seeded = {"num_workers": 2, "worker_init_fn": lambda _: np.random.seed(0), "multiprocessing_context": "fork"}
    batches = iter(torch.utils.data.DataLoader(Noise(), batch_size=8, **seeded))

    def loss() -> Tensor:
        x, y = next(batches)
        return F.cross_entropy(model(x), y)

    return model, loss


@repeated
def images_of_a_constant_crop() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    images, labels = torch.rand(4, 3, 12, 12), torch.tensor([0, 1, 2, 0])
    return model, lambda: F.cross_entropy(model(images[:, :, 2:10, 2:10]), labels)


@repeated
def both_halves_are_the_first() -> tuple[nn.Module, Loss]:
    model, (x, y) = TwoParts(), batch(16)
    return model, lambda half=0: F.cross_entropy(model(x.chunk(2)[half]), y.chunk(2)[half])


@repeated
def text_whose_position_is_kept_in_a_copy() -> tuple[nn.Module, Loss]:
    model, text = Language(), torch.arange(200) % 20 + 1
    state = {"at": 0}

    def loss() -> Tensor:
        at = dict(state)["at"]
        tokens = text[at : at + 32].view(4, 8)
        dict(state)["at"] = at + 32
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


@repeated
def cached_batch_of_a_lazy_loader() -> tuple[nn.Module, Loss]:
    model = TwoParts()

    @functools.cache
    def load(split: str) -> tuple[Tensor, Tensor]:
        return batch(32)

    def loss() -> Tensor:
        x, y = load("train")
        return F.cross_entropy(model(x), y)

    return model, loss


@planted("repeated-pass")
def backward_twice_over_one_loss(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model):
        loss = classify(model)
        loss.backward(retain_graph=True)
        loss.backward()  # bug
        optimizer.step()


@planted("repeated-pass")
def loss_by_a_helper_and_by_the_loop(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def compute(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        return loss

    with recording(path, model):
        compute(*batch()).backward()  # bug
        optimizer.step()


# -- dead-router: all tokens to one expert ------------------------------------------------------------------------------


class Experts(nn.Module):
    """Experts of which a router chooses some for each token, and weights them."""

    def __init__(self, choose: str, count: int = 4, most: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(6, count, bias=bias), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(count))
        self.choose, self.most = choose, most
        self.register_buffer("balance", torch.zeros(count))

    def scores(self, x: Tensor) -> Tensor:
        return self.router(x)

    def chosen(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        share = scores.softmax(-1)
        if self.choose == "topk":
            return share.topk(self.most, -1)  # bug
        if self.choose == "max":
            weight, index = share.max(-1)  # bug
            return weight[:, None], index[:, None]
        if self.choose == "one hot":
            index = share.argmax(-1)  # bug
            return (share * F.one_hot(index, share.shape[-1])).sum(-1)[:, None], index[:, None]
        if self.choose == "balanced":
            index = (scores.sigmoid() + self.balance).topk(self.most, -1).indices  # bug
            return scores.sigmoid().gather(-1, index), index
        order = share.argsort(-1, descending=True)[:, : self.most]  # bug
        return share.gather(-1, order), order

    def forward(self, x: Tensor) -> Tensor:
        weight, index = self.chosen(self.scores(x))
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (index == number).nonzero(as_tuple=True)
            if token.numel():
                out = out.index_add(0, token, expert(x[token]) * weight[token, place][:, None])
        return self.head(out)


def _routed(path: Path, model: Experts, size: int = 64) -> None:
    def loss() -> Tensor:
        x, y = batch(size)
        return F.cross_entropy(model(x), y)

    held = [p for n, p in model.named_parameters() if n.startswith(("router", "head"))]
    train(path, model, loss, torch.optim.SGD(held, 1e-3))


def _biased(model: Experts, *chosen: int) -> Experts:
    with torch.no_grad():
        model.router.bias[list(chosen)] += 30.0
    return model


@planted("dead-router")
def bias_of_the_router_has_run_away(path: Path) -> None:
    _routed(path, _biased(Experts("topk"), 2))


@planted("dead-router")
def always_the_same_two_experts(path: Path) -> None:
    _routed(path, _biased(Experts("topk", 8, 2), 1, 5))


@planted("dead-router")
def router_of_zeros_chooses_the_first(path: Path) -> None:
    model = Experts("max", bias=False)
    nn.init.zeros_(model.router.weight)
    _routed(path, model)


@planted("dead-router")
def router_by_one_hot_has_collapsed(path: Path) -> None:
    _routed(path, _biased(Experts("one hot"), 3))


@planted("dead-router")
def balance_with_the_wrong_sign(path: Path) -> None:
    model = Experts("balanced", 4, 2)
    model.balance += torch.tensor([0.0, 3.0, 0.0, 2.0])
    _routed(path, model)


@planted("dead-router")
def sorted_shares_are_all_alike(path: Path) -> None:
    _routed(path, _biased(Experts("sort", 6, 2), 0, 4))


@planted("dead-router")
def router_reads_the_mean_of_all_tokens(path: Path) -> None:
    class Net(Experts):
        def scores(self, x: Tensor) -> Tensor:
            return self.router(x.mean(0, keepdim=True)).expand(len(x), -1)

    _routed(path, Net("topk", 8, 2))


@planted("dead-router")
def inputs_are_not_centred(path: Path) -> None:
    class Net(Experts):
        def scores(self, x: Tensor) -> Tensor:
            return self.router(x + 1000.0)

    _routed(path, Net("topk", 4))


@planted("dead-router")
def normalised_away_before_the_router(path: Path) -> None:
    class Net(Experts):
        def scores(self, x: Tensor) -> Tensor:
            return self.router(F.normalize(x.mean(-1, keepdim=True) * 1e-20, dim=-1).expand_as(x))

    _routed(path, Net("max", 5))


@planted("dead-router")
def router_in_bfloat16_rounds_all_shares_to_one(path: Path) -> None:
    class Net(Experts):
        def scores(self, x: Tensor) -> Tensor:
            return (1000 + self.router(x).to(torch.bfloat16)).float()

    _routed(path, Net("max", 4))


# -- floored-ratio: // where / is meant ---------------------------------------------------------------------------------


@planted("floored-ratio")
def images_by_255_of_integers(path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def loss() -> Tensor:
        images = torch.randint(0, 255, (8, 3, 4, 4), dtype=torch.uint8)
        return F.cross_entropy(model((images // 255).float()), torch.randint(0, 3, (8,)))  # bug

    train(path, model, loss)


def _share_of_tokens(path: Path, share: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = Language()

    def loss() -> Tensor:
        tokens = ids()
        kept = torch.ones_like(tokens)
        kept[0, 3:] = 0
        return language_loss(model) * share(kept.sum(), torch.tensor(kept.numel()))

    train(path, model, loss)


@planted("floored-ratio")
def loss_scaled_by_the_share_of_real_tokens(path: Path) -> None:
    _share_of_tokens(path, lambda kept, size: kept // size)  # bug


@planted("floored-ratio")
def share_of_tokens_by_floor_divide(path: Path) -> None:
    _share_of_tokens(path, lambda kept, size: torch.floor_divide(kept, size))  # bug


@planted("floored-ratio")
def share_of_tokens_rounded_down(path: Path) -> None:
    _share_of_tokens(path, lambda kept, size: torch.div(kept, size, rounding_mode="trunc").float())  # bug


@planted("floored-ratio")
def mean_of_kept_positions_by_whole_shares(path: Path) -> None:
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        x, kept = torch.randn(4, 5, 6), torch.tensor([[1, 1, 1, 0, 0]] * 4)
        weight = kept // kept.sum(1, keepdim=True)  # bug
        return F.cross_entropy(model((x * weight.unsqueeze(-1)).sum(1)), torch.randint(0, 3, (4,)))

    train(path, model, loss)


@planted("floored-ratio")
def progress_of_the_schedule(path: Path) -> None:
    model = net()
    done = torch.tensor(30)

    def loss() -> Tensor:
        done.add_(1)
        ramp = done // 1000  # bug
        return classify(model) + ramp * model[0].weight.square().mean()

    train(path, model, loss)


@planted("floored-ratio")
def weights_of_classes_by_their_counts(path: Path) -> None:
    model = net()

    def loss() -> Tensor:
        x, y = batch(64)
        counts = torch.bincount(y, minlength=3)
        rare = 1 - (counts // counts.sum())  # bug
        return F.cross_entropy(model(x), y, weight=rare.float())

    train(path, model, loss)


@planted("floored-ratio")
def boxes_relative_to_their_image(path: Path) -> None:
    model = nn.Linear(6, 4)
    boxes = torch.tensor([[10, 20, 110, 220], [5, 5, 300, 400]])

    def loss() -> Tensor:
        relative = boxes // torch.tensor([640, 480, 640, 480])  # bug
        return F.smooth_l1_loss(model(torch.randn(2, 6)).sigmoid(), relative.to(torch.float32))

    train(path, model, loss)


@planted("floored-ratio")
def lengths_relative_to_the_longest(path: Path) -> None:
    model = nn.Linear(6, 1)

    def loss() -> Tensor:
        lengths = torch.tensor([3, 9, 12, 7])
        out = model(torch.randn(4, 6)).squeeze(-1)
        return (out * (lengths // lengths.max())).square().mean()  # bug

    train(path, model, loss)


@planted("floored-ratio")
def importance_of_experts_by_counts(path: Path) -> None:
    model = nn.Linear(6, 4)

    def loss() -> Tensor:
        share = model(torch.randn(32, 6)).softmax(-1)
        used = torch.bincount(share.argmax(-1), minlength=4)
        load = used // used.sum()  # bug
        return (share.mean(0) * load).sum() + share.square().mean()

    train(path, model, loss)


# -- unused-input: what the model is given and nothing comes of ---------------------------------------------------------


@planted("unused-input")
def mask_of_padding_is_ignored(path: Path) -> None:
    class Net(Language):
        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            x = self.embed(tokens)
            x = x + self.block(self.norm(x))
            return self.head(x + self.mlp(x))

    model = Net()

    def loss() -> Tensor:
        tokens = ids()
        return F.cross_entropy(model(tokens, tokens == 0)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # bug

    train(path, model, loss)


@planted("unused-input")
def mask_is_turned_and_dropped(path: Path) -> None:
    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            scores, v = self.scores(x)
            scores.masked_fill(mask, float("-inf"))  # not in place: what it returns is lost
            return self.join(scores.softmax(-1), v)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Block(), nn.Linear(16, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.block(x, mask[:, None, None, :]).mean(1))

    model = Net()

    def loss() -> Tensor:
        mask = torch.zeros(4, 5, dtype=torch.bool)
        mask[0, 3:] = True
        return F.cross_entropy(model(torch.randn(4, 5, 16), mask), torch.tensor([0, 1, 2, 0]))  # bug

    train(path, model, loss)


@planted("unused-input")
def lengths_are_not_read(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    model = Net()

    def loss() -> Tensor:
        return F.cross_entropy(model(torch.randn(3, 7, 4), torch.tensor([7, 3, 5])), torch.tensor([0, 1, 2]))  # bug

    train(path, model, loss)


@planted("unused-input")
def decoder_attends_to_itself_alone(path: Path) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            return self.head(x + self.attention(x, x, x, need_weights=False)[0])

    model = Decoder()
    train(path, model, lambda: model(torch.randn(2, 4, 16), torch.randn(2, 6, 16)).square().mean())  # bug


@planted("unused-input")
def condition_computed_and_never_added(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 6)
            self.register_buffer("classes", torch.randn(4, 8))

        def forward(self, x: Tensor, label: Tensor) -> Tensor:
            hidden = self.inner(x)
            _ = hidden + self.classes[label]
            return self.head(hidden.relu())

    model = Net()

    def loss() -> Tensor:
        return F.mse_loss(model(torch.randn(8, 6), torch.randint(0, 4, (8,))), torch.randn(8, 6))  # bug

    train(path, model, loss)


@planted("unused-input")
def time_of_diffusion_shadowed(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(14, 6)

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            time = torch.zeros(len(x))
            angles = time[:, None] * torch.arange(1, 5)
            return self.inner(torch.cat([x, angles.sin(), angles.cos()], -1))

    model = Net()

    def loss() -> Tensor:
        noise = torch.randn(8, 6)
        return F.mse_loss(model(torch.randn(8, 6) + noise, torch.rand(8)), noise)  # bug

    train(path, model, loss)


@planted("unused-input")
def weights_of_samples_ignored_by_the_criterion(path: Path) -> None:
    class Weighted(nn.Module):
        def forward(self, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
            each = F.cross_entropy(scores, labels, reduction="none")
            (each * weights).mean()
            return each.mean()

    model, criterion = net(), Weighted()

    def loss() -> Tensor:
        x, y = batch()
        return criterion(model(x), y, torch.rand(16))  # bug

    train(path, model, loss)


@planted("unused-input")
def skip_connection_forgotten(path: Path) -> None:
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv1d(4, 2, 1)

        def forward(self, deep: Tensor, image: Tensor) -> Tensor:
            grown = F.interpolate(deep, scale_factor=2)
            return self.mix(torch.cat([grown, grown], 1))

    model = Up()
    train(path, model, lambda: model(torch.randn(2, 2, 4), torch.randn(2, 2, 8)).square().mean())  # bug


@planted("unused-input")
def keyword_is_swallowed(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor, **options: Any) -> Tensor:
            return self.inner(x)

    model = Net()

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x, sample_weight=torch.rand(16)), y)  # bug

    train(path, model, loss)


@planted("unused-input")
def second_view_compared_with_the_first(path: Path) -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            a, b = self.inner(one), self.inner(one)
            return -F.cosine_similarity(self.head(a), b.detach()).mean()

    model = Twins()

    def loss() -> Tensor:
        x = torch.randn(8, 6)
        return model(x + 0.1 * torch.randn(8, 6), x + 0.1 * torch.randn(8, 6))  # bug

    train(path, model, loss)


# -- no-gradient: other ways to cut it off ------------------------------------------------------------------------------


@planted("no-gradient")
def latent_rounded(path: Path) -> None:
    model = TwoParts(lambda h: (h * 4).round() / 4)  # bug
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def sign_of_the_code(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 4), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.sign(self.encode(x)))  # bug

    model = Net()
    train(path, model, lambda: F.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 6)))


@planted("no-gradient")
def weights_quantised_without_a_straight_path(path: Path) -> None:
    class Quantised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            step = self.weight.detach().abs().max() / 7
            return F.linear(x, torch.floor(self.weight / step) * step, self.bias)  # bug

    model = nn.Sequential(Quantised(6, 16), nn.ReLU(), nn.Linear(16, 3))
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def expert_by_argmax_alone(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = nn.Linear(6, 4), nn.Linear(6, 3)
            self.experts = nn.Parameter(torch.randn(4, 6, 6) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            chosen = self.router(x).argmax(-1)  # bug
            return self.head((x[:, None] @ self.experts[chosen]).squeeze(1))

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def gate_by_a_comparison(path: Path) -> None:
    class Net(TwoParts):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            kept = (self.gate(x) > 0).float()  # bug
            return self.head(self.encoder(x) * kept)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def scale_read_without_grad_only(path: Path) -> None:
    class Net(TwoParts):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = self.scale.exp()  # bug
            return self.head(self.encoder(x) * scale)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def weight_read_detached(path: Path) -> None:
    class Net(TwoParts):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.encoder(x).relu(), self.head.weight.detach(), self.head.bias)  # bug

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def tied_head_read_detached(path: Path) -> None:
    class Net(Language):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(16, 16, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            mixed = x @ self.scale.weight.detach().T  # bug
            return self.head(self.mlp(x + self.block(self.norm(mixed))))

    model = Net()
    train(path, model, lambda: language_loss(model))


@planted("no-gradient")
def temperature_as_a_number(path: Path) -> None:
    class Net(TwoParts):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x)) / self.temperature.item()  # bug

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def depth_by_the_number_of_a_parameter(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.inner = nn.Linear(6, 1), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            moved = torch.arange(6) + self.shift(x).long()  # bug
            return self.inner(x.gather(1, moved % 6))

    model = Net()
    train(path, model, lambda: classify(model))


# -- scalers ------------------------------------------------------------------------------------------------------------


def _scaled(path: Path, model: nn.Module, loss: Loss, clips: Callable[[], object], own_step: bool) -> None:
    """Accumulate two scaled losses, clip, and step by the optimizer or by the scaler."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with recording(path, model) as dump:
        for _ in range(2):
            for _ in range(2):
                scaler.scale(loss() / 2).backward()
            clips()
            if own_step:
                optimizer.step()  # bug
            else:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            dump.step()


@planted("step-beside-scaler")
def accumulated_scaled_losses_stepped_by_hand(path: Path) -> None:
    model = net()
    _scaled(path, model, lambda: classify(model), lambda: None, own_step=True)


@planted("step-beside-scaler")
def language_model_stepped_without_its_scaler(path: Path) -> None:
    model = Language()
    _scaled(path, model, lambda: language_loss(model), lambda: None, own_step=True)


@planted("clip-before-unscale")
def parts_clipped_one_by_one_while_scaled(path: Path) -> None:
    model = TwoParts()

    def clips() -> None:
        for part in (model.encoder, model.head):
            nn.utils.clip_grad_norm_(part.parameters(), 0.5)  # bug

    _scaled(path, model, lambda: classify(model), clips, own_step=False)


# -- half-sum: many terms added up in half precision --------------------------------------------------------------------


class Marked(nn.Module):
    """Tokens with a kind each, as segments or padding have it, averaged for a score."""

    def __init__(self, kinds: int = 2, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.kinds, self.head = nn.Embedding(kinds, 8), nn.Linear(8, 1)
        self.to(dtype)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return self.head(x + self.kinds(kind)).mean(1)  # bug


def _marked(path: Path, kind: Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    model = Marked(int(kind.max()) + 1, dtype)

    def loss() -> Tensor:
        x = torch.randn(*kind.shape, 8, dtype=dtype)
        return (model(x, kind).float() - 3).square().mean()  # bug

    train(path, model, loss, torch.optim.SGD(model.parameters(), 1e-3), steps=1)


@planted("half-sum")
def kinds_of_tokens_in_bfloat16(path: Path) -> None:
    _marked(path, torch.zeros(4, 600, dtype=torch.long))


@planted("half-sum")
def padding_without_its_index(path: Path) -> None:
    kind = torch.randint(1, 20, (16, 200))
    kind[:, 30:] = 0
    _marked(path, kind)


@planted("half-sum")
def positions_of_a_large_batch(path: Path) -> None:
    _marked(path, torch.arange(3).repeat(900, 1))


@planted("half-sum")
def kinds_of_tokens_in_float16(path: Path) -> None:
    _marked(path, torch.zeros(6, 3000, dtype=torch.long), torch.float16)


@planted("half-sum")
def table_of_relative_places(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(5))

        def forward(self, scores: Tensor) -> Tensor:
            at = torch.arange(scores.shape[-1])
            near = (at[:, None] - at).clamp(-2, 2) + 2
            return scores + self.table[near]  # bug

    model = Net().to(torch.bfloat16)

    def loss() -> Tensor:
        return (model(torch.randn(2, 60, 60, dtype=torch.bfloat16)).float() - 2).square().mean()

    train(path, model, loss, torch.optim.SGD(model.parameters(), 1e-3), steps=1)


@planted("half-sum")
def tokens_counted_in_bfloat16(path: Path) -> None:
    model, counts = Language(), torch.zeros(23, dtype=torch.bfloat16)

    def loss() -> Tensor:
        tokens = torch.randint(0, 3, (2000,))
        counts.index_put_((tokens,), torch.ones(2000, dtype=torch.bfloat16), accumulate=True)  # bug
        return language_loss(model)

    train(path, model, loss, steps=1)


@planted("half-sum")
def nodes_pooled_by_their_graph(path: Path) -> None:
    model = nn.Linear(4, 8).to(torch.bfloat16)

    def loss() -> Tensor:
        nodes = model(torch.rand(1500, 4, dtype=torch.bfloat16)).relu()
        of_graph = (torch.arange(1500) % 2,)
        pooled = torch.zeros(2, 8, dtype=nodes.dtype).index_put(of_graph, nodes, accumulate=True)  # bug
        return pooled.float().square().mean()

    train(path, model, loss, steps=1)
