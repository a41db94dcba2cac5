"""More programs on two ranks with a planted bug each, of models of many kinds.

``python -m tests.analysis.checks.ranks_models all FOLDER`` records each program of `ranks` and of here there.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import recording
from .models import ActorCritic, Autoencoder, Clicks, Denoiser, Graph, Tagger, Trained, Translator, Vision
from .ranks import HEALTHY, PLANTED, RANK, planted

Reduce = Callable[[nn.Module], object]


class Losing(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self, inner: Trained) -> None:
        super().__init__()
        self.inner = inner

    def forward(self) -> Tensor:
        return self.inner.loss()


def _made(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


def _ddp(module: nn.Module, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module, **options)


def _train(
    path: Path,
    model: nn.Module,
    loss: Callable[[], Tensor],
    reduce: Reduce = lambda model: None,
    after: Reduce = lambda model: None,
    around: Callable[[], Any] = nullcontext,
) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    torch.manual_seed(10 + RANK)
    with recording(path, model) as dump:
        for _ in range(2):
            with around():
                loss().backward()
            reduce(model)
            optimizer.step()
            after(model)
            optimizer.zero_grad()
            dump.step()


def _mean(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(2)


def _mean_of_all(model: nn.Module) -> None:
    _mean(model.parameters())


# -- replicas-apart -----------------------------------------------------------------------------------------------------


@planted("replicas-apart")
def new_words_drawn_on_each_rank(path: Path) -> None:
    model = _made(Tagger)
    ddp = _ddp(Losing(model))
    torch.manual_seed(RANK)
    with torch.no_grad():
        model.words.weight[26:].normal_()
    _train(path, ddp, ddp)


@planted("replicas-apart")
def averaged_weights_left_in_after_evaluation_on_the_first_rank(path: Path) -> None:
    model = _made(Vision)
    averaged = {name: value * 0.9 for name, value in model.state_dict().items() if value.is_floating_point()}

    def after(_: nn.Module) -> None:
        if RANK == 0:
            model.load_state_dict(averaged, strict=False)

    ddp = _ddp(Losing(model))
    _train(path, ddp, ddp, after=after)


@planted("replicas-apart")
def first_rank_resumed_from_a_half_checkpoint(path: Path) -> None:
    model = _made(Denoiser)
    if RANK == 0:
        model.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    _train(path, model, model.loss, _mean_of_all)


# -- not-reduced --------------------------------------------------------------------------------------------------------


@planted("not-reduced")
def value_head_forgotten(path: Path) -> None:
    model = _made(ActorCritic)
    _train(path, model, model.loss, lambda _: _mean([*model.trunk.parameters(), *model.policy.parameters()]))


@planted("not-reduced")
def tables_taken_for_sharded(path: Path) -> None:
    model = _made(Clicks)
    dense = [p for n, p in model.named_parameters() if "table" not in n]
    _train(path, model, model.loss, lambda _: _mean(dense))


@planted("not-reduced")
def gradients_that_reshape_copies(path: Path) -> None:
    model = _made(Autoencoder)

    def reduce(_: nn.Module) -> None:
        for parameter in model.parameters():
            is_last = parameter is model.encode.weight
            gradient = (parameter.grad.t() if is_last else parameter.grad).reshape(-1)
            dist.all_reduce(gradient)
            gradient /= 2

    _train(path, model, model.loss, reduce)


@planted("not-reduced")
def hooks_made_before_the_stem_was_unfrozen(path: Path) -> None:
    model = _made(Vision)
    model.stem.requires_grad_(False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: _mean([p]))
    model.stem.requires_grad_(True)
    _train(path, model, model.loss)


# -- gradient-reduced-twice ---------------------------------------------------------------------------------------------


@planted("gradient-reduced-twice")
def encoder_listed_twice(path: Path) -> None:
    model = _made(Translator)
    listed = [*model.encoder.parameters(), *model.parameters()]
    _train(path, model, model.loss, lambda _: _mean(listed))


@planted("gradient-reduced-twice")
def hook_of_a_trunk_with_two_backward_passes(path: Path) -> None:
    model = _made(ActorCritic)
    for parameter in model.trunk.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: _mean([p]))

    def loss() -> Tensor:
        model.parts()[0].backward()
        return model.parts()[1]

    _train(path, model, loss, lambda _: _mean([*model.policy.parameters(), *model.value.parameters()]))


@planted("gradient-reduced-twice")
def before_and_after_unscaling(path: Path) -> None:
    model = _made(Graph)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=8.0)
    torch.manual_seed(10 + RANK)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(model.loss()).backward()
            _mean_of_all(model)
            scaler.unscale_(optimizer)
            _mean_of_all(model)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()


@planted("gradient-reduced-twice")
def functional_collective_after_ddp(path: Path) -> None:
    from torch.distributed._functional_collectives import all_reduce

    model = _made(Tagger)

    def reduce(_: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = all_reduce(parameter.grad, "avg" if False else "sum", dist.group.WORLD) / 2

    ddp = _ddp(Losing(model))
    _train(path, ddp, ddp, reduce)


# -- same-batch ---------------------------------------------------------------------------------------------------------


def _given(path: Path, model: nn.Module, batches: Callable[[int], tuple[Tensor, ...]]) -> None:
    """Train data-parallel on batches of inputs and labels."""
    ddp = _ddp(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with recording(path, ddp) as dump:
        for number in range(2):
            *given, labels = batches(number)
            found = ddp(*given)
            F.cross_entropy(found.flatten(0, -2), labels.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def _images(generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, 8, 8, generator=generator), torch.randint(0, 5, (6,), generator=generator)


@planted("same-batch")
def synthetic_images_after_one_seed(path: Path) -> None:
    model = _made(Vision)
    torch.manual_seed(42)
    _given(path, model, lambda _: _images())


@planted("same-batch")
def order_of_sentences_drawn_alike(path: Path) -> None:
    words = torch.randint(0, 30, (40, 7), generator=torch.Generator().manual_seed(1))
    tags = words % 4
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))

    def batches(number: int) -> tuple[Tensor, ...]:
        rows = order[4 * number : 4 * number + 4]
        return words[rows], tags[rows]

    _given(path, _made(Tagger), batches)


class _Stream(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
    """A stream that every rank reads from its start."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(9)
        while True:
            x, y = _images(generator)
            yield x[0], y[0]


