"""Programs that compute the same in ways that once were accused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

SIZE = 8


def both(folder: Path, *runs: object) -> Comparison:
    """Return how two programs compare that record themselves."""
    for name, run in zip(("target", "baseline"), runs, strict=True):
        assert callable(run)
        torch.manual_seed(0)
        run(folder / name)
    return compare(folder / "target", folder / "baseline")


def scaled(path: Path, scale: float, *, undone: bool = True) -> None:
    """Train two steps on a loss that is scaled by hand."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, labels = torch.randn(2, 5, SIZE), torch.randint(3, (2, 5))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            (F.cross_entropy(model(x[k]), labels[k]) * scale).backward()
            for parameter in model.parameters():
                if scale != 1 and undone and parameter.grad is not None:
                    parameter.grad.div_(scale)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_a_scale_that_is_taken_out_of_the_gradients_is_a_note(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: scaled(path, 1024.0), lambda path: scaled(path, 1.0))
    assert found.exit_code == 0, found.answer()
    assert "the optimizer gets the same, as where a loss is scaled" in found.answer()


def test_a_scale_that_stays_in_the_gradients_is_a_difference(tmp_path: Path) -> None:
    target = tmp_path / "other"
    found = both(target, lambda path: scaled(path, 0.01, undone=False), lambda path: scaled(path, 1.0))
    assert found.exit_code == 1


def areas(path: Path, *, by_hand: bool) -> None:
    """Train on areas of boxes: what the backward of `prod` does is in no recording."""
    model = nn.Sequential(nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, SIZE)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        sides = model(x).sigmoid()
        area = sides[:, 0] * sides[:, 1] if by_hand else sides.prod(1)
        (1 - area).square().mean().backward()
        optimizer.step()


def test_a_product_along_a_dimension_is_what_it_is_by_hand(tmp_path: Path) -> None:
    """Weights and biases of a norm are ones and zeros, as other sources: moved apart, they do not fit that backward."""
    for by_hand in (True, False):
        target = tmp_path / str(by_hand)
        found = both(target, lambda path: areas(path, by_hand=by_hand), lambda path: areas(path, by_hand=not by_hand))  # noqa: B023
        assert found.exit_code == 0, found.answer()


def clipped(path: Path, reduction: str) -> None:
    """Train a step whose gradients are clipped to a norm that they are far above."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(5, SIZE), torch.randint(3, (5,))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        F.cross_entropy(model(x), labels, reduction=reduction).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()


def test_a_sum_for_a_mean_is_no_scale_that_clipping_takes_out(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: clipped(path, "sum"), lambda path: clipped(path, "mean"))
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    assert found.cause.row.place.op == "aten::nll_loss_forward" and "reduction is 2" in found.cause.text


def first_step(path: Path, kind: str, beta2: float = 0.999) -> None:
    """Train the first step of Adam, in one of torch's kinds or by hand."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3))
    parameters = list(model.parameters())
    kinds = {kind: True} if kind in ("foreach", "fused") else {"foreach": False}
    optimizer = torch.optim.Adam(parameters, lr=0.01, betas=(0.9, beta2), **kinds)
    x = torch.randn(5, SIZE)

    @torch.no_grad()
    def by_hand() -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
            first.mul_(0.9).add_(parameter.grad, alpha=0.1)
            second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            parameter.sub_(0.01 * (first / 0.1) / ((second / (1 - beta2)).sqrt() + 1e-8))

    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        model(x).square().mean().backward()
        by_hand() if kind == "by hand" else optimizer.step()


@pytest.mark.parametrize("kind", ["foreach", "fused", "by hand"])
def test_the_first_step_of_an_optimizer_agrees_in_all_its_kinds(kind: str, tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: first_step(path, kind), lambda path: first_step(path, "one by one"))
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("kind", ["one by one", "foreach"])
def test_what_an_optimizer_keeps_of_its_first_step_is_compared(kind: str, tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: first_step(path, kind, 0.99), lambda path: first_step(path, kind))
    assert found.exit_code == 1 and found.cause is not None, "the first update of Adam is the same with any beta"
    assert "addcmul_" in found.cause.row.place.op and "is left behind otherwise" in found.cause.text, found.answer()


