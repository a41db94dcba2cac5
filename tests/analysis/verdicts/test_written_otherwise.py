"""Programs that write one computation in two ways raise no alarm; the same ways with a bug in them do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import compare
from aten_dump.analysis.comparison import Comparison
from tests.analysis.by_distance.steps import record, seeded
from tests.sampling import slow_but_for

Loss = Callable[[nn.ModuleDict], Tensor]


def layers(*names: str) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(8, 4) for name in names})


def compared(tmp_path: Path, target: Loss, baseline: Loss, *names: str) -> Comparison:
    """Train one step of both programs on layers of these names, and compare."""

    def one(name: str, loss: Loss) -> Path:
        model = layers(*names)
        return record(tmp_path / name, lambda step: loss(model).backward(), model)

    return compare(one("target", target), one("baseline", baseline))


# -- what a factory makes ------------------------------------------------------------------------------------------

GROUPS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 1, 3, 4, 2])


def weighted(model: nn.ModuleDict, *, shifted: bool, start: float = 0.0) -> Tensor:
    """A softmax within groups, as graph attention has it."""
    scores = model["a"](seeded(16, 8))[:, 0]
    if shifted:
        most = torch.full((5,), float("-inf")).scatter_reduce(0, GROUPS, scores.detach(), "amax")
        scores = scores - most[GROUPS]
    raised = scores.exp()
    weights = raised / torch.full((5,), start).index_add(0, GROUPS, raised)[GROUPS]
    return (weights * torch.arange(16.0)).square().sum()


def test_sums_into_what_a_factory_made_without_a_dtype_agree(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: weighted(m, shifted=True), lambda m: weighted(m, shifted=False), "a")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("start", [1e-3, 1.0])
def test_sums_that_start_at_another_number_are_found(start: float, tmp_path: Path) -> None:
    found = compared(
        tmp_path, lambda m: weighted(m, shifted=True, start=start), lambda m: weighted(m, shifted=False), "a"
    )
    assert found.exit_code == 1, found.answer()


ENDS = torch.randint(0, 10, (2, 30), generator=torch.Generator().manual_seed(3))


def attended(tmp_path: Path, lost: str = "") -> Path:
    """Record graph attention; the gradient through the greatest score of a group is rounding alone."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"nodes": nn.Linear(8, 8), "head": nn.Linear(8, 3)})
    model.register_parameter("pair", nn.Parameter(0.3 * seeded(16, seed=4)))
    source, aim = ENDS[0], torch.cat([torch.arange(10), ENDS[1, :20]])

    def step(number: int) -> None:
        nodes = model["nodes"](seeded(10, 8, seed=10))
        edges = F.leaky_relu(torch.cat([nodes[source], nodes[aim]], -1) @ model.pair, 0.2)
        most = torch.full((10,), -1e9).scatter_reduce(0, aim, edges.detach() if lost == "most" else edges, "amax")
        raised = (edges - most[aim]).exp()
        total = torch.zeros(10).index_add(0, aim, raised.detach() if lost == "total" else raised)
        weights = raised / (total[aim] + (1e-6 if lost == "epsilon" else 1e-16))
        out = torch.zeros(10, 8).index_add(0, aim, weights[:, None] * nodes[source])
        F.nll_loss(model["head"](F.elu(out)).log_softmax(-1), torch.arange(10) % 3).backward()

    return record(tmp_path / f"lost {lost}", step, model)


@pytest.mark.parametrize(("lost", "code"), [("most", 0), ("total", 1), ("epsilon", 1)])
def test_a_gradient_that_is_rounding_of_what_cancelled_before(lost: str, code: int, tmp_path: Path) -> None:
    found = compare(attended(tmp_path, lost), attended(tmp_path))
    assert found.exit_code == code, found.answer()


# -- one op with other arguments -----------------------------------------------------------------------------------

LABELS = torch.randint(0, 4, (16,), generator=torch.Generator().manual_seed(2))


