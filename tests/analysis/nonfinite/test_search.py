"""Producers of NaN and Inf, told from those who pass them on and from masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, MissingDataError, open_dump
from aten_dump.analysis.nonfinite.search import NonFinite, find_nonfinite
from aten_dump.cli.main import main
from tests.models import build

INF = float("inf")
UPPER = torch.ones(4, 4).triu(1).bool()


def causal() -> Tensor:
    return torch.zeros(4, 4).masked_fill(UPPER, -INF)


def attention() -> None:
    scores = torch.randn(1, 2, 4, 4, requires_grad=True)
    (torch.softmax(scores + causal(), -1) * torch.randn(4, 4)).sum().backward()


def masked_in_place() -> None:
    scores = torch.randn(4, 4)
    flat = scores.view(16)  # a view from before the mask
    scores.masked_fill_(UPPER, -INF)
    torch.softmax((flat * 2).view(4, 4), -1)


def lowest_number() -> None:
    mask = torch.zeros(4, 4).masked_fill(UPPER, torch.finfo(torch.float32).min)
    torch.softmax(torch.randn(4, 4) + (mask + mask), -1)  # overflows to -inf: it is still a mask


def sdpa() -> None:
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, attn_mask=causal()).sum().backward()
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def least() -> None:
    torch.full((4,), INF).minimum(torch.randn(4)).sum()


def entirely_masked() -> None:
    scores = torch.randn(4, 4, requires_grad=True)
    mask = torch.full((4, 4), -INF)
    (torch.softmax(scores + mask, -1) * 2).sum().backward()


def division() -> None:
    x = torch.ones(4, requires_grad=True)
    (x / torch.tensor([1.0, 0.0, 1.0, 0.0]) * 2).sum()


def gradient_only() -> None:
    (torch.zeros(4, requires_grad=True).sqrt() * 0).sum().backward()


def half() -> None:
    (torch.full((4,), 200.0, dtype=torch.float16).square() * 2).sum()


def logarithm() -> None:
    torch.log(torch.tensor([1.0, -1.0])).sum()


def written_in_place() -> None:
    x = torch.tensor([1e38, 1.0])
    x.mul_(100)
    x[1:].sum()


def literal() -> None:
    (torch.ones(4).fill_(float("nan")) * 2).sum()


def infinite_literal() -> None:
    (torch.zeros(4) * INF).sum()


OUTSIDE = torch.tensor([1.0, float("nan")])


def from_outside() -> None:
    (OUTSIDE * 2).sum()


# name -> (program, op of the first cause, its phase, what `why` says)
CAUSES: dict[str, tuple[Callable[[], None], str, str, str]] = {
    "entirely masked": (entirely_masked, "aten::_softmax", "forward", "a row that is masked entirely"),
    "division": (division, "aten::div.Tensor", "forward", "a division by zero"),
    "gradient only": (gradient_only, "aten::div.Tensor", "backward", "a division by zero"),
    "half overflows": (half, "aten::mul.Tensor", "forward", "overflow of float16, whose greatest number is 65504"),
    "logarithm": (logarithm, "aten::log", "forward", "a logarithm of zero or less"),
    "in place": (written_in_place, "aten::mul_.Tensor", "forward", "overflow of float32"),
    "NaN as a literal": (literal, "aten::fill_.Scalar", "forward", "the program gave it NaN as a number"),
    "Inf as a literal": (infinite_literal, "aten::mul.Tensor", "forward", "0/0, or inf - inf"),
    "from outside": (from_outside, "aten::mul.Tensor", "forward", "came from outside"),
}


MASKS = [attention, masked_in_place, lowest_number, sdpa, least]


@pytest.mark.parametrize("program", [*MASKS, *(cause[0] for cause in CAUSES.values())], ids=lambda f: f.__name__)
def test_the_trigger_fires_where_the_search_finds_a_cause(
    record: Callable[..., Any], program: Callable[[], None], tmp_path: Path
) -> None:
    first = find_nonfinite(record(program, data="statistic")).first
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic", trigger="nonfinite")):
        program()
    dump = open_dump(tmp_path / "dump")
    notes = [note for step in dump.steps for note in dump.rank(step, 0).notes if note.code == "trigger"]
    assert [note.message.partition(" ")[0] for note in notes] == ([] if first is None else [first.op])


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_cause(record: Callable[..., Any], cause: str, data: str) -> None:
    program, op, phase, why = CAUSES[cause]
    found = find_nonfinite(record(program, data=data))
    assert found.first is not None
    assert (found.first.op, found.first.phase) == (op, phase)
    assert why in found.first.why
    assert found.first.source.startswith(f"{__file__}:")
    later = {event.call_id for event in (*found.producers, *found.propagators)} - {found.first.call_id}
    assert all(call > found.first.call_id for call in later)


@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize("program", MASKS, ids=lambda f: f.__name__)
def test_masks_are_no_cause(record: Callable[..., Any], program: Callable[[], None], data: str) -> None:
    found = find_nonfinite(record(program, data=data))
    assert found.masks
    assert (found.producers, found.outside, found.propagators) == ((), (), ())


def test_statistics_and_bytes_say_the_same(record: Callable[..., Any]) -> None:
    def kinds(found: NonFinite) -> list[tuple[str, str, list[tuple[int, int, int]]]]:
        events = [*found.producers, *found.propagators, *found.masks, *found.outside]
        return [
            (e.kind, e.name, [(s.contents.nan, s.contents.posinf, s.contents.neginf) for s in e.results])
            for e in events
        ]

    for program in (entirely_masked, gradient_only, half):
        by_statistics, by_bytes = (find_nonfinite(record(program, data=data)) for data in ("statistic", "tensor"))
        assert kinds(by_statistics) == kinds(by_bytes)
        assert kinds(by_bytes)
    least_known = find_nonfinite(record(division, data="statistic", statistics=("min", "max")))
    assert least_known.first is not None
    assert least_known.first.op == "aten::div.Tensor"


def test_a_model_that_breaks_in_its_second_layer(record: Callable[..., Any]) -> None:
    program = build("gpt2")
    with torch.no_grad():
        dict(program.model.named_parameters())["transformer.h.1.mlp.c_fc.bias"][3] = 3e38

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 100

    program.model.transformer.h[1].mlp.act = nn.Sequential(Scale(), nn.GELU())
    rank = record(lambda: program.loss(program.model).backward(), program.model, data="statistic")
    found = find_nonfinite(rank)
    assert found.first is not None
    assert found.first.module == "transformer.h.1.mlp.act.0"
    assert found.first.results[0].contents.posinf == 24
    assert [near.name for near in found.near_overflow][:1] == ["Aten.addmm.6.forward.output.0"]
    assert len(found.propagators) > 10


def test_near_overflow(record: Callable[..., Any]) -> None:
    def body() -> None:
        torch.full((3,), 100.0, dtype=torch.float16) * 300
        torch.zeros(4, 4).masked_fill(UPPER, torch.finfo(torch.float32).min)

    found = find_nonfinite(record(body))
    assert [(near.op, near.greatest) for near in found.near_overflow] == [("aten::mul.Tensor", 30000.0)]
    assert found.near_overflow[0].share == pytest.approx(30000 / 65504)
    assert find_nonfinite(record(body), near=0.9).near_overflow == ()


def test_calls_of_modules_are_enough(record: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(3e38)
    rank = record(lambda: model(torch.full((2, 4), 10.0)), model, level="module", data="statistic")
    found = find_nonfinite(rank)
    assert found.first is not None
    assert found.first.name == "Module.0.0.forward"


def test_the_command(record: Callable[..., Any]) -> None:
    def run(rank: Any, *options: str) -> Any:
        return CliRunner().invoke(main, ["nonfinite", str(rank.directory.parent.parent), *options])

    bad = run(record(entirely_masked, data="statistic"))
    assert bad.exit_code == 1
    assert "Aten._softmax.0.forward (aten::_softmax), output.0 has 16 NaN of 16 float32" in bad.stdout
    assert "test_search.py" in bad.stdout
    assert "propagator " not in bad.stdout
    assert "propagator " in run(record(entirely_masked), "--all").stdout
    good = run(record(attention, data="statistic"))
    assert good.exit_code == 0
    assert "made a NaN or Inf that was not a mask" in good.stdout
    blind = run(record(attention, data="structure"))
    assert blind.exit_code == 2
    assert 'record again with data="statistic"' in blind.output
    with pytest.raises(MissingDataError):
        find_nonfinite(record(attention, data="hash"))


def ctc(lengths: tuple[int, int] = (8, 7)) -> None:
    scores = nn.Linear(4, 5)(torch.randn(8, 2, 4)).log_softmax(2)
    F.ctc_loss(scores, torch.randint(1, 5, (2, 3)), torch.tensor(lengths), torch.tensor([3, 2])).backward()


def test_a_workspace_holds_nobody_s_numbers(record: Callable[..., Any]) -> None:
    found = find_nonfinite(
        record(ctc, data="tensor")
    )  # logarithms of zero lie in the second result, which its backward alone reads
    assert (found.first, found.masks) == (None, ())


def test_a_target_that_does_not_fit_is_told(record: Callable[..., Any]) -> None:
    found = find_nonfinite(record(lambda: ctc((2, 7)), data="tensor"))
    assert found.first is not None and found.first.why.startswith("a target that its input is too short for")
    assert [slot.name for slot in found.first.results] == ["output.0"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda x: x / 0, "a division by zero"),
        (lambda x: (x - 1) / 0.0, "a division by zero: 0/0"),
        (lambda x: x.clone().div_(0), "a division by zero"),
        (lambda x: torch._foreach_div([x], 0.0), "a division by zero"),
        (lambda x: x // 0, "a division by zero"),
        (lambda x: x % 0, "a division by zero"),
        (lambda x: (x - 1) / 1e-45 * 1e30 + (x * 3e38) / 0.5, "overflow of float32"),
        (lambda x: x.logit(), "a logit of 0, of 1"),
        (lambda x: torch.xlogy(x, x - 1), "a logarithm of zero or less: 0"),
        (lambda x: torch.linalg.inv_ex(torch.zeros(2, 2)), "a matrix that cannot be inverted"),
        (lambda x: F.layer_norm(x * 1e30, (3,)), "overflow of float32"),
        (lambda x: (x * 1e9).to(torch.float8_e5m2fnuz), "overflow of float8_e5m2fnuz"),
    ],
)
def test_why_a_number_that_python_holds_made_it(
    record: Callable[..., Any], program: Callable[[Tensor], object], why: str
) -> None:
    found = find_nonfinite(record(lambda: program(torch.ones(3)), data="statistic"))
    assert found.first is not None and found.first.kind == "producer"
    assert found.first.why.startswith(why), found.first.why


def late_zero() -> None:
    x = torch.ones(10)
    x[7] = 0
    (x.log() * 1).sum()


def test_the_first_elements_tell_nothing_of_the_rest(record: Callable[..., Any]) -> None:
    found = find_nonfinite(record(late_zero, data="tensor", sample=4))
    assert found.first is not None and found.first.op == "aten::sum", "the first that is known whole"
    assert found.first.why.startswith("it may only have passed it on, as nothing is known of all of input.0; if not: ")
    assert found.unknown == 3  # ones, log, mul
    whole = find_nonfinite(record(late_zero, data="tensor", sample=8))
    assert whole.first is not None and whole.first.op == "aten::log", "a sample that has it is enough"


@pytest.mark.parametrize("options", [{"data": "tensor", "max_bytes": 0}, {"statistics": ("mean",)}])
def test_where_nothing_is_known_nothing_is_said_to_be_fine(tmp_path: Path, options: dict[str, Any]) -> None:
    with DumpMode(DumpConfig(tmp_path / "d", **options)):
        late_zero()
    result = CliRunner().invoke(main, ["nonfinite", str(tmp_path / "d")])
    assert result.exit_code == 2
    assert "is known to have made a NaN or Inf" in result.output and "could be judged; record again" in result.output