def attending(path: Path, *, adds: bool, power: float = 2.0) -> None:
    """Attend to what a mask of zeros and ones lets through: filled in, or added as HF models do."""
    queries, keys = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    model = nn.ModuleList((queries, keys))
    x, lengths = torch.randn(3, 5, SIZE), torch.tensor([5, 3, 4])
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        kept = (torch.arange(5) < lengths[:, None]).float()
        scores = queries(x) @ keys(x).transpose(1, 2)
        lowest = torch.finfo(torch.float32).min
        if adds:
            scores = scores + ((1.0 - kept) * lowest)[:, None]
        else:
            scores = scores.masked_fill(kept[:, None] == 0, lowest)
        made = scores.softmax(-1) @ x
        made.abs().pow(power).mean().backward()
        dump.step()


def test_a_mask_that_is_added_agrees(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: attending(path, adds=True), lambda path: attending(path, adds=False))
    assert found.exit_code == 0, found.answer()


def test_a_mask_that_is_added_is_no_cause_beside_a_mistake(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: attending(path, adds=True, power=1.9), lambda path: attending(path, adds=False))
    assert "Aten.pow.0.forward" in found.answer().splitlines()[0], found.answer()


def discriminating(path: Path, *, at_once: bool, rate: float = 1e-2) -> None:
    """Train a discriminator with a hinge, within which the gradients of its last bias cancel to nothing."""
    last, weighing = nn.Linear(SIZE, 1), nn.Linear(SIZE, 1)
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.LeakyReLU(0.2), last)
    modules = nn.ModuleList((model, weighing))
    with torch.no_grad():
        last.weight.mul_(0.1)
    optimizer = torch.optim.Adam(modules.parameters(), lr=rate, betas=(0.0, 0.9), foreach=False)
    real, fake = torch.randn(2, 8, SIZE), torch.randn(2, 8, SIZE)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=modules) as dump:
        for k in range(2):
            optimizer.zero_grad()
            if at_once:
                one, other = model(torch.cat([real[k], fake[k]])).chunk(2)
            else:
                one, other = model(real[k]), model(fake[k])
            weights = weighing(real[k]).softmax(0)  # the gradient of its bias is rounding alone
            (F.relu(1 - one).mean() + F.relu(1 + other).mean() + (weights * real[k]).square().sum()).backward()
            optimizer.step()
            dump.step()


def test_a_gradient_that_cancels_to_nothing_is_the_same_nothing(tmp_path: Path) -> None:
    found = both(
        tmp_path, lambda path: discriminating(path, at_once=True), lambda path: discriminating(path, at_once=False)
    )
    assert found.exit_code == 0, found.answer()


def test_a_gradient_that_cancels_is_no_cause_beside_a_mistake(tmp_path: Path) -> None:
    found = both(
        tmp_path,
        lambda path: discriminating(path, at_once=True, rate=2e-2),
        lambda path: discriminating(path, at_once=False),
    )
    assert found.exit_code == 1
    assert "optimizer" in found.answer().splitlines()[0], found.answer()


def passing(path: Path, slope: float) -> None:
    """Pass messages along edges whose two ends are columns of one tensor."""
    edges = torch.randint(6, (12, 2), generator=torch.Generator().manual_seed(1))
    sources, targets = edges.t()
    x = torch.randn(6, SIZE)
    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump:
        torch.zeros(6, SIZE).index_add_(0, targets, F.leaky_relu(x[sources], slope)).tanh()
        dump.step()


def test_two_inputs_in_one_memory_begin_the_same(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: passing(path, 0.2), lambda path: passing(path, 0.1))
    assert found.exit_code == 1
    assert "does not begin as" not in found.answer(), found.answer()


