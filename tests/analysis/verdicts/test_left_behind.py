"""Memory that was there before the step: what one side alone changes is found, and what both write otherwise agrees."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from tests.analysis.by_distance.steps import record, seeded
from tests.sampling import diagonal, slow_but_for

Average = Callable[[list[torch.Tensor], list[torch.Tensor]], object]


def looped(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    for average, weight in zip(averages, weights, strict=True):
        average.lerp_(weight, 0.1)


def backwards(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    looped(averages[::-1], weights[::-1])


def multiplied(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    torch._foreach_mul_(averages, 0.9)
    torch._foreach_add_(averages, weights, alpha=0.1)


def copied(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    for average, weight in zip(averages, weights, strict=True):
        average.copy_(average * 0.9 + weight * 0.1)


def made_anew(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    averages[:] = [average * 0.9 + weight * 0.1 for average, weight in zip(averages, weights, strict=True)]


def without_biases(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    looped(*([v for v in side if v.dim() > 1] for side in (averages, weights)))


def left_out(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    """Forget the average."""


def averaging(path: Path, average: Average, *, keep: bool = False, how: Any = None, **config: Any) -> Path:
    """Train for two steps, with an average of the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    averages = [p.detach() for p in copy.deepcopy(model).parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **(how or {}))

    def body(step: int) -> None:
        model(seeded(8, 4, seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)
        average(averages, [p.detach() for p in model.parameters()])

    return record(path, body, model, steps=2, **config)


def both_ways(one: Path, other: Path) -> list[Comparison]:
    return [compare(one, other), compare(other, one)]


def _called(given: object) -> str:
    return getattr(given, "__name__", str(given))


@pytest.mark.parametrize(
    ("average", "options"),
    [
        (torch._foreach_lerp_, {"weight": 0.1}),
        pytest.param(backwards, {}, marks=pytest.mark.slow),
        pytest.param(multiplied, {}, marks=pytest.mark.slow),
        pytest.param(copied, {}, marks=pytest.mark.slow),
        pytest.param(made_anew, {}, marks=pytest.mark.slow),
    ],
    ids=_called,
)
def test_an_average_of_weights_may_be_written_in_any_way(
    tmp_path: Path, average: Callable[..., object], options: dict[str, float]
) -> None:
    def update(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> object:
        return average(averages, weights, **options)

    for found in both_ways(averaging(tmp_path / "one", update), averaging(tmp_path / "other", looped)):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    ("options", "config"),
    diagonal(
        [{"keep": True}, {"how": {"fused": True}}, {"how": {"foreach": True}}],
        [{}, {"level": "aten"}, {"data": "hash"}, {"data": "statistic"}],
    ),
)
def test_how_gradients_are_cleared_and_steps_counted_is_no_difference(
    tmp_path: Path, options: dict[str, Any], config: dict[str, Any]
) -> None:
    one = averaging(tmp_path / "one", looped, **options, **config)
    for found in both_ways(one, averaging(tmp_path / "other", looped, how={"foreach": False}, **config)):
        assert not found.ranks[0].findings or "hash" in config.values(), found.answer()
        assert "there before the step" not in found.answer()


@pytest.mark.parametrize(("average", "shape"), [(left_out, "[4, 4]"), (without_biases, "[4]")], ids=_called)
def test_an_average_that_is_left_out_is_found_in_every_step(tmp_path: Path, average: Average, shape: str) -> None:
    one, other = averaging(tmp_path / "one", average), averaging(tmp_path / "other", looped)
    for found, side in zip(both_ways(one, other), ("baseline", "target"), strict=True):
        assert found.exit_code == 1
        for evidence in found.ranks:
            finding = evidence.findings[0]
            assert finding.kind == "left" and finding.row.place.op == "aten::lerp_.Scalar"
            assert (finding.row.baseline is None) == (side == "target")
            assert finding.text.startswith(f"only the {side} changes memory (float32{shape}), there before the step")


def test_an_average_by_another_weight_is_found_though_no_calls_are_paired(tmp_path: Path) -> None:
    def update(averages: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        torch._foreach_lerp_(averages, weights, 0.2)

    for found in both_ways(averaging(tmp_path / "one", update), averaging(tmp_path / "other", looped)):
        assert found.cause is not None and "lerp_" in found.cause.row.place.op
        assert "left behind" in found.answer()


class Remembers(nn.Module):
    """A layer with everything that modules keep from step to step; `writes` says what of it it writes."""

    def __init__(self, *writes: str) -> None:
        super().__init__()
        self.writes, self.layer = writes, nn.Linear(4, 6)
        self.register_buffer("bank", seeded(8, 6))
        self.register_buffer("used", torch.zeros(6))
        self.register_buffer("hidden", torch.zeros(8, 6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def remember(self, h: torch.Tensor) -> None:
        if "bank" in self.writes:
            self.bank[2:6] = h[:4]
        if "used" in self.writes:
            self.used.add_(torch.bincount(h.argmax(1), minlength=6).float())
        if "used by index" in self.writes:
            self.used.index_add_(0, h.argmax(1), torch.ones(8))
        if "hidden" in self.writes:
            self.hidden.copy_(h)
        if "steps" in self.writes:
            self.steps += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x).tanh()
        self.remember(h)
        return h


def remembering(path: Path, *writes: str, wrap: bool = False) -> Path:
    torch.manual_seed(0)
    model: nn.Module = Remembers(*writes)
    model = nn.Sequential(model) if wrap else model

    def body(step: int) -> None:
        model.zero_grad()
        model(seeded(8, 4, seed=step)).square().mean().backward()

    return record(path, body, model, steps=2)


@pytest.mark.parametrize(
    ("what", "op"), [("bank", "copy_"), ("used", "add_"), ("hidden", "copy_"), ("steps", "add_")], ids=str
)
def test_a_module_that_does_not_write_what_it_keeps(tmp_path: Path, what: str, op: str) -> None:
    others = {"bank", "used", "hidden", "steps"} - {what}
    one, other = remembering(tmp_path / "one", *others), remembering(tmp_path / "other", *others, what)
    for found in both_ways(one, other):
        assert found.cause is not None and found.cause.row.place.op.startswith(f"aten::{op}"), found.answer()
        assert all(evidence.findings for evidence in found.ranks), "in the second step too"


def test_modules_that_keep_the_same_agree(tmp_path: Path) -> None:
    one = remembering(tmp_path / "one", "bank", "used", "hidden", "steps")
    other = remembering(tmp_path / "other", "bank", "used by index", "hidden", "steps", wrap=True)
    for found in both_ways(one, other):
        assert found.exit_code == 0, found.answer()


def test_what_a_training_loop_counts_is_a_difference(tmp_path: Path) -> None:
    def counting(path: Path, counts: bool) -> Path:
        torch.manual_seed(0)
        model, total = nn.Linear(4, 4), torch.zeros(())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def body(step: int) -> None:
            loss = model(seeded(8, 4, seed=step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if counts:
                total.add_(loss.detach())

        return record(path, body, model, steps=2)

    first, second = both_ways(counting(tmp_path / "one", True), counting(tmp_path / "other", False))
    for found in (first, second):
        assert found.exit_code == 1 and found.cause is not None, found.answer()
        assert (found.cause.kind, found.cause.row.place.op) == ("left", "aten::add_.Tensor"), found.answer()
        assert found.cause.side == ("target" if found is first else "baseline"), found.answer()


@torch.no_grad()
def test_memory_that_the_step_only_works_in_is_its_own_affair(tmp_path: Path) -> None:
    """A staging buffer, a cache of keys with room for more, a buffer for the result."""
    weight = seeded(4, 4)

    def cached(room: bool) -> Callable[[int], object]:
        keys, staged, result = torch.zeros(8, 4), torch.zeros(2, 4), torch.zeros(2, 4)
        grown: list[torch.Tensor] = []

        def body(step: int) -> torch.Tensor:
            x = staged.copy_(seeded(2, 4, seed=step)) if room else seeded(2, 4, seed=step)
            if room:
                keys[2 * step : 2 * step + 2] = x @ weight
                known = keys[: 2 * step + 2]
                return torch.mm((x @ known.t()).softmax(-1), known, out=result)
            grown.append(x @ weight)
            known = torch.cat(grown)
            return (x @ known.t()).softmax(-1) @ known

        return body

    one, other = (record(tmp_path / str(room), cached(room), steps=3) for room in (True, False))
    for found in both_ways(one, other):
        assert found.exit_code == 0, found.answer()


def targets(path: Path, *, asks_itself: bool, fused: bool = False) -> Path:
    """Train two steps towards what a network that follows says of the same states; both begin alike."""
    torch.manual_seed(0)
    online = nn.Linear(5, 4)
    models = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    optimizer = torch.optim.Adam(online.parameters(), lr=0.1, fused=fused)

    def body(step: int) -> None:
        states = seeded(8, 5, seed=step)
        with torch.no_grad():
            wanted = models["online" if asks_itself else "target"](states) + 1.0
        loss = (online(states * 2) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            looped(*(list(models[name].parameters()) for name in ("target", "online")))

    return record(path, body, models, steps=2)


@pytest.mark.parametrize("fused", slow_but_for([True], [False, True]))
def test_a_network_that_is_asked_in_place_of_its_copy_is_told_where_it_is_asked(fused: bool, tmp_path: Path) -> None:
    baseline = targets(tmp_path / "baseline", asks_itself=False)
    agree = compare(targets(tmp_path / "agree", asks_itself=False, fused=fused), baseline)
    assert agree.exit_code == 0, agree.answer()
    found = compare(targets(tmp_path / "target", asks_itself=True, fused=fused), baseline)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    place = found.cause.row.place
    assert (found.cause.kind, place.step, place.module, place.phase) == ("source", 0, "online", "forward")
    assert found.cause.text.startswith("it reads online."), found.answer()


# -- moments that are zero before the first step -------------------------------------------------------------------


def stepping(path: Path, *slips: str, lerp: bool = False) -> Path:
    """Take two steps of an optimizer that keeps two moments and a third sum, all zero at first."""
    torch.manual_seed(0)
    weight, gradient = torch.randn(5, 4), torch.randn(5, 4)
    first, second, third = (torch.zeros(5, 4) for _ in range(3))

    def run(number: int) -> None:
        if number == 0:
            weight.addcmul_(first if "reads first" in slips else third, gradient)  # all of these are zero
        if lerp:
            first.lerp_(gradient, 0.1)
        else:
            first.mul_(0.9).add_(gradient, alpha=0.1)
        one, other = (first, second) if "writes first" in slips else (second, second)
        one.mul_(0.98 if "decays otherwise" in slips else 0.99)
        other.addcmul_(gradient, gradient, value=0.01)
        third.add_(gradient)
        weight.addcdiv_(first, second.sqrt() + 1e-6, value=-0.01)

    return record(path, run, steps=2)


def test_moments_that_are_zero_at_first_may_be_written_in_any_way(tmp_path: Path) -> None:
    for found in both_ways(stepping(tmp_path / "lerp", lerp=True), stepping(tmp_path / "plain")):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(("slip", "lerp"), diagonal(["reads first", "writes first", "decays otherwise"], [False, True]))
def test_moments_that_are_read_or_written_crosswise_are_found(slip: str, lerp: bool, tmp_path: Path) -> None:
    target, baseline = stepping(tmp_path / "slip", slip, lerp=lerp), stepping(tmp_path / "plain")
    for found in both_ways(target, baseline):
        assert found.exit_code == 1, found.answer()
    assert slip != "reads first" or "another place" in found.answer()


def sharpened(path: Path, restored: str) -> Path:
    """Record steps that perturb the weights for a second backward, then bring them back in place or in other memory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(step: int) -> None:
        x = seeded(8, 4, seed=step)
        model(x).square().mean().backward()
        weights = list(model.parameters())
        before = [w.detach().clone() for w in weights]
        with torch.no_grad():
            for w in weights:
                w.add_(w.grad)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        for number, (w, old) in enumerate(zip(weights, before, strict=True)):
            if restored == "other memory" or (restored == "one is not" and number):
                w.data = old
            elif restored == "slightly larger":
                w.data = old * 1.001
            elif restored == "in place":
                w.data.copy_(old)
        optimizer.step()
        optimizer.zero_grad()

    return record(path, body, model, steps=2)


@pytest.mark.parametrize(
    "restored", slow_but_for(["other memory", "one is not"], ["other memory", "one is not", "slightly larger"])
)
def test_weights_may_move_to_other_memory_where_the_optimizer_writes_them(tmp_path: Path, restored: str) -> None:
    one, other = sharpened(tmp_path / "one", restored), sharpened(tmp_path / "other", "in place")
    for found in both_ways(one, other):
        assert found.exit_code == (restored != "other memory"), found.answer()


def taught(path: Path, how: str, steps: int) -> Path:
    """Record steps of a network that learns from an average of itself, which it reads."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(step: int) -> None:
        x = seeded(8, 4, seed=step)
        (model(x) - teacher(x + 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = []
        for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
            if how == "in place":
                old.data.mul_(0.9).add_(new.data, alpha=0.1)
            else:
                kept.append(old.data * (0.91 if how == "other weight" else 0.9) + new.data * 0.1)
                if how != "dropped":
                    old.data = kept[-1]

    return record(path, body, model, steps=steps)


@pytest.mark.parametrize(
    ("how", "steps", "code"),
    [("anew", 1, 2), ("dropped", 1, 2), ("anew", 3, 0), ("dropped", 2, 1), ("other weight", 2, 1)],
)
def test_what_is_made_anew_may_have_been_dropped_which_the_next_step_shows(
    tmp_path: Path, how: str, steps: int, code: int
) -> None:
    for found in both_ways(taught(tmp_path / "one", how, steps), taught(tmp_path / "other", "in place", steps)):
        assert found.exit_code == code, found.answer()
        if code == 1:
            assert found.cause is not None and found.cause.row.place.step == 0, "where it is lost, not where it is read"
            assert found.cause.row.place.op.startswith(("aten::add", "aten::mul")), found.answer()


class Recurrent(nn.Module):
    """Starts each step from what it made in the step before."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("hidden", torch.zeros(8, 4))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.layer(x) + 0.5 * self.hidden)
        if self.how == "in place":
            self.hidden.copy_(h.detach())
        elif self.how != "dropped":
            self.hidden = h.detach() * 0.99 if self.how == "smaller" else h.detach()
        return h


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("how", "code"), [("anew", 0), ("dropped", 1), ("smaller", 1)])
def test_a_state_may_be_a_tensor_that_the_step_reads_too(tmp_path: Path, how: str, code: int, steps: int) -> None:
    def recorded(path: Path, how: str) -> Path:
        torch.manual_seed(0)
        model = Recurrent(how)

        def body(step: int) -> None:
            model.zero_grad()
            model(seeded(8, 4, seed=step)).square().mean().backward()

        return record(path, body, model, steps=steps)

    for found in both_ways(recorded(tmp_path / "one", how), recorded(tmp_path / "other", "in place")):
        assert found.exit_code == code, found.answer()
        if code:
            assert found.cause is not None and found.cause.row.place.op == "aten::copy_", found.answer()


@pytest.mark.parametrize("wrong", ["", "another row"])
def test_a_queue_may_be_overwritten_in_part_or_put_together_anew(tmp_path: Path, wrong: str) -> None:
    def queueing(path: Path, whole: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        model.register_buffer("queue", torch.randn(4, 6))

        def body(step: int) -> None:
            keys = model(seeded(2, 4, seed=step))
            (keys @ model.queue.clone()).square().mean().backward()
            at = 2 * step + (1 if wrong and whole else 0)
            rows = keys.detach().T
            if whole:
                model.queue.copy_(torch.cat([model.queue[:, :at], rows, model.queue[:, at + 2 :]], 1))
            else:
                model.queue[:, at : at + 2] = rows

        return record(path, body, model, steps=2)

    for found in both_ways(queueing(tmp_path / "one", True), queueing(tmp_path / "other", False)):
        assert found.exit_code == bool(wrong), found.answer()


class Adam(torch.optim.Optimizer):
    """Makes its moments anew in every step, which it reads before the next."""

    def __init__(self, parameters: Iterable[nn.Parameter], how: str) -> None:
        super().__init__(parameters, {})
        self.how = how
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for weight in self.param_groups[0]["params"]:
            state, grad = self.state[weight], weight.grad
            if not state:
                state |= {"mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
            mean = 0.9 * state["mean"] + (0.11 if self.how == "other weight" else 0.1) * grad
            square = 0.999 * state["square"] + 0.001 * grad * grad
            if self.how != "dropped":
                state |= {"mean": mean, "square": square}
            corrected = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
            weight.sub_(0.01 * (mean / (1 - 0.9**self.steps)) / corrected)


@pytest.mark.parametrize(("how", "steps", "code"), [("anew", 2, 0), ("dropped", 2, 1), ("other weight", 1, 1)])
def test_moments_that_are_made_anew_may_be_read_before_the_next_step(
    tmp_path: Path, how: str, steps: int, code: int
) -> None:
    def recorded(path: Path, how: str) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        fused = torch.optim.Adam(model.parameters(), 0.01, foreach=True)
        optimizer = Adam(model.parameters(), how) if how else fused

        def body(step: int) -> None:
            model(seeded(8, 4, seed=step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return record(path, body, model, steps=steps)

    for found in both_ways(recorded(tmp_path / "one", how), recorded(tmp_path / "other", "")):
        assert found.exit_code == code, found.answer()
        if code:
            assert found.cause is not None and found.cause.row.place.phase == "optimizer", found.answer()


def teaching(path: Path, *, forgets_last: bool) -> Path:
    """Train on what a slow copy of the model says, which reads its weights before they are averaged."""
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model={"student": student, "teacher": teacher}):
        with torch.no_grad():
            goal = teacher(x + 0.1)
        nn.functional.mse_loss(student(x) * 2, goal).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in list(zip(teacher.parameters(), student.parameters(), strict=True))[: 4 - forgets_last]:
                slow.mul_(0.9).add_(fast, alpha=0.1)
    return path


def test_a_write_that_is_missing_is_named_by_what_it_writes_to(tmp_path: Path) -> None:
    """The write reads it too, which is no read that the other side lacks: both run the layer."""
    found = compare(teaching(tmp_path / "target", forgets_last=True), teaching(tmp_path / "b", forgets_last=False))
    assert found.exit_code == 1
    said = found.answer().splitlines()[0]
    assert "only the baseline changes teacher.2 (float32[4]), there before the step" in said, said
    assert "aten::add_" in found.answer()


def normalizing(path: Path, *, restored: bool) -> Path:
    """A step of a model with batch norm, after a checkpoint without the running statistics, or with them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    if restored:
        model[1].running_mean.add_(0.5)
        model[1].running_var.mul_(2)
    return record(path, lambda step: model(seeded(4, 2, 4, 4)).square().mean().backward(), model)


def test_running_statistics_that_were_not_restored_are_found(tmp_path: Path) -> None:
    """In a step of training nothing else shows them."""
    for found in both_ways(
        normalizing(tmp_path / "resumed", restored=False), normalizing(tmp_path / "going on", restored=True)
    ):
        assert found.exit_code == 1
        assert any("not restored" in note and "running_mean" in note for note in found.all_notes), found.answer()


def test_a_copy_with_other_contents_that_is_overwritten_is_no_state(tmp_path: Path) -> None:
    """A buffer of the module is filled anew in each step, whatever it began with."""

    class Filled(nn.Module):
        def __init__(self, start: float) -> None:
            super().__init__()
            self.register_buffer("held", torch.full((4,), start))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.held.copy_(x.mean(0))
            return x - self.held

    def one(start: float) -> Path:
        model = Filled(start)
        with torch.no_grad():
            return record(tmp_path / str(start), lambda step: model(seeded(3, 4)), model)

    for found in both_ways(one(0.0), one(3.0)):
        assert found.exit_code == 0, found.answer()


class Siglip(nn.Module):
    """Scores with a scale and a bias that are single numbers, as models of images and texts have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(6, 4), nn.Linear(6, 4)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        return self.image(images) @ self.text(texts).t() * self.scale.exp() + self.bias


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_single_number_that_no_optimizer_holds_is_found(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    def trained(name: str, left_out: str) -> Path:
        model = Siglip()
        optimizer = kind([p for n, p in model.named_parameters() if n != left_out], lr=0.01)
        with DumpMode(DumpConfig(path=str(tmp_path / name), data="tensor"), model=model):
            images, texts = torch.linspace(-1, 1, 48).view(2, 4, 6)
            nn.functional.softplus(model(images, texts)).mean().backward()
            optimizer.step()
        return tmp_path / name

    found = compare(trained("target", "bias"), trained("baseline", ""))
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    assert "only the baseline changes bias" in found.cause.text, found.answer()