@planted("same-batch")
def stream_that_is_not_split(path: Path) -> None:
    loader = iter(torch.utils.data.DataLoader(_Stream(), batch_size=4))
    _given(path, _made(Vision), lambda _: next(loader))


@planted("same-batch")
def batch_of_the_first_rank_sent_to_all(path: Path) -> None:
    model = _made(Vision)
    torch.manual_seed(RANK)

    def batches(_: int) -> tuple[Tensor, ...]:
        x, y = _images()
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
        return x, y

    _given(path, model, batches)


@planted("same-batch")
def rows_by_the_number_of_the_node(path: Path) -> None:
    source = torch.randint(0, 20, (16, 9), generator=torch.Generator().manual_seed(2))
    node = int(os.environ.get("GROUP_RANK", "0"))
    mine = source[node::2]

    def batches(number: int) -> tuple[Tensor, ...]:
        rows = mine[3 * number : 3 * number + 3]
        return rows, rows[:, :-1], rows[:, 1:]

    _given(path, _made(Translator), batches)


# -- same-random --------------------------------------------------------------------------------------------------------


class _Random(nn.Module):
    """A model that draws within, on a batch of the rank's own."""

    def __init__(self, inner: nn.Module, draw: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.draw = inner, draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.inner, x)


def _drawing(path: Path, inner: nn.Module, draw: Callable[[Any, Tensor], Tensor], *shape: int) -> None:
    model = _ddp(_Random(inner, draw))
    optimizer, own = torch.optim.AdamW(model.parameters(), 0.01), torch.Generator().manual_seed(RANK)
    torch.manual_seed(42)
    with recording(path, model) as dump:
        for _ in range(2):
            model(torch.rand(*shape, generator=own)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@planted("same-random")
def noise_of_the_latents(path: Path) -> None:
    def draw(inner: Any, x: Tensor) -> Tensor:
        found, mean, spread = inner(x)
        return torch.cat([found, mean, spread], -1)

    _drawing(path, _made(Autoencoder), draw, 8, 12)


@planted("same-random")
def dropout_of_attention(path: Path) -> None:
    layer = _made(lambda: nn.TransformerEncoderLayer(12, 2, 24, 0.2, batch_first=True))
    _drawing(path, layer, lambda inner, x: inner(x), 3, 5, 12)


@planted("same-random")
def tokens_masked_alike(path: Path) -> None:
    def draw(inner: Any, x: Tensor) -> Tensor:
        ids = (x * 30).long()
        return inner(ids.masked_fill(torch.rand(ids.shape) < 0.15, 0))

    _drawing(path, _made(Tagger), draw, 4, 7)


@planted("same-random")
def choice_of_gumbel(path: Path) -> None:
    def draw(inner: Any, x: Tensor) -> Tensor:
        return F.gumbel_softmax(inner(x), 0.5) @ inner.weight

    _drawing(path, _made(lambda: nn.Linear(12, 4)), draw, 8, 12)


@planted("same-random")
def channels_dropped_alike(path: Path) -> None:
    inner = _made(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.3), nn.Conv2d(8, 2, 1)))
    _drawing(path, inner, lambda inner, x: inner(x), 4, 3, 6, 6)