def acting(path: Path, *, merged: bool) -> None:
    """Train a policy and a value: two heads, or one weight of four rows."""
    body, policy, value = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 3), nn.Linear(SIZE, 1)
    both_heads = nn.Linear(SIZE, 4)
    with torch.no_grad():
        both_heads.weight.copy_(torch.cat((policy.weight, value.weight)))
        both_heads.bias.copy_(torch.cat((policy.bias, value.bias)))
    model = nn.ModuleList((body, both_heads) if merged else (body, policy, value))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, actions = torch.randn(2, 5, SIZE), torch.randint(3, (2, 5))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            h = body(x[k]).tanh()
            logits, values = both_heads(h).split([3, 1], -1) if merged else (policy(h), value(h))
            (F.cross_entropy(logits, actions[k]) + values.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_two_heads_in_one_weight_are_the_same_heads(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: acting(path, merged=True), lambda path: acting(path, merged=False))
    assert found.exit_code == 0, found.answer()


class Apart(nn.Module):
    """Attention with three projections, a head of as many rows as there are words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, SIZE), nn.Linear(SIZE, 10)
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        found: torch.Tensor = self.head(x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)))
        return found


class AtOnce(nn.Module):
    """The same with one projection, stored the other way round, and words that nobody says: their scores are masked."""

    def __init__(self, model: Apart, mask: float = -1e4) -> None:
        super().__init__()
        apart = (model.query, model.key, model.value)
        self.words = nn.Parameter(torch.cat([model.words.weight.detach(), torch.zeros(3, SIZE)]))
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in apart]).T.contiguous())
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in apart]))
        self.head = nn.Parameter(torch.cat([model.head.weight.detach(), torch.zeros(3, SIZE)]))
        self.head_bias = nn.Parameter(torch.cat([model.head.bias.detach(), torch.full((3,), mask)]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words[ids]
        query, key, value = (x @ self.weight + self.bias).chunk(3, -1)
        made = (query @ key.mT / SIZE**0.5).softmax(-1) @ value
        return F.linear(x + made, self.head, self.head_bias)


def ported(path: Path, *, mask: float | None = None) -> None:
    """Train two steps with Adam: the bias of the keys gets nothing but rounding for a gradient."""
    apart = Apart()
    model = apart if mask is None else AtOnce(apart, mask)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    torch.manual_seed(1)
    ids, labels = torch.randint(10, (2, 4, 6)), torch.randint(10, (2, 24))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            F.cross_entropy(model(ids[k]).flatten(0, 1), labels[k]).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_a_port_with_one_projection_and_padded_words_trains_alike(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: ported(path, mask=-1e4), ported)
    assert found.exit_code == 0, found.answer()


def test_a_port_whose_padded_words_count_is_another(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: ported(path, mask=0.0), ported)
    assert found.exit_code == 1


def chosen(path: Path, temperature: float) -> None:
    """Choose the word of the best score, whatever the temperature."""
    model = nn.Linear(SIZE, 10)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model), torch.no_grad():
        (model(torch.randn(6, SIZE)) / temperature).softmax(-1).argmax(-1).add(1)


def test_numbers_that_no_end_shows_are_said(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: chosen(path, 0.8), lambda path: chosen(path, 0.7))
    assert found.exit_code == 0
    assert "on the way they compute otherwise" in found.answer()
    assert "other is 0.8, in the baseline 0.7; nothing that the step ends with shows it" in found.answer()
    found = both(tmp_path / "same", lambda path: chosen(path, 0.7), lambda path: chosen(path, 0.7))
    assert "otherwise" not in found.answer()


class Twins(nn.Module):
    """Two critics that answer with a number, one by one or as one batched product of weights that lie transposed."""

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(SIZE, 6), nn.SiLU(), nn.Linear(6, 1)) for _ in range(2))
        if stacked:
            layers = [[net[at] for net in self.nets] for at in (0, 2)]
            self.weights = nn.ParameterList(torch.stack([one.weight.detach().t() for one in some]) for some in layers)
            self.biases = nn.ParameterList(torch.stack([one.bias.detach() for one in some])[:, None] for some in layers)
            self.nets = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.nets:
            return torch.stack([net(x) for net in self.nets])
        hidden = F.silu(torch.baddbmm(self.biases[0], x.expand(2, -1, -1), self.weights[0]))
        return torch.baddbmm(self.biases[1], hidden, self.weights[1])


def criticising(path: Path, *, stacked: bool, rate: float = 0.9, frozen: bool = False) -> None:
    """Train critics, and move slow copies of them towards them."""
    model = nn.ModuleDict({"critics": Twins(stacked=stacked)})
    model["slow"] = copy.deepcopy(model["critics"]).requires_grad_(False)
    optimizer = torch.optim.Adam(model["critics"].parameters(), lr=1e-2, eps=1e-5)
    x, goal = torch.randn(2, 12, SIZE), torch.randn(2, 12, 1)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            (model["critics"](x[k]) - 0.9 * model["slow"](x[k]).amin(0) - goal[k]).square().mean(1).sum().backward()
            if frozen:
                last = [*model["critics"].parameters()][-1]
                assert last.grad is not None
                last.grad[-1] = 0
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for slow, fast in zip(model["slow"].parameters(), model["critics"].parameters(), strict=True):
                    slow.copy_(rate * slow + (1 - rate) * fast)
            dump.step()


def test_two_critics_in_one_product_are_the_same_critics(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: criticising(path, stacked=True), lambda path: criticising(path, stacked=False))
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("mistake", [{"rate": 0.1}, {"frozen": True}], ids=["rate", "one number"])
def test_two_critics_in_one_product_do_not_hide_a_mistake(tmp_path: Path, mistake: dict[str, float]) -> None:
    found = both(
        tmp_path, lambda path: criticising(path, stacked=True, **mistake), lambda path: criticising(path, stacked=False)
    )
    assert found.exit_code == 1, found.answer()


def accumulating(path: Path, *, later: bool, drops: bool = False) -> None:
    """Train on two batches at a time; their losses are divided by how many words they have, or the gradients are."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.Adagrad(parameters, lr=0.1)
    x, labels = torch.randn(2, 7, SIZE), torch.randint(3, (2, 7))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            parts = [*zip(x[k].split(4), labels[k].split(4), strict=True)]
            words = torch.ones_like(labels[k]).sum()
            added = [torch.zeros_like(parameter) for parameter in parameters]
            for ours, theirs in parts[: 1 if drops else 2]:
                loss = F.cross_entropy(model(ours), theirs, reduction="sum")
                if later:
                    torch._foreach_add_(added, torch.autograd.grad(loss, parameters))
                else:
                    (loss / words).backward()
            for parameter, gradient in zip(parameters, added, strict=True):
                parameter.grad = gradient / words if later else parameter.grad
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_gradients_that_are_divided_after_the_backward_are_the_same(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: accumulating(path, later=True), lambda path: accumulating(path, later=False))
    assert found.exit_code == 0, found.answer()
    assert "the losses do not add up to the same" in found.answer()


def test_a_batch_that_is_left_out_is_a_difference_where_gradients_are_divided_later(tmp_path: Path) -> None:
    found = both(
        tmp_path,
        lambda path: accumulating(path, later=True, drops=True),
        lambda path: accumulating(path, later=False),
    )
    assert found.exit_code == 1, found.answer()


def resumed(path: Path, *, assigns: bool, forgets: bool = False) -> None:
    """Train a step, then go back to where the model was, as a rollback does, and train on."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.GELU(), nn.Linear(SIZE, 3))
    x, labels = torch.randn(3, 7, SIZE), torch.randint(3, (3, 7))

    def train(k: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(x[k]), labels[k]).backward()
        optimizer.step()
        optimizer.zero_grad()

    kept = {name: one.clone() for name, one in model.state_dict().items() if not (forgets and name == "3.bias")}
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        train(0)
        dump.step()
        model.load_state_dict({name: one.clone() for name, one in kept.items()}, strict=False, assign=assigns)
        model.requires_grad_(True)
        train(1)
        train(2)
        dump.step()


def test_a_state_that_is_assigned_is_the_same_as_one_that_is_copied(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: resumed(path, assigns=True), lambda path: resumed(path, assigns=False))
    assert found.exit_code == 0, found.answer()


def test_what_a_state_that_is_assigned_lacks_is_a_difference(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        resumed(path, assigns=True, forgets=True)

    assert both(tmp_path, run, lambda path: resumed(path, assigns=False)).exit_code == 1


def masked(path: Path, *, rows: bool) -> None:
    """Attend to the words that there are, or by mistake mask the queries instead of the keys."""
    model = nn.Linear(SIZE, SIZE)
    x, lengths = torch.randn(4, 7, SIZE), torch.tensor([7, 3, 5, 4])
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        kept = torch.arange(7) < lengths[:, None]
        if rows:
            bias = torch.where(kept[:, :, None], 0.0, -1e9)
        else:
            bias = torch.where(kept[:, None, :], 0.0, -1e9)
        made = ((model(x) @ x.mT + bias).softmax(-1) @ x) * kept[..., None]
        made.square().mean().backward()
        dump.step()


def test_a_mask_of_another_shape_is_named_where_it_gets_its_shape(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: masked(path, rows=True), lambda path: masked(path, rows=False))
    assert found.cause is not None
    assert found.cause.row.place.op == "aten::unsqueeze", found.answer()
    assert "is given the same elements in shape" in found.cause.text


def tracing(path: Path, *, by_hand: bool, doubles: bool = False) -> None:
    """Train on a sum, or make the gradients of one of its terms by hand and add them to those of the other."""
    model = nn.Linear(SIZE, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, goal = torch.randn(2, 5, SIZE), torch.randn(2, 5, 3)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            optimizer.zero_grad()
            made = model(x[k])
            away = made - goal[k]
            if by_hand:
                made.tanh().mean().backward()
                for parameter, grad in ((model.weight, away.mT @ x[k]), (model.bias, away.sum(0))):
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad + grad.detach() * (2 if doubles else 1)
            else:
                (made.tanh().mean() + away.square().sum() / 2).backward()
            optimizer.step()
            dump.step()


def test_gradients_that_are_partly_made_by_hand_are_those_of_the_whole_loss(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: tracing(path, by_hand=True), lambda path: tracing(path, by_hand=False))
    assert found.exit_code == 0, found.answer()
    assert "the optimizer gets the same" in found.answer()


def test_another_gradient_differs_even_if_the_first_step_of_adam_hides_it(tmp_path: Path) -> None:
    found = both(
        tmp_path, lambda path: tracing(path, by_hand=True, doubles=True), lambda path: tracing(path, by_hand=False)
    )
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.step == 0


def forced(path: Path, *, of_distances: bool, detached: bool = False) -> None:
    """Train on the slope of an energy: asked of the places, or of the distances between them."""
    model = nn.Linear(1, 4)
    places, goal = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            x = places[k] if of_distances else places[k].clone().requires_grad_()
            apart = x[:, None] - x[None]
            near = (apart.square().sum(-1) + torch.eye(5)).sqrt()
            if of_distances:
                near = near.requires_grad_()
            energy = (model(near[..., None]).tanh().sum(-1) * (1 - torch.eye(5))).sum()
            (slope,) = torch.autograd.grad(energy, near if of_distances else x, create_graph=True)
            slope = slope.detach() if detached else slope
            if of_distances:
                unit = apart / near.detach()[..., None]
                slope = ((slope + slope.mT)[..., None] * unit).sum(1)
            ((slope - goal[k]).square().sum() + energy.square() * 0.1).backward()
            dump.step()


def test_a_leaf_that_one_side_makes_on_the_way_is_no_end(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: forced(path, of_distances=True), lambda path: forced(path, of_distances=False))
    assert found.exit_code == 0, found.answer()
    mistaken = both(
        tmp_path / "detached",
        lambda path: forced(path, of_distances=True, detached=True),
        lambda path: forced(path, of_distances=False),
    )
    assert mistaken.exit_code == 1, mistaken.answer()


def preconditioned(path: Path, *, by_values: bool) -> None:
    """Train with the inverse roots of two matrices that begin alike, of singular values or of eigenvalues."""
    model = nn.Linear(SIZE, SIZE, bias=False)
    sides = [torch.eye(SIZE) * 0.01, torch.eye(SIZE) * 0.01]

    def root(matrix: torch.Tensor) -> torch.Tensor:
        if by_values:
            vectors, values, _ = torch.linalg.svd(matrix)
        else:
            values, vectors = torch.linalg.eigh(matrix)
        return vectors * values.pow(-0.25) @ vectors.mT

    x = torch.randn(2, 20, SIZE)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for k in range(2):
            model.zero_grad()
            (model(x[k]) - x[k].roll(1, -1)).square().mean().backward()
            with torch.no_grad():
                grad = model.weight.grad
                assert grad is not None
                sides[0].add_(grad @ grad.mT)
                sides[1].add_(grad.mT @ grad)
                model.weight.sub_(root(sides[0]) @ grad @ root(sides[1]), alpha=0.1)
            dump.step()


def test_symmetric_matrices_that_begin_alike_stay_symmetric_when_they_are_distinguished(tmp_path: Path) -> None:
    found = both(
        tmp_path, lambda path: preconditioned(path, by_values=True), lambda path: preconditioned(path, by_values=False)
    )
    assert found.exit_code == 0, found.answer()


def patched(path: Path, *, by_hand: bool, turned: bool = False) -> None:
    """Train on images, with a convolution or with a product of their patches, its weights in a matrix.

    Args:
        path: of the dump.
        by_hand: take the patches and multiply.
        turned: by mistake the patches are taken column by column.
    """
    first, last = nn.Conv2d(2, 5, 3, padding=1), nn.Linear(5, 2)
    weight = nn.Parameter(first.weight.detach().permute(2, 3, 1, 0).flatten(0, 2).clone())
    parameters = [weight if by_hand else first.weight, first.bias, *last.parameters()]
    optimizer = torch.optim.AdamW([one for one in parameters if one is not None], lr=0.01)
    images = torch.randn(2, 4, 6, 6, 2)
    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump:
        for batch in images:
            if by_hand:
                wide = F.pad(batch, (0, 0, 1, 1, 1, 1))
                taps = [(j, i) if turned else (i, j) for i in range(3) for j in range(3)]
                made = torch.cat([wide[:, i : i + 6, j : j + 6] for i, j in taps], -1) @ weight + first.bias
            else:
                made = first(batch.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            last(made.tanh().mean((1, 2))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_weights_of_a_convolution_that_are_kept_as_a_matrix_are_the_same(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: patched(path, by_hand=True), lambda path: patched(path, by_hand=False))
    assert found.exit_code == 0, found.answer()


def test_a_matrix_of_a_convolution_that_meets_other_patches_is_a_difference(tmp_path: Path) -> None:
    target = lambda path: patched(path, by_hand=True, turned=True)  # noqa: E731
    found = both(tmp_path, target, lambda path: patched(path, by_hand=False))
    assert found.exit_code == 1, found.answer()


def decoded(path: Path, *, in_place: bool, anew: bool = False) -> None:
    """Read words one by one with a cache of keys, and queries and keys that are turned by their places.

    Args:
        path: of the dump.
        in_place: the cache is as large as it will be, and written in place.
        anew: by mistake each word stands at place 0.
    """
    query, key, value = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))
    words = torch.randn(2, 5, SIZE)
    angles = torch.logspace(0, -1, SIZE // 2)

    def turned(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        angle = place[:, None] * angles
        left, right = x.chunk(2, -1)
        return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], -1)

    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump, torch.no_grad():
        keys, values = (torch.zeros(2, 5 if in_place else 0, SIZE) for _ in range(2))
        for at in range(5):
            word, place = words[:, at : at + 1], torch.tensor([at])
            if anew:
                place = place - at
            new = turned(key(word), place), value(word)
            if in_place:
                keys[:, at : at + 1], values[:, at : at + 1] = new
                known = keys[:, : at + 1], values[:, : at + 1]
            else:
                known = keys, values = torch.cat([keys, new[0]], 1), torch.cat([values, new[1]], 1)
            scores = turned(query(word), place) @ known[0].mT
            dump.save(f"word {at}", scores.softmax(-1) @ known[1])
        dump.step()


def test_what_makes_a_place_begin_anew_is_named(tmp_path: Path) -> None:
    """Angles of place 0 are zeros, and a rotation by them changes nothing: both are known from the first word."""
    target = lambda path: decoded(path, in_place=True, anew=True)  # noqa: E731
    found = both(tmp_path, target, lambda path: decoded(path, in_place=False))
    assert found.exit_code == 1
    assert found.cause is not None
    assert found.cause.row.place.op == "aten::sub.Tensor" and "the baseline has no such call" in found.cause.text


def normed(path: Path, *, adds_one: bool, rate: float = 0.05, decay: float = 0.0) -> None:
    """Train with a norm whose weight is kept as it is, or less the one that the layer adds."""
    weight = nn.Parameter(torch.linspace(0.5, 1.75, SIZE) - (1 if adds_one else 0))
    last = nn.Linear(SIZE, 3)
    optimizer = torch.optim.AdamW([weight, *last.parameters()], lr=rate, weight_decay=decay)
    x, labels = torch.randn(2, 5, SIZE), torch.randint(3, (2, 5))
    with DumpMode(DumpConfig(path=str(path), data="tensor")) as dump:
        for k in range(2):
            scale = 1 + weight if adds_one else weight
            y = last(x[k] * x[k].square().mean(-1, keepdim=True).rsqrt() * scale)
            F.cross_entropy(y, labels[k]).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def test_a_weight_that_is_kept_less_one_is_changed_by_the_same(tmp_path: Path) -> None:
    found = both(tmp_path, lambda path: normed(path, adds_one=True), lambda path: normed(path, adds_one=False))
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("mistake", [{"rate": 0.06}, {"decay": 0.1}], ids=str)
def test_a_weight_that_is_kept_less_one_and_changed_by_more_differs(tmp_path: Path, mistake: dict[str, float]) -> None:
    """To decay it to zero is to decay the other to one."""
    target = lambda path: normed(path, adds_one=True, **mistake)  # noqa: E731
    decay = mistake.get("decay", 0.0)
    found = both(tmp_path, target, lambda path: normed(path, adds_one=False, decay=decay))
    assert found.exit_code == 1, found.answer()
