"""What is known of each input of a pair of calls, and of all together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.evidence.judgement import Judgement
from aten_dump.analysis.evidence.states import State
from aten_dump.analysis.judging.input_links import Link, inputs_from, is_another_source, open_links, state_from
from aten_dump.analysis.judging.knowledge import Knowledge
from aten_dump.dump import Call
from tests.analysis.by_hand import apart, knowledge

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
Body = Callable[[], object]


@pytest.fixture
def of(record: Callable[..., Any]) -> Callable[..., tuple[Knowledge, list[Link]]]:
    """of(name, target, baseline): the links of the call of that name, and all that is known."""

    def links(name: str, target: Body, baseline: Body, **options: Any) -> tuple[Knowledge, list[Link]]:
        ranks = record(target), record(baseline)
        knows = knowledge(*ranks, **options)
        return knows, knows.links.of(Pair(ranks[0][name], ranks[1][name], "mapping"))

    return links


Of = Callable[..., tuple[Knowledge, list[Link]]]


def test_equal_inputs_from_outside_are_the_same_and_nothing_is_to_be_said(of: Of) -> None:
    _, links = of("Aten.add.0.forward", lambda: X + Y, lambda: X + Y)
    assert [(link.slot, link.state, link.said) for link in links] == [
        ("input.0", State("same"), None),
        ("input.1", State("same"), None),
    ]


def test_other_data_from_outside_are_judged_as_a_source(of: Of) -> None:
    _, links = of("Aten.add.0.forward", lambda: X + Y, lambda: X + Y * 1.0, exact=True)
    assert links[1].said is None, "Y * 1.0 is no data from outside, but has the same bits"
    other = Y * 1.5
    _, links = of("Aten.add.0.forward", lambda: X + other, lambda: X + Y)
    said = links[1].said
    assert said is not None and (said.status, said.guilty, links[1].text[:12]) == ("different", True, "it came from")
    assert links[1].state == state_from(said, links[1].close)
    assert links[0].state == State("same")


def test_what_is_alike_from_outside_is_found_whatever_calls_were_aligned(of: Of) -> None:
    """By contents, or as the nearest of its shape where rounding is between them."""
    first, second = torch.linspace(1, 2, 8), torch.linspace(3, 1, 8)

    def program(*order: torch.Tensor) -> Body:
        return lambda: [value.exp() for value in order]

    name = "Aten.exp.0.forward"
    for moved in (0.0, 1e-6, 1e-2):
        knows, (link,) = of(name, program(second * (1 + moved), first), program(first, second))
        assert is_another_source(link)
        (found,) = [v for v in knows.links.alike(link.target) if v.id != link.baseline.id]
        assert found.id == dict(knows.baseline["Aten.exp.1.forward"].input_values())["input.0"].id
    knows, (link,) = of(name, program(second * 1.5, first), program(first, second))
    assert [v.id for v in knows.links.alike(link.target)] in ([], [link.baseline.id]), "none is near"


def test_what_both_inherited_may_still_be_another(of: Of) -> None:
    said = Judgement("within", note="inherited from the step before")
    _, (link,) = of("Aten.exp.0.forward", lambda: X.exp(), lambda: X.exp())
    for error, is_another in ((1e-3, False), (0.5, True)):
        assert is_another_source(Link("input.0", link.target, link.baseline, apart(error), said=said)) == is_another
    assert not is_another_source(Link("input.0", link.target, link.baseline, apart(0.5))), "it was made by calls"


def test_what_a_call_made_is_open_until_that_was_judged(of: Of) -> None:
    knows, links = of("Aten.relu.0.forward", lambda: (X * 2).relu(), lambda: (X * 3).relu())
    assert links[0].state is None and links[0].said is None
    assert list(open_links(links)) == links
    made = [rank["Aten.mul.0.forward"].outputs for rank in (knows.target, knows.baseline)]
    knows.known.keep(made[0], made[1], State("within", 0.5, 7))
    pair = Pair(knows.target["Aten.relu.0.forward"], knows.baseline["Aten.relu.0.forward"], "mapping")
    again = knows.links.of(pair)
    assert again[0].state == State("within", 0.5, 7) and not list(open_links(again))


def test_only_inputs_that_both_read_are_linked(of: Of) -> None:
    _, links = of("Aten.clamp.0.forward", lambda: torch.clamp(X, Y), lambda: torch.clamp(X, max=Y))
    assert [link.slot for link in links] == ["input.0"]
    buffer = torch.zeros(4)
    _, links = of("Aten.exp.0.forward", lambda: torch.exp(X, out=buffer), lambda: torch.exp(X, out=buffer))
    assert [link.slot for link in links] == ["input.0"], "out= is written, not read"


def test_memory_that_nothing_had_written(of: Of) -> None:
    def blank() -> None:
        torch.empty(4).relu()

    def filled() -> None:
        torch.zeros(4).relu()

    name = "Aten.relu.0.forward"
    _, (link,) = of(name, blank, blank)
    assert link.state is not None and (link.state.status, link.state.undefined, link.said) == ("unknown", True, None)
    for bodies, text in (
        ((blank, filled), "it reads memory that nothing had written, in the baseline it was"),
        ((filled, blank), "it reads memory that was written, in the baseline it was not"),
    ):
        _, (link,) = of(name, *bodies)
        assert link.said is not None and (link.said.status, link.said.guilty) == ("different", True)
        assert link.text == text
        assert link.state is not None and link.state.status == "different" and not link.state.undefined


def test_precisions_of_what_comes_from_outside_are_noted(of: Of) -> None:
    half = X.bfloat16()
    knows, links = of("Aten.relu.0.forward", lambda: half.relu(), lambda: X.relu())
    assert knows.sources.precisions == {("bfloat16", "float32")}
    assert links[0].state == State("same"), "equal in the coarser one"
    knows, _ = of("Aten.relu.0.forward", lambda: (X * 2).bfloat16().relu(), lambda: (X * 2).relu())
    assert knows.sources.precisions == set(), "a cast of the program's is none"


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


def test_a_state_has_the_numbers_of_what_was_found() -> None:
    found = state_from(Judgement("within"), apart(0.25, rmse=0.125), 3)
    assert found == State("within", 0.25, 3, 0.125)
    assert state_from(Judgement("same"), Closeness("hash", bitwise=True)) == State("same", 0.0, 0, 0.0)
    assert state_from(Judgement("different"), Closeness("statistic", error=0.5)).noise == 0.0


def linked(call: Call, close: Closeness, state: State | None) -> Link:
    return Link("input.0", call.outputs, call.outputs, close, state)


def test_links_together(record: Callable[..., Any]) -> None:
    call = record(lambda: X + Y)["Aten.add.0.forward"]
    same, near = linked(call, apart(0.0), State("same", 0.0, 5)), linked(call, apart(0.1), State("within", 0.1, 2, 0.3))
    assert inputs_from([]).worst == "same"
    both = inputs_from([same, near])
    assert (both.worst, both.error, both.depth, both.noise) == ("within", 0.1, 5, 0.3)
    assert both.same_shapes and both.same_dtypes and not both.undefined
    opened = linked(call, apart(0.7), None)
    found = inputs_from([same, opened, near])
    assert (found.worst, found.error) == ("different", 0.7), "what is open counts as different"
    assert list(open_links([same, opened, near])) == [opened]
    assert inputs_from([linked(call, Closeness("tensor"), None)]).error == 0.0
    reshaped = linked(call, Closeness("none", shape=((4,), (5,))), State("same"))
    assert not inputs_from([same, reshaped]).same_shapes and inputs_from([same, reshaped]).same_dtypes
    cast = linked(call, Closeness("tensor", dtype=("float16", "float32")), State("same"))
    assert not inputs_from([same, cast]).same_dtypes and inputs_from([same, cast]).same_shapes
    assert inputs_from([same, linked(call, apart(0.0), State("unknown", undefined=True))]).undefined


def test_moments_go_with_a_counterpart_of_their_shape(record: Callable[..., Any]) -> None:
    """Where two calls are no pair, those behind the one are not taken for those behind the other, however near."""
    moments, params = (X, X * (1 + 2**-23)), (X * 10, X * 11)

    def updated(number: int) -> object:
        return params[number] - moments[number]

    for number in (0, 1):
        knows = knowledge(record(lambda: updated(0)), record(lambda number=number: updated(number)), exact=False)
        given = [[v for _, v in rank["Aten.sub.0.forward"].input_values()] for rank in (knows.target, knows.baseline)]
        if number == 0:
            knows.known.keep(given[0][0], given[1][0], State("same"))
        results = [rank["Aten.sub.0.forward"].outputs for rank in (knows.target, knows.baseline)]
        knows.regions.compare([results[0]], [results[1]])
        assert knows.known.is_known(0, given[0][1]) == (number == 0)


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


def test_parameters_that_a_fused_op_reads_go_by_their_names(record: Callable[..., Any]) -> None:
    models = [Norm(fused) for fused in (True, False)]
    ranks = [record(lambda m=m: m(torch.stack((X, Y))).square().sum().backward(), m) for m in models]
    knows = knowledge(*ranks, exact=False)
    read = [call.inputs[0][2] for call in ranks[0].calls.filter(op="aten::native_layer_norm")]
    assert len(read) == 2
    for number, weight in enumerate(read):
        knows.links.tie(0, weight)
        partner = knows.known.partner(0, weight)
        assert partner is not None and torch.equal(partner.tensor(), models[1].weights[number])


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
