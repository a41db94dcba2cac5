"""What a step is for: its losses, its gradients, and the memory it leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.flow import regions
from aten_dump.analysis.flow.roots import roots_of, starts_of
from aten_dump.analysis.judging.ends import gradients_of
from aten_dump.analysis.judging.pair_walk import Walk
from aten_dump.analysis.tasks import wrote_unseen
from aten_dump.dump import RankDump
from tests.analysis.by_hand import walked
from tests.analysis.wrong_ops import Wrong
from tests.dump.building import Builder, value
from tests.torch_features import needs_backward_seen

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
Body = Callable[[], object]


@pytest.fixture
def ended(record: Callable[..., Any]) -> Callable[..., tuple[Walk, list[str]]]:
    """ended(target, baseline): the walk over two programs, and the ends that nobody knows."""

    def run(target: Any, baseline: Any, **options: Any) -> tuple[Walk, list[str]]:
        walk = walked(*(one if isinstance(one, RankDump) else record(one, **options) for one in (target, baseline)))
        walk.evidence.findings.clear()
        walk.evidence.rows.clear()
        return walk, walk.ends()

    return run


Ended = Callable[..., tuple[Walk, list[str]]]


def found(walk: Walk) -> list[tuple[str, str]]:
    return [(f.kind, f.text) for f in walk.evidence.findings]


def slots(walk: Walk) -> list[tuple[str, str]]:
    return [(row.slot, row.status) for row in walk.evidence.rows]


def of_nothing(*, also: bool) -> Body:
    """Backward on what is made of memory that nothing wrote; `also` on a loss, as schedules that infer shapes do."""

    def run() -> None:
        (torch.empty(4) + X.clone().requires_grad_()).sum().backward()
        if also:
            X.clone().requires_grad_().mean().backward()

    return run


def test_a_loss_made_of_unwritten_memory_is_known_to_nobody_but_beside_another(ended: Ended) -> None:
    unknown = ended(of_nothing(also=False), of_nothing(also=False))[1]
    assert "loss" in unknown
    unknown = ended(of_nothing(also=True), of_nothing(also=True))[1]
    assert not [name for name in unknown if name.startswith("loss")]


# -- which they are ------------------------------------------------------------------------------------------------


def test_what_backward_was_called_on(record: Callable[..., Any]) -> None:
    def body() -> None:
        w = X.clone().requires_grad_()
        w.mean().backward()
        torch.autograd.grad(w.exp().sum(), w)
        torch.autograd.grad((w.sin().sum(), w.cos().sum()), [w])

    rank = record(body)
    made = [value.producer[0].op for value in roots_of(rank) if value.producer]
    assert made == [f"aten::{name}" for name in ("mean", "sum", "sum", "sum")]
    assert roots_of(record(lambda: X.sum())) == []


@needs_backward_seen
def test_what_the_function_backward_was_called_on(record: Callable[..., Any]) -> None:
    def body() -> None:
        w = X.clone().requires_grad_()
        torch.autograd.backward([w.sum(), w.prod()])

    made = [value.producer[0].op for value in roots_of(record(body)) if value.producer]
    assert made == ["aten::sum", "aten::prod"]


def test_gradients_go_by_the_name_without_wrappers(record: Callable[..., Any]) -> None:
    model = nn.Linear(4, 1)
    wrapped = nn.Module()
    wrapped.add_module("module", model)  # as DistributedDataParallel has it
    plain = record(lambda: model(X).sum().backward(), model)
    model.zero_grad()
    other = record(lambda: model(X).sum().backward(), wrapped)
    assert set(gradients_of(plain)) == set(gradients_of(other)) == {"weight", "bias"}
    assert torch.equal(gradients_of(plain)["weight"].tensor(), X.view(1, 4))
    assert set(plain.gradients) == {"weight", "bias"} and set(other.gradients) == {"module.weight", "module.bias"}


# -- losses --------------------------------------------------------------------------------------------------------


def test_a_loss_of_another_meaning_is_a_finding(ended: Ended) -> None:
    def body(scale: float) -> Body:
        return lambda: X.clone().requires_grad_().exp().mul(scale).sum().backward()

    walk, unknown = ended(body(1.0), lambda: X.clone().requires_grad_().exp().sum().backward())
    assert unknown == [] and found(walk) == [], "the same number"
    walk, _ = ended(lambda: X.clone().requires_grad_().exp().norm().backward(), body(1.0))
    assert found(walk)[0][0] == "loss" and found(walk)[0][1].startswith("the loss is not the same: ")
    assert ("loss", "different") in slots(walk)
    (finding,) = walk.evidence.findings
    made_it = [
        next(value.producer[0].name for value in roots_of(rank) if value.producer)
        for rank in (walk.ranks[0], walk.ranks[1])
    ]
    assert finding.row.place.call == made_it[0]
    row = next(row for row in walk.evidence.rows if row.slot == "loss")
    assert row.target is not None and row.baseline is not None
    assert [row.target.call, row.baseline.call] == made_it


def test_a_loss_that_is_another_value_is_a_finding(ended: Ended) -> None:
    def body(which: int) -> Body:
        def run() -> None:
            w = X.clone().requires_grad_()
            (w.exp().sum(), w.sin().sum())[which].backward()

        return run

    walk, _ = ended(body(0), body(1))
    finding = next(f for f in walk.evidence.findings if f.kind == "loss")
    assert finding.text == (
        "the loss is not the same: it reads what Aten.sum.0.forward made, in the baseline what Aten.sum.1.forward made"
        "; in float64 from the same values they differ by" + finding.text.rpartition("differ by")[2]
    )
    assert finding.row.target is not None and finding.row.baseline is not None
    assert (finding.row.target.call, finding.row.baseline.call) == ("Aten.sum.0.forward", "Aten.sum.1.forward")
    assert finding.order == (finding.row.target.id, 1)


def test_losses_are_numbered_where_there_are_several(ended: Ended) -> None:
    def body(second: str) -> Body:
        def run() -> None:
            w = X.clone().requires_grad_()
            w.exp().sum().backward()
            getattr(w.sin(), second)().backward()

        return run

    walk, _ = ended(body("norm"), body("max"))
    assert [text.split(" is")[0] for kind, text in found(walk) if kind == "loss"] == ["the loss 1"]


@pytest.mark.parametrize("wrong", ["", "undivided", "same half", "detached", "slightly larger"])
def test_backward_on_micro_batches_is_that_on_the_batch(record: Callable[..., Any], wrong: str) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy

    def micro() -> None:
        for number in range(2):
            at = slice(0, 4) if number == 0 or wrong == "same half" else slice(4, 8)
            part = loss(model(x[at]), y[at]) / (1 if wrong == "undivided" else 2)
            if number and wrong == "slightly larger":
                part = part * 1.00001  # beyond what constants in float32 differ by
            if number and wrong == "detached":
                part = part.detach() + 0 * part
            part.backward()

    parts = record(micro, model=model, data="tensor")
    model.zero_grad()
    whole = record(lambda: loss(model(x), y).backward(), model=model, data="tensor")
    for found in (compare(parts, whole), compare(whole, parts)):
        assert found.exit_code == bool(wrong), found.cause


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("wrong", [None, 1.1])
def test_gradients_of_micro_batches_that_are_too_far_to_run(
    record: Callable[..., Any], wrong: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deep model a sum of gradients has more calls behind it than are run again: it is judged by its distance."""
    monkeypatch.setattr(regions, "MOST_CALLS", 80)  # a model so deep that the true limit is met takes minutes
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(8, 3))
    x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))

    def step(parts: int) -> None:
        model.zero_grad()
        for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(some)
            (nn.functional.cross_entropy(out.float(), labels) / parts).backward()

    whole = record(lambda: step(1), model=model, data="tensor")
    if wrong is not None:
        model[2].down.weight.register_hook(lambda gradient: gradient * wrong)
    parts = record(lambda: step(2), model=model, data="tensor")
    for found in (compare(parts, whole), compare(whole, parts)):
        assert found.exit_code == (0 if wrong is None else 1), found.answer()


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("wrong", ["", "gradient", "thrown away"])
def test_parts_are_divided_and_logged_as_the_whole_is(record: Callable[..., Any], wrong: str, data: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))

    def step(parts: int) -> None:
        model.zero_grad()
        log = []
        for number, (some, labels) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
            loss = nn.functional.cross_entropy(model(some), labels)
            log.append(loss.detach().double())
            times = 1.5 if wrong == "gradient" and number else 1.0
            (loss / parts).backward(torch.tensor(times))
            if wrong == "thrown away" and parts > 1 and not number:
                model.zero_grad()

    parts, whole = (record(lambda n=n: step(n), model=model, data=data) for n in (2, 1))
    for found in (compare(parts, whole), compare(whole, parts)):
        assert found.exit_code == bool(wrong), found.cause