def classified(model: nn.ModuleDict, divisor: int | None = None) -> Tensor:
    scores = model["a"](seeded(16, 8))
    if divisor is None:
        return F.cross_entropy(scores, LABELS)
    return F.cross_entropy(scores, LABELS, reduction="sum") / divisor


def regressed(model: nn.ModuleDict, divisor: int | None = None) -> Tensor:
    values, wanted = model["a"](seeded(16, 8)), seeded(16, 4, seed=1)
    if divisor is None:
        return F.mse_loss(values, wanted)
    return F.mse_loss(values, wanted, reduction="sum") / divisor


@pytest.mark.parametrize(("loss", "count"), [(classified, 16), (regressed, 64)])
def test_a_sum_over_its_count_is_the_mean(loss: Callable[..., Tensor], count: int, tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: loss(m, count), loss, "a")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(("divisor", "code"), [(16, 0), (15, 1)])
def test_a_loss_that_is_only_read_meets_where_it_is(divisor: int, code: int, tmp_path: Path) -> None:
    def evaluated(name: str, divisor: int | None) -> Path:
        model = layers("a")

        def step(number: int) -> None:
            with torch.no_grad():
                classified(model, divisor).item()

        return record(tmp_path / name, step, model)

    found = compare(evaluated("target", divisor), evaluated("baseline", None))
    assert found.exit_code == code, found.answer()


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        (classified, 15),
        pytest.param(classified, 1, marks=pytest.mark.slow),
        (regressed, 16),
        pytest.param(regressed, 65, marks=pytest.mark.slow),
    ],
)
def test_a_sum_over_another_count_is_found(loss: Callable[..., Tensor], count: int, tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: loss(m, count), loss, "a")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert "loss" in found.cause.row.place.op, "it begins where the loss is taken"


def attention(model: nn.ModuleDict, of_q: float, of_k: float) -> Tensor:
    x = seeded(16, 8)
    return ((model["q"](x) * of_q) @ (model["k"](x) * of_k).t()).softmax(-1).square().mean()


def test_a_scale_on_one_factor_or_on_both(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: attention(m, 0.5**0.5, 0.5**0.5), lambda m: attention(m, 0.5, 1.0), "q", "k")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.5, 1.01), (0.501, 1.0)])
def test_a_scale_that_is_wrong_in_all_is_found(scales: tuple[float, float], tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: attention(m, *scales), lambda m: attention(m, 0.5, 1.0), "q", "k")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.op == "aten::mul.Tensor"
    assert "other arguments" in found.cause.text


def read_twice(model: nn.ModuleDict, scale: float, back: float) -> Tensor:
    scaled = model["a"](seeded(16, 8)) * scale
    return (scaled * back).sin().mean() + scaled.cos().mean()


def test_what_meets_on_one_way_only_is_found(tmp_path: Path) -> None:
    """One reader takes the scale back, the other does not."""
    found = compared(tmp_path, lambda m: read_twice(m, 0.5, 2.0), lambda m: read_twice(m, 0.25, 4.0), "a")
    assert found.exit_code == 1, found.answer()


# -- where no op was recorded --------------------------------------------------------------------------------------


class Mixing(nn.Module):
    def __init__(self, fused: bool, off: float) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.fused, self.off = fused, off

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(self.norm(x)).view(4, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.fused:
            found = F.scaled_dot_product_attention(q, k, v)
        else:
            found = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1) @ v
        if self.off != 1:
            found.register_hook(lambda gradient: gradient * self.off)
        return x + self.out(found.transpose(1, 2).reshape(4, 16, 32))


def modules_alone(path: Path, *, fused: bool, off: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 32), *(Mixing(fused, off) for _ in range(3)))
    tokens = torch.randint(0, 9, (4, 16))
    return record(path, lambda step: model(tokens).square().mean().backward(), model, level="module")