# -- never-reduced ------------------------------------------------------------------------------------------------------


@planted("never-reduced")
def model_never_wrapped(path: Path) -> None:
    model = _made(Vision)
    _train(path, model, model.loss)


@planted("never-reduced")
def all_batches_without_synchronizing(path: Path) -> None:
    ddp = _ddp(Losing(_made(Tagger)))
    _train(path, ddp, ddp, around=ddp.no_sync)


@planted("never-reduced")
def loss_reduced_for_the_log_only(path: Path) -> None:
    model = _made(Denoiser)

    def loss() -> Tensor:
        found = model.loss()
        shown = found.detach().clone()
        dist.all_reduce(shown)
        return found

    _train(path, model, loss)


@planted("never-reduced")
def copies_of_gradients_reduced(path: Path) -> None:
    model = _made(Graph)

    def reduce(_: nn.Module) -> None:
        gradients = [p.grad.clone() for p in model.parameters()]
        for gradient in gradients:
            dist.all_reduce(gradient)

    _train(path, model, model.loss, reduce)


@planted("never-reduced")
def parameters_of_an_iterator_that_is_exhausted(path: Path) -> None:
    model = _made(Clicks)
    parameters = model.parameters()
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    _train(path, model, model.loss, lambda _: _mean(parameters))


@planted("never-reduced")
def reduced_after_the_step(path: Path) -> None:
    model = _made(ActorCritic)
    _train(path, model, model.loss, after=_mean_of_all)


@planted("never-reduced")
def world_size_of_another_variable(path: Path) -> None:
    model = _made(Translator)

    def reduce(model: nn.Module) -> None:
        if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            _mean_of_all(model)

    _train(path, model, model.loss, reduce)


@planted("never-reduced")
def group_of_one_rank(path: Path) -> None:
    model = _made(Autoencoder)
    groups = [dist.new_group([rank]) for rank in range(2)]

    def reduce(model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=groups[RANK])

    _train(path, model, model.loss, reduce)


@planted("never-reduced")
def hooks_of_the_model_that_was_copied(path: Path) -> None:
    first = _made(Tagger)
    for parameter in first.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: _mean([p]))
    model = copy.deepcopy(first)
    _train(path, model, model.loss)


@planted("never-reduced")
def reduced_before_backward(path: Path) -> None:
    model = _made(Vision)

    def loss() -> Tensor:
        found = model.loss()
        _mean_of_all(model)
        return found

    _train(path, model, loss)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=2)
    for name, record in {**HEALTHY, **{name: record for name, (_, record) in PLANTED.items()}}.items():
        record(folder / name)
        dist.barrier()
    torch.save({}, folder / f"rank{RANK}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[2]))