@pytest.mark.parametrize("wrong", ["", "twice", "some", "shifted"])
def test_gradients_of_a_sum_are_those_of_its_terms_that_start_from_ones(record: Callable[..., Any], wrong: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)), torch.randn(6, 4)

    def forces(of_sum: bool) -> None:
        model.zero_grad()
        at = x.clone().requires_grad_()
        energy = model(at)
        if of_sum:
            (found,) = torch.autograd.grad(energy.sum(), at, create_graph=True)
        else:
            ones = torch.ones_like(energy)
            start = {"twice": 2 * ones, "some": ones[:4]}.get(wrong, ones)
            given = {"some": energy[:4], "shifted": energy + 0.001}.get(wrong, energy)
            (found,) = torch.autograd.grad(given, at, start, create_graph=True)
        (found + x).square().mean().backward()

    one, other = (record(lambda of_sum=of_sum: forces(of_sum), model=model, data="tensor") for of_sum in (True, False))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == bool(wrong), found.cause


@pytest.mark.parametrize("wrong", ["", "doubled", "other loss"])
def test_gradients_asked_for_at_once_are_those_asked_for_one_by_one(record: Callable[..., Any], wrong: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    points, times = torch.randn(6, 1), torch.rand(6, 1)

    def residual(at_once: bool) -> None:
        model.zero_grad()
        x, t = points.clone().requires_grad_(), times.clone().requires_grad_()
        u = model(torch.cat([x, t], 1))
        if at_once:
            start = torch.full_like(u, 2.0 if wrong == "doubled" else 1.0)
            along, over = torch.autograd.grad(u, (x, t), start, create_graph=True)
        else:
            along = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            over = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        loss = (over + u * along).square().mean()
        (loss + 0.001 if at_once and wrong == "other loss" else loss).backward()

    one, other = (record(lambda at_once=at: residual(at_once), model=model, data="tensor") for at in (True, False))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == bool(wrong), found.answer()


def test_the_backward_of_a_call_of_grad_begins_nothing(record: Callable[..., Any]) -> None:
    def body() -> None:
        x = X.clone().requires_grad_()
        (found,) = torch.autograd.grad(x.exp(), x, torch.ones(4), create_graph=True)
        found.sum().backward()

    rank = record(body)
    assert [value.producer[0].op for value in roots_of(rank) if value.producer] == ["aten::exp", "aten::sum"]
    assert [value.shape for value in starts_of(rank).values()] == [(4,)]


def test_a_loss_of_which_nothing_was_recorded_is_unknown(ended: Ended) -> None:
    walk, unknown = ended(
        lambda: X.clone().requires_grad_().exp().norm().backward(),
        lambda: X.clone().requires_grad_().exp().sum().backward(),
        data="structure",
    )
    assert unknown == ["loss"] and found(walk) == []


def test_memory_that_one_side_alone_writes(ended: Ended) -> None:
    written, kept = X.clone(), X.clone()
    walk, _ = ended(lambda: (written.exp(), written.mul_(2)), lambda: kept.exp())
    assert [kind for kind, _ in found(walk)] == ["region"]
    assert "Aten.mul_.0.forward" in found(walk)[0][1]


# -- gradients -----------------------------------------------------------------------------------------------------


def step_of(model: nn.Module, *names: str) -> Body:
    """A step in which only some parameters get a gradient."""
    parameters = dict(model.named_parameters())

    def run() -> None:
        loss = torch.stack([parameters[name].exp().sum() for name in names]).sum()
        model.zero_grad()
        loss.backward()

    return run


def test_a_parameter_with_a_gradient_on_one_side_only(record: Callable[..., Any], ended: Ended) -> None:
    model = nn.Linear(4, 2)
    both = record(step_of(model, "weight", "bias"), model)
    one = record(step_of(model, "weight"), model)
    for pair, side in (((both, one), "target"), ((one, both), "baseline")):
        walk, _ = ended(*pair)
        assert ("gradient", f"bias has a gradient in the {side} only") in found(walk)
        finding = next(f for f in walk.evidence.findings if f.kind == "gradient")
        assert (finding.row.target is None) == (side == "baseline")
        assert finding.row.slot == "gradient of bias" and finding.row.status == "different"
        assert finding.row in walk.evidence.rows
        assert finding.order == (walk.ranks[0].calls[-1].id + 1, 0), "behind all calls"
    none = record(lambda: X.exp(), model)
    assert [kind for kind, _ in found(ended(both, none)[0])] == [], "a step without backward is another step"


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("lost", [False, True])
def test_a_module_around_the_model_renames_its_parameters(record: Callable[..., Any], lost: bool) -> None:
    def dump(wrap: Callable[[nn.Module], nn.Module], lost: bool) -> RankDump:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        inner[2].bias.requires_grad_(not lost)
        model = wrap(inner)
        return record(lambda: model(X).sum().backward(), model=model, data="tensor")

    found = compare(dump(Wrapped, lost), dump(lambda model: model, False))
    told = [finding.text for evidence in found.ranks for finding in evidence.findings]
    assert [text for text in told if "gradient in the" in text] == (
        ["2.bias has a gradient in the baseline only: in the target it needs none"] if lost else []
    )
    assert lost == bool(told)


class Renamed(nn.Module):
    """A network of which parts, or their parameters, go by a name of their own."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = self.get_submodule(name)(x).tanh()
        return x


@pytest.mark.parametrize("level", ["mix", "module"])
@pytest.mark.parametrize("wrong", ["", "frozen", "scaled", "swapped"])
def test_parameters_whose_modules_go_by_other_names(record: Callable[..., Any], level: str, wrong: str) -> None:
    """At level `module` no call tells which parameter of the one is which of the other."""
    model, other = Renamed("a", "b", "c"), Renamed("inner", "middle", "head")
    if wrong == "frozen":
        model.b.bias.requires_grad_(False)
    names = ("a", "c", "b") if wrong == "swapped" else model.names

    def body(model: Renamed, factor: float) -> Body:
        return lambda: (model(X) * factor).sum().backward()

    model.names = names
    one = record(body(model, 1.5 if wrong == "scaled" else 1.0), model=model, level=level)
    found = compare(one, record(body(other, 1.0), model=other, level=level))
    assert found.exit_code == bool(wrong), found.cause


def test_gradients_that_are_paired_are_known(record: Callable[..., Any], ended: Ended) -> None:
    model = nn.Linear(4, 2)
    walk, unknown = ended(*(record(step_of(model, "weight", "bias"), model) for _ in range(2)))
    assert (found(walk), slots(walk), unknown) == ([], [], [])


# -- what is left behind -------------------------------------------------------------------------------------------


def test_memory_from_outside_must_end_alike(ended: Ended) -> None:
    state = [torch.zeros(4), torch.zeros(4)]

    def body(number: int, last: float) -> Body:
        memory = state[number]

        def run() -> None:
            memory.add_(X.exp())
            if last:
                memory.mul_(last)

        return run

    walk, _ = ended(body(0, 0.0), body(1, 0.0))
    assert found(walk) == [] and slots(walk) == []
    for memory in state:
        memory.zero_()
    walk, _ = ended(body(0, 0.0), body(1, 1.5))
    assert [kind for kind, _ in found(walk)] == ["region"], "the baseline goes on"
    assert slots(walk) == [("left behind", "different")]


def test_nan_in_a_loss_is_a_finding_though_each_op_was_right(tmp_path: Path) -> None:
    """Rounding decides whether the root is of 0 or of less."""
    less = torch.tensor([0.0, 0.0, 0.0, 1e-8])
    for name, off in (("target", less), ("baseline", torch.zeros(4))):
        subtraction = Wrong(torch.ops.aten.sub.Tensor, 0, result=lambda r, off=off: r - off)
        with subtraction, DumpMode(DumpConfig(path=str(tmp_path / name), data="tensor")):
            (X.clone().requires_grad_() - torch.tensor([0.0, 0.0, 0.0, 4.0])).sqrt().sum().backward()
    found = compare(tmp_path / "target", tmp_path / "baseline")
    assert found.verdict == "different"
    assert [finding.kind for finding in found.ranks[0].findings] == ["nonfinite"]
    assert found.cause is not None and found.cause.row.place.op == "aten::sqrt"
    assert "First cause: Aten.sqrt.0.forward" in found.answer() and "the target made 1 NaN" in found.answer()


def called_back(memory: torch.Tensor, *, unseen: bool, factor: float = 2.0) -> Body:
    """A step in which a callback of a future writes memory, on this thread or on one where nothing is seen."""

    def run() -> None:
        memory.add_(X)
        future: torch.futures.Future[int] = torch.futures.Future()
        if not unseen:
            future.set_result(0)
        done = future.then(lambda _: memory.mul_(factor) if factor else None)
        if unseen:
            other = threading.Thread(target=future.set_result, args=(0,))
            other.start()
            other.join()
        done.wait()

    return run


@pytest.mark.parametrize("seen", ["target", "baseline"])
def test_what_a_callback_left_that_one_side_did_not_see_is_not_compared(ended: Ended, seen: str) -> None:
    sides = [called_back(X.clone(), unseen=seen != side) for side in ("target", "baseline")]
    walk, unknown = ended(*sides)
    assert unknown == [] and found(walk) == [] and slots(walk) == []
    noted = [wrote_unseen(rank) for rank in (walk.ranks[0], walk.ranks[1])]
    assert noted == [seen != "target", seen != "baseline"]


def test_what_callbacks_left_that_both_sides_saw_must_be_the_same(ended: Ended) -> None:
    walk, _ = ended(called_back(X.clone(), unseen=False), called_back(X.clone(), unseen=False, factor=0))
    assert slots(walk) == [("left behind", "different")]


def test_what_the_optimizer_left_is_compared_whatever_callbacks_did(ended: Ended) -> None:
    def body(twice: bool) -> Body:
        weight = nn.Parameter(X.clone())
        weight.grad = X.clone()
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def run() -> None:
            called_back(X.clone(), unseen=True)()
            optimizer.step()
            if twice:
                optimizer.step()

        return run

    assert slots(ended(body(True), body(False))[0]) == [("left behind", "different")]


def test_memory_that_the_step_made_does_not_outlive_it(ended: Ended) -> None:
    def body(last: float) -> Body:
        def run() -> None:
            memory = X.exp()
            memory.add_(1)
            if last:
                memory.mul_(last)

        return run

    walk, _ = ended(body(0.0), body(1.5))
    assert slots(walk) == []


def test_state_that_the_optimizer_made_is_left_behind(record: Callable[..., Any], ended: Ended) -> None:
    def body(factor: float) -> RankDump:
        model = nn.Linear(4, 1, bias=False)
        nn.init.constant_(model.weight, 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(X).sum().backward()
        optimizer.register_step_post_hook(
            lambda o, args, kwargs: (
                [s["momentum_buffer"].mul_(factor) for s in o.state.values()] if factor != 1 else None
            )
        )
        found: RankDump = record(optimizer.step, model)
        return found

    walk, _ = ended(body(1.0), body(1.5))
    assert ("left behind", "different") in slots(walk)
    assert slots(ended(body(1.0), body(1.0))[0]) == []


def test_dumps_of_other_tools_do_not_say_what_lies_in_one_memory(tmp_path: Path, ended: Ended) -> None:
    def dump(name: str, source: str | None, last: float) -> RankDump:
        b = Builder(tmp_path / name, config={"source": source} if source else None)
        memory = torch.zeros(4)
        before = b.value(memory)
        add, mul = (b.op("aten", f"aten::{op}_.Scalar", "Aten", f"{op}_", ("self", "other")) for op in ("add", "mul"))
        after = b.value(memory, version=1, store="compact", raw=torch.ones(4))
        b.call(add, args=[value(before), 1.0], outputs=value(after), written=["self", value(after)])
        if last:
            end = b.value(memory, version=2, store="compact", raw=torch.ones(4) * last)
            b.call(mul, args=[value(after), last], outputs=value(end), written=["self", value(end)])
        return open_dump(b.finish()).rank(0, 0)

    walk, _ = ended(dump("a", None, 0.0), dump("b", None, 1.5))
    assert slots(walk) == [("left behind", "different")]
    walk, _ = ended(dump("c", None, 0.0), dump("d", "msprobe", 1.5))
    assert slots(walk) == []