def test_gradients_that_no_recorded_op_made_are_judged_by_their_distance(tmp_path: Path) -> None:
    baseline = modules_alone(tmp_path / "baseline", fused=True)
    found = compare(modules_alone(tmp_path / "honest", fused=False), baseline)
    assert found.exit_code == 0, found.answer()
    rows = [row for row in found.ranks[0].rows if row.slot.startswith("gradient of")]
    assert {row.floor_from for row in rows if row.status == "within"} == {"depth"}, "nothing was run to tell"
    wrong = compare(modules_alone(tmp_path / "wrong", fused=False, off=1.0001), baseline)
    assert wrong.exit_code == 1, wrong.answer()


# -- one op on other tensors from outside, in another order --------------------------------------------------------


class Products(nn.Module):
    """Products of one input with two weights, in this order; one of them may be taken for both."""

    def __init__(self, order: str, used: str = "ab") -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.order, self.used = order, used

    def forward(self, x: Tensor) -> Tensor:
        made = {name: x @ getattr(self, name) for name in self.order}
        first, second = (made[name] for name in self.used)
        return (first.t() @ second).softmax(-1).square().mean()


def products(path: Path, order: str, used: str = "ab", *, named: bool = True) -> Path:
    torch.manual_seed(0)
    model = Products(order, used)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(seeded(6, 8, seed=number)).backward()
        optimizer.step()

    return record(path, step, model if named else None, steps=2)


@pytest.mark.parametrize("named", [True, False])
def test_independent_calls_in_another_order_agree(named: bool, tmp_path: Path) -> None:
    baseline = products(tmp_path / "baseline", "ab", named=named)
    found = compare(products(tmp_path / "target", "ba", named=named), baseline)
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("order", "used"),
    [("ab", "ba"), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("ba", "ba"), ("ab", "aa"))), ("a", "aa")],
)
def test_operands_that_are_exchanged_are_found(order: str, used: str, named: bool, tmp_path: Path) -> None:
    """a'b is not b'a, whatever the order in which the products were made."""
    baseline = products(tmp_path / "baseline", "ab", named=named)
    found = compare(products(tmp_path / "target", order, used, named=named), baseline)
    assert found.exit_code == 1, found.answer()


def siamese(path: Path, order: str, used: str = "xy") -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    given = {"x": seeded(6, 8), "y": seeded(6, 8, seed=1)}

    def step(number: int) -> None:
        made = {name: model(given[name]) for name in order}
        first, second = (made[name] for name in used)
        (first * second.detach()).sin().mean().backward()

    return record(path, step, model)


def test_two_inputs_of_one_model_in_another_order(tmp_path: Path) -> None:
    baseline = siamese(tmp_path / "baseline", "xy")
    found = compare(siamese(tmp_path / "target", "yx"), baseline)
    assert found.exit_code == 0, found.answer()
    for order, used in (("yx", "yx"), ("xy", "yx"), ("x", "xx")):
        wrong = compare(siamese(tmp_path / f"{order} {used}", order, used), baseline)
        assert wrong.exit_code == 1, wrong.answer()


def test_another_batch_is_still_another_source(tmp_path: Path) -> None:
    def given(batch: Tensor) -> Loss:
        return lambda model: model["a"](batch).square().mean()

    found = compared(tmp_path, given(seeded(16, 8, seed=5)), given(seeded(16, 8, seed=6)), "a")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and found.cause.kind == "source"


# -- complex numbers -----------------------------------------------------------------------------------------------


class Spectral(nn.Module):
    """Mixes channels of a signal's frequencies by complex weights."""

    def __init__(self, *, by_parts: bool, conjugate: bool = False) -> None:
        super().__init__()
        self.by_parts, self.conjugate = by_parts, conjugate
        self.weight = nn.Parameter(torch.complex(seeded(4, 4, 5), seeded(4, 4, 5, seed=1)))

    def forward(self, x: Tensor) -> Tensor:
        found, w = torch.fft.rfft(x), self.weight
        sign = -1.0 if self.conjugate else 1.0
        if not self.by_parts:
            return torch.fft.irfft(torch.einsum("bik,iok->bok", found, w), n=x.shape[-1])
        real = torch.einsum("bik,iok->bok", found.real, w.real) - sign * torch.einsum(
            "bik,iok->bok", found.imag, w.imag
        )
        imag = sign * torch.einsum("bik,iok->bok", found.real, w.imag) + torch.einsum(
            "bik,iok->bok", found.imag, w.real
        )
        return torch.fft.irfft(torch.complex(real, imag), n=x.shape[-1])


def spectral(tmp_path: Path, *, conjugate: bool = False) -> Comparison:
    def one(name: str, *, by_parts: bool) -> Path:
        model = nn.Sequential(*(Spectral(by_parts=by_parts, conjugate=conjugate and by_parts) for _ in range(2)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=by_parts)

        def body(step: int) -> None:
            optimizer.zero_grad()
            model(seeded(3, 4, 9, seed=step)).square().mean().backward()
            optimizer.step()

        return record(tmp_path / name, body, model, steps=2)

    return compare(one("target", by_parts=True), one("baseline", by_parts=False))


def test_complex_products_by_their_parts_agree_and_what_a_step_left_is_compared(tmp_path: Path) -> None:
    found = spectral(tmp_path)
    assert found.exit_code == 0, found.answer()


@pytest.mark.slow
def test_a_conjugate_among_parts_is_found(tmp_path: Path) -> None:
    found = spectral(tmp_path, conjugate=True)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.phase == "forward"
    assert "Spectral.forward" in found.cause.row.place.source


# -- what meets again by its order alone ---------------------------------------------------------------------------


def searched(tmp_path: Path, *, divided: bool) -> Path:
    """Keep the three best of all ways on, twice; what is best does not change where all are divided by one number."""

    def body(step: int) -> None:
        ways, scores = (seeded(3, 5, seed=2) @ seeded(5, 7, seed=3)).log_softmax(-1), seeded(3, seed=4)
        for _ in range(2):
            total = scores[:, None] + ways
            total = total / 2 if divided else total
            scores, best = total.view(-1).topk(3)
            ways = ways[best // 7].sin()

    return record(tmp_path / str(divided), body)


def test_scores_that_are_divided_before_they_go_on_are_found_though_their_order_is_the_same(tmp_path: Path) -> None:
    found = compare(searched(tmp_path, divided=True), searched(tmp_path, divided=False))
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.call == "Aten.div.0.forward", found.answer()


# -- a bug behind what is written otherwise ------------------------------------------------------------------------

HITS = (seeded(16, 4, seed=7) > 0).float()


def focal(model: nn.ModuleDict, *, by_hand: bool, scale: float = 0.5) -> Tensor:
    """A loss that weighs what is wrong most."""
    x = model["a"](seeded(16, 8))
    p = x.sigmoid()
    if by_hand:
        entropy = -(HITS * F.logsigmoid(x) + (1 - HITS) * F.logsigmoid(-x))
    else:
        entropy = F.binary_cross_entropy_with_logits(x, HITS, reduction="none")
    right = p * HITS + (1 - p) * (1 - HITS)
    return ((1 - right) * (entropy * scale)).sum()


def test_what_is_written_otherwise_is_not_blamed_for_a_bug_behind_it(tmp_path: Path) -> None:
    agree = compared(tmp_path, lambda m: focal(m, by_hand=True), lambda m: focal(m, by_hand=False), "a")
    assert agree.exit_code == 0, agree.answer()
    wrong = compared(
        tmp_path / "wrong", lambda m: focal(m, by_hand=True, scale=0.25), lambda m: focal(m, by_hand=False), "a"
    )
    assert wrong.cause is not None
    assert (wrong.cause.kind, wrong.cause.row.place.op) == ("argument", "aten::mul.Tensor"), wrong.answer()
    assert wrong.cause.text.startswith("other arguments: other is 0.25, in the baseline 0.5;")


# -- gradients of functions ----------------------------------------------------------------------------------------


def of_functions(path: Path, how: str, power: int = 2) -> Path:
    """Descend two steps along gradients that `torch.func` takes: of all samples at once, one by one, or of the mean."""
    model = layers("a")["a"]
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, given, (x,)).pow(power).mean()

    gradient = torch.func.grad(loss)

    def body(step: int) -> None:
        x = seeded(6, 8, seed=step)
        if how == "at once":
            found = torch.func.vmap(gradient, in_dims=(None, 0))(weights, x)
        elif how == "one by one":
            each = [gradient(weights, sample) for sample in x]
            found = {name: torch.stack([one[name] for one in each]) for name in weights}
        else:
            found = {name: whole.unsqueeze(0) for name, whole in gradient(weights, x).items()}
        for name in weights:
            weights[name] = weights[name] - 0.1 * found[name].mean(0)

    return record(path, body, steps=2)


@pytest.mark.parametrize("how", slow_but_for(["one by one"], ["at once", "one by one", "of the mean"]))
def test_gradients_of_functions_agree_and_a_bug_in_the_function_is_found(how: str, tmp_path: Path) -> None:
    baseline = of_functions(tmp_path / "baseline", "at once")
    agree = compare(of_functions(tmp_path / "agree", how), baseline)
    assert agree.verdict == ("same" if how == "at once" else "within"), agree.answer()
    found = compare(of_functions(tmp_path / "wrong", how, power=4), baseline)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert how == "one by one" or found.cause.row.place.op == "aten::pow.Tensor_Scalar", found.answer()


def by_rows(path: Path, *, at_once: bool, frozen: int = -1, step: bool = False) -> Path:
    """Run a layer on each row: what is added up of the bias's gradients meets the whole sum 300 calls later."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"up": nn.Linear(8, 8), "down": nn.Linear(8, 8)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = seeded(24, 8)

    def one(row: Tensor, number: int) -> Tensor:
        hidden = F.gelu(model["up"](row))
        return hidden if number == frozen else model["down"](hidden)

    def body(number: int) -> None:
        made = model["down"](F.gelu(model["up"](x))) if at_once else torch.stack([one(r, n) for n, r in enumerate(x)])
        made.square().mean().backward()
        if step:
            optimizer.step()

    return record(path, body, model)


@pytest.mark.parametrize("step", slow_but_for([False], [True, False]), ids=["step", "gradients"])
def test_a_layer_row_by_row_agrees_and_a_row_without_it_is_found(tmp_path: Path, step: bool) -> None:
    whole = by_rows(tmp_path / "whole", at_once=True, step=step)
    rows = by_rows(tmp_path / "rows", at_once=False, step=step)
    assert compare(rows, whole).exit_code == 0, compare(rows, whole).answer()
    assert compare(whole, rows).exit_code == 0, compare(whole, rows).answer()
    assert compare(by_rows(tmp_path / "less", at_once=False, frozen=3, step=step), whole).exit_code == 1


def test_a_module_under_vmap_agrees_with_one_on_the_batch(tmp_path: Path) -> None:
    def one(name: str, *, at_once: bool, shift: int = 0) -> Path:
        torch.manual_seed(0)
        model, x = nn.Linear(8, 8), seeded(6, 8)

        def sample(row: Tensor) -> Tensor:
            return model(row).roll(shift) @ row

        def body(step: int) -> None:
            made = torch.einsum("ni,ni->n", model(x), x) if at_once else torch.func.vmap(sample)(x)
            made.square().mean().backward()

        return record(tmp_path / name, body)

    whole = one("whole", at_once=True)
    assert compare(one("mapped", at_once=False), whole).exit_code == 0
    assert compare(one("rolled", at_once=False, shift=1), whole).exit_code == 1


# -- into what shape numbers are drawn or filled ------------------------------------------------------------------


def dropped(model: nn.ModuleDict, mask: Callable[[], Tensor]) -> Tensor:
    """Whole samples are dropped, as in stochastic depth."""
    torch.manual_seed(3)
    return (model["a"](seeded(4, 2, 8)) * mask()).square().mean()


def per_sample() -> Tensor:
    return torch.empty(4, 1, 1).bernoulli_(0.5).div_(0.5)


def flat() -> Tensor:
    return torch.empty(4).bernoulli_(0.5).div_(0.5)


SHAPED_OTHERWISE = [
    (per_sample, lambda: flat().view(4, 1, 1)),
    (lambda: torch.rand(4, 1, 1) < 0.5, lambda: (torch.rand(4) < 0.5)[:, None, None]),
    (lambda: torch.empty(4, 1, 1).fill_(0.7), lambda: torch.empty(4).fill_(0.7).view(4, 1, 1)),
    (lambda: F.dropout(torch.ones(4, 2, 4)), lambda: F.dropout(torch.ones(8, 4)).view(4, 2, 4)),
]


@pytest.mark.parametrize(("mask", "other"), SHAPED_OTHERWISE)
def test_numbers_may_be_drawn_into_another_shape(
    mask: Callable[[], Tensor], other: Callable[[], Tensor], tmp_path: Path
) -> None:
    found = compared(tmp_path, lambda m: dropped(m, other), lambda m: dropped(m, mask), "a")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    ("other", "op"),
    [
        (lambda: flat().flip(0).view(4, 1, 1), "aten::flip"),
        (lambda: torch.empty(4).bernoulli_(0.5).div_(0.4).view(4, 1, 1), "aten::div_.Tensor"),
        (lambda: flat().view(1, 1, 4), "aten::view"),
    ],
)
def test_numbers_that_were_drawn_alike_and_used_otherwise_are_found(
    other: Callable[[], Tensor], op: str, tmp_path: Path
) -> None:
    found = compared(tmp_path, lambda m: dropped(m, other), lambda m: dropped(m, per_sample), "a")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.row.place.op == op


# -- views that alignment knows by their op alone ------------------------------------------------------------------

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])


class GraphAttention(nn.Module):
    def __init__(self, *, by_einsum: bool, slope: float = 0.2) -> None:
        super().__init__()
        self.source = nn.Parameter(torch.linspace(0.5, 2.0, 8).view(1, 2, 4))
        self.target = nn.Parameter(torch.linspace(-0.5, 1.0, 8).view(1, 2, 4))
        self.by_einsum, self.slope = by_einsum, slope

    def forward(self, h: Tensor) -> Tensor:
        if self.by_einsum:
            begin, end = EDGES.unbind(0)
            scores = [torch.einsum("nhc,hc->nh", h, one[0]) for one in (self.source, self.target)]
        else:
            scores = [(h * one).sum(-1) for one in (self.source, self.target)]
            begin, end = EDGES[0], EDGES[1]
        weights = F.leaky_relu(scores[0][begin] + scores[1][end], self.slope).exp()
        weights = weights / torch.zeros(4, 2).index_add(0, end, weights)[end]
        return torch.zeros(4, 2, 4).index_add(0, end, h[begin] * weights.unsqueeze(-1)).square().mean()


@pytest.mark.parametrize(("slope", "op"), [(0.2, None), (0.25, "aten::leaky_relu")])
def test_a_view_of_a_parameter_is_no_partner_of_an_index_s(slope: float, op: str | None, tmp_path: Path) -> None:
    def one(name: str, model: nn.Module) -> Path:
        return record(tmp_path / name, lambda step: model(seeded(4, 2, 4)).backward(), model)

    target = one("target", GraphAttention(by_einsum=True, slope=slope))
    found = compare(target, one("baseline", GraphAttention(by_einsum=False)))
    assert found.exit_code == (op is not None), found.answer()
    assert (found.cause and found.cause.row.place.op) == op


# -- integers here, floats there -----------------------------------------------------------------------------------


def chosen(model: nn.ModuleDict, how: str, value: float = 1.0) -> Tensor:
    """What the layer says of the best of each row, and of its place."""
    scores = model["a"](seeded(16, 8))
    best = scores.argmax(1)
    if how == "integers":
        mask, places = F.one_hot(best, 4).float(), torch.arange(4).float()
    else:
        mask, places = torch.zeros(16, 4).scatter_(1, best[:, None], value), torch.arange(4.0)
    return (scores * mask).sum() + (scores.softmax(1) * places).sum()


def test_integers_that_are_cast_are_the_floats_that_the_other_begins_with(tmp_path: Path) -> None:
    """Both begin with equal numbers: what comes of them tells, not the dtype of a factory."""
    found = compared(tmp_path, lambda m: chosen(m, "floats"), lambda m: chosen(m, "integers"), "a")
    assert found.exit_code == 0, found.answer()


def test_other_floats_than_the_integers_are_found(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: chosen(m, "floats", 0.9), lambda m: chosen(m, "integers"), "a")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert (found.cause.kind, found.cause.row.place.call) == ("argument", "Aten.scatter_.0.forward")


def halves(model: nn.ModuleDict, places: Tensor) -> Tensor:
    return (
        model["a"](seeded(16, 8)) * torch.div(places, 2, rounding_mode=None if places.is_floating_point() else "floor")
    ).sum()


def test_integers_that_lose_what_floats_keep_are_found(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: halves(m, torch.arange(4)), lambda m: halves(m, torch.arange(4.0)), "a")
    assert found.exit_code == 1, found.answer()


# -- what both start from was rounded -------------------------------------------------------------------------------


def alike(model: nn.ModuleDict, how: str, scale: float = 1.0, *, normal: bool = True) -> Tensor:
    """How unlike what two layers say is, the lengths aside."""
    p, z = F.normalize(model["a"](seeded(8, 8)), dim=-1), model["b"](seeded(8, 8))
    z = F.normalize(z, dim=-1) if normal else z
    if how == "cosine":
        return 2 - 2 * (p * z).sum(-1).mean()
    return (p - z).square().sum(-1).mean() * scale


def test_the_distance_of_unit_vectors_is_their_cosine(tmp_path: Path) -> None:
    """Their squares add up to 1 but for the rounding of the division, of which all elements of a vector have a share."""
    found = compared(tmp_path, lambda m: alike(m, "distance"), lambda m: alike(m, "cosine"), "a", "b")
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("wrong", [{"scale": 1.0001}, {"normal": False}])
def test_another_distance_than_that_of_unit_vectors_is_found(wrong: dict[str, Any], tmp_path: Path) -> None:
    found = compared(tmp_path, lambda m: alike(m, "distance", **wrong), lambda m: alike(m, "cosine"), "a", "b")
    assert found.exit_code == 1, found.answer()


# -- numbers that mean infinity -------------------------------------------------------------------------------------

HIDDEN = -1e30
HIDES = torch.arange(8) < 2 * torch.arange(4)[:, None]  # all of a block, and then of the next


def in_blocks(model: nn.ModuleDict, *, rescales: bool = True) -> Tensor:
    """Attention of four queries to eight keys, two keys at a time, with a running maximum."""
    query, keys = model["a"](seeded(4, 8)), model["b"](seeded(8, 8, seed=1)).cumsum(0)
    most, total, found = query.new_full((4, 1), HIDDEN), torch.zeros(4, 1), torch.zeros(4, 4)
    for at in range(0, 8, 2):
        is_hidden = HIDES[:, at : at + 2]
        scores = (query @ keys[at : at + 2].T).masked_fill(is_hidden, HIDDEN)
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        raised = (scores - now).exp() * ~is_hidden
        total = total * (most - now).exp() + raised.sum(-1, keepdim=True)
        found = (found * (most - now).exp() if rescales else found) + raised @ keys[at : at + 2]
        most = now
    return (found / total * torch.arange(16.0).view(4, 4)).square().sum()


def at_once(model: nn.ModuleDict) -> Tensor:
    query, keys = model["a"](seeded(4, 8)), model["b"](seeded(8, 8, seed=1)).cumsum(0)
    scores = (query @ keys.T).masked_fill(HIDES, -torch.inf)
    return (scores.softmax(-1) @ keys * torch.arange(16.0).view(4, 4)).square().sum()


def test_a_running_maximum_of_hidden_scores_agrees(tmp_path: Path) -> None:
    found = compared(tmp_path, in_blocks, at_once, "a", "b")
    assert found.exit_code == 0, found.answer()


def test_hidden_scores_do_not_make_everything_rounding(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda model: in_blocks(model, rescales=False), at_once, "a", "b")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and "goes through aten::mul with Aten.exp" in found.cause.text


def overflowing(model: nn.ModuleDict, more: float) -> Tensor:
    """A loss with 0 times a number of which rounding decides whether it overflows."""
    twice = model["a"](seeded(2, 8)).square().mean() + 0.1
    apart = (twice * 2 - twice - twice) * 1e18
    return twice + (apart.square().exp() * 0 + more).detach()


@pytest.mark.parametrize("trains", [False, True])
def test_what_rounding_alone_makes_infinite_is_not_called_the_same(trains: bool, tmp_path: Path) -> None:
    """Nothing is known of it, and that is said; the same program agrees with itself."""

    def run(more: float) -> None:
        loss = overflowing(layers("a"), more)
        if trains:
            loss.backward()

    one, same, other = (
        record(tmp_path / name, lambda step, more=more: run(more))
        for name, more in (("one", 1.0), ("same", 1.0), ("other", 2.0))
    )
    assert compare(one, same).exit_code == 0
    found = compare(other, one)
    assert found.exit_code == 2, found.answer()
    assert "of which rounding alone decides what it is" in found.answer()


# -- caches of an engine --------------------------------------------------------------------------------------------


class Served(nn.Module):
    """Keys that are kept in pages: of floats, or of bytes that are shown as floats."""

    def __init__(self, pages: str, *, late: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key, self.pages = nn.Linear(8, 4), pages
        self.late = late

    def forward(self, x: Tensor) -> Tensor:
        keys = self.key(x)
        if not self.pages:
            return torch.sigmoid(keys)
        if self.pages == "bytes":
            held = torch.zeros(16 * 4 * 4, dtype=torch.uint8).view(torch.float32).view(16, 4)
        else:
            held = torch.zeros(16, 4)
        for row in range(len(keys)):
            held.index_copy_(0, torch.tensor([5 + row - (self.late and row == 2)]), keys[row : row + 1])
        return torch.sigmoid(held[5 : 5 + len(keys)])


def served(path: Path, model: Served) -> Path:
    lengths = torch.full((2,), 7, dtype=torch.int32)

    def serve(_: int) -> None:
        if model.pages:
            lengths.copy_(torch.tensor([3, 0], dtype=torch.int32))
        model(seeded(3, 8))

    with torch.no_grad():
        return record(path, serve, model)


@pytest.mark.parametrize("pages", ["bytes", "floats"])
def test_keys_that_an_engine_keeps_in_pages_are_the_same_keys(pages: str, tmp_path: Path) -> None:
    paged, plain = served(tmp_path / "paged", Served(pages)), served(tmp_path / "plain", Served(""))
    for target, baseline in ((paged, plain), (plain, paged)):
        found = compare(target, baseline)
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("pages", ["bytes", "floats"])
def test_a_page_that_is_written_to_the_wrong_place_is_found(pages: str, tmp_path: Path) -> None:
    paged, plain = served(tmp_path / "paged", Served(pages, late=True)), served(tmp_path / "plain", Served(""))
    assert compare(paged, plain).exit_code == 1
