"""Buffers of ``torch.empty`` that are filled piece by piece: honest pairs agree, and what is wrong behind is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import compare
from aten_dump.analysis.comparison import Comparison
from tests.analysis.by_distance.steps import record, seeded
from tests.analysis.transformer import OtherDevice
from tests.analysis.wrong_ops import Wrong
from tests.sampling import every_second

A = torch.ops.aten
Program = Callable[[], object]
EMPTY = (A.empty.memory_format, A.empty_like.default, A.new_empty.default, A.new_empty_strided.default)
GARBAGE = [(0.0, 5.0), (1e30, -3.0), (float("nan"), 0.0), (2.0, 2.0)]


class Lies(TorchDispatchMode):
    """Puts a number where memory is not written."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.fill_(self.number if made.is_floating_point() else 3) if func in EMPTY else made


class Sides:
    """both(target, baseline): the comparison of two programs in whose memory other garbage lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        target: Program,
        baseline: Program,
        garbage: tuple[float, float] = (1e30, 7.0),
        below: tuple[TorchDispatchMode, ...] = (),
        **config: Any,
    ) -> Comparison:
        paths = []
        for name, program, lies, modes in (
            ("target", target, garbage[0], below),
            ("baseline", baseline, garbage[1], ()),
        ):
            with ExitStack() as stack:
                for mode in (Lies(lies), *modes):
                    stack.enter_context(mode)
                paths.append(record(self.folder / name, lambda step, program=program: program(), **config))
        return compare(*paths)


@pytest.fixture
def both(tmp_path: Path) -> Sides:
    return Sides(tmp_path)


def masked(h: Tensor) -> Tensor:
    y, m = torch.empty_like(h), torch.arange(12) % 3 > 0
    y[m] = h[m]
    y[~m] = 2 * h[~m]
    return y


def half_masked(h: Tensor) -> Tensor:
    y, m = torch.empty_like(h), torch.arange(12) % 3 > 0
    y[m] = h[m]
    return y


def permuted(h: Tensor) -> Tensor:
    order = seeded(12, seed=5).argsort()
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(12)
    return h[inverse][torch.empty_like(order).scatter_(0, order, torch.arange(12))]


def copied(h: Tensor) -> Tensor:
    y = torch.empty_like(h)
    y[:4] = h[:4]
    return y.index_copy_(0, torch.arange(4, 12), h[4:])


def padded(h: Tensor) -> Tensor:
    y = h.new_empty(20, 16)
    y[:12] = h
    return F.gelu(F.layer_norm(y, (16,)))[:12]


def packed(h: Tensor) -> Tensor:
    lengths = torch.tensor([3, 4, 2])
    rows = nn.utils.rnn.pack_padded_sequence(h.view(3, 4, 16), lengths, batch_first=True, enforce_sorted=False)
    found = nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=4)[0]
    return found.reshape(12, 16)


FILLED = [masked, permuted, copied, padded, packed]


def program(fill: Callable[[Tensor], Tensor], eps: float = 1e-5, *, trained: bool = True) -> Program:
    def run() -> None:
        torch.manual_seed(0)
        y = F.layer_norm(fill(nn.Linear(16, 16)(seeded(12, 16))), (16,), eps=eps)
        if trained:
            (y * seeded(12, 16, seed=3)).square().sum().backward()
        else:
            F.gelu(y)

    return run


@pytest.mark.parametrize("trained", every_second([True, False]))
@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
@pytest.mark.parametrize("fill", every_second(FILLED))
def test_equal_runs_are_the_same_whatever_lay_in_memory(
    both: Sides, fill: Callable[[Tensor], Tensor], garbage: tuple[float, float], trained: bool
) -> None:
    found = both(program(fill, trained=trained), program(fill, trained=trained), garbage)
    assert (found.verdict, found.cause) == ("same", None), found.answer()


@pytest.mark.parametrize("fill", every_second(FILLED))
def test_noise_agrees(both: Sides, fill: Callable[[Tensor], Tensor]) -> None:
    found = both(program(fill), program(fill), below=(OtherDevice(),))
    assert (found.verdict, found.cause) == ("within", None), found.answer()


@pytest.mark.parametrize("below", [(), (OtherDevice(),)], ids=["same", "other"])
@pytest.mark.parametrize("trained", every_second([True, False]))
@pytest.mark.parametrize("fill", every_second(FILLED))
def test_another_argument_behind_it_is_found(
    both: Sides, fill: Callable[[Tensor], Tensor], trained: bool, below: tuple[TorchDispatchMode, ...]
) -> None:
    found = both(program(fill, 1e-1, trained=trained), program(fill, trained=trained), below=below)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert "eps is 0.1, in the baseline 1e-05" in found.cause.text


@pytest.mark.parametrize(
    ("fill", "op", "n"),
    [
        (masked, A.index_put_.default, 0),
        (masked, A.index_put_.default, 1),
        (copied, A.index_copy_.default, 0),
        (padded, A.native_layer_norm.default, 0),
        (padded, A.gelu.default, 0),
    ],
)
def test_a_kernel_that_is_wrong_in_what_is_defined_is_found(
    both: Sides, fill: Callable[[Tensor], Tensor], op: Any, n: int
) -> None:
    def spoiled(result: Any) -> Any:
        flat = (result[0] if isinstance(result, tuple) else result).view(-1)
        flat[20] += 0.5
        return result

    found = both(program(fill), program(fill), below=(OtherDevice(), Wrong(op, n, result=spoiled)))
    assert found.cause is not None, found.answer()
    assert found.cause.row.place.op == op.name(), found.answer()


def test_what_one_side_does_not_fill_is_found(both: Sides, tmp_path: Path) -> None:
    for target, baseline in ((half_masked, masked), (masked, half_masked)):
        for trained in (True, False):
            found = both(program(target, trained=trained), program(baseline, trained=trained))
            assert found.exit_code == 1, found.answer()
            both.folder = tmp_path / str(len(list(tmp_path.iterdir())))


def test_what_nobody_fills_is_known_to_nobody(both: Sides, tmp_path: Path) -> None:
    found = both(program(half_masked), program(half_masked))
    assert (found.exit_code, found.cause) == (2, None), found.answer()
    assert "nobody knows loss" in found.answer()
    both.folder = tmp_path / "inference"
    summed = [lambda: half_masked(seeded(12, 16)).sum()] * 2
    found = both(*summed)
    assert (found.exit_code, found.cause) == (2, None), found.answer()
    assert "nobody knows Aten.sum.0.forward.output.0" in found.answer(), found.answer()


def test_zeros_in_place_of_memory_that_is_filled_at_once_make_no_difference(both: Sides, tmp_path: Path) -> None:
    def filled(new: Callable[[Tensor], Tensor]) -> Program:
        def at_once(h: Tensor) -> Tensor:
            order = torch.arange(12).flip(0)
            y = new(h)
            y[order] = h
            return y

        return program(at_once)

    found = both(filled(torch.zeros_like), filled(torch.empty_like))
    assert (found.exit_code, found.cause) == (0, None), found.answer()
    both.folder = tmp_path / "summed"
    found = both(program(lambda h: h + torch.zeros_like(h)), program(lambda h: h + torch.empty_like(h)))
    assert found.exit_code == 1
    assert found.cause is not None and "reads memory that was written, in the baseline it was not" in found.cause.text


@pytest.mark.parametrize("config", [{"data": "statistic"}, {"data": "hash"}, {"level": "api"}], ids=str)
@pytest.mark.parametrize("trained", [True, False])
def test_where_it_cannot_be_told_nothing_passes(
    both: Sides, tmp_path: Path, trained: bool, config: dict[str, Any]
) -> None:
    honest = program(masked, trained=trained)
    found = both(honest, honest, **config)
    assert (found.exit_code, found.cause) == (0, None), found.answer()
    both.folder = tmp_path / "eps"
    found = both(program(masked, 1e-1, trained=trained), honest, **config)
    assert found.exit_code in (1, 2), found.answer()
    assert found.exit_code == 1 or "nobody knows" in found.answer()


def test_an_argument_that_changes_a_workspace_alone_is_no_fault(both: Sides) -> None:
    """What lies beyond the lengths in the table of `_ctc_loss` is not written."""

    def loss(*, zeroes: bool) -> Program:
        def run() -> None:
            given = seeded(12, 3, 8).requires_grad_()
            labels = torch.randint(1, 8, (3, 3), generator=torch.Generator().manual_seed(1))
            lengths = torch.tensor([12, 10, 9]), torch.tensor([3, 3, 2])
            F.ctc_loss(given.log_softmax(-1), labels, *lengths, zero_infinity=zeroes).backward()

        return run

    def other(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        result[1][2, 11] = 3.0
        return result

    for below in ((), (OtherDevice(),)):
        wrong = Wrong(A._ctc_loss.Tensor, 0, result=other)
        found = both(loss(zeroes=True), loss(zeroes=False), below=(wrong, *below))
        assert (found.exit_code, found.cause) == (0, None), found.answer()
        both.folder = both.folder / "other"


class Stage(nn.Module):
    """A part of a model that first learns the shape of its result, as a stage of a pipeline does."""

    def __init__(self, *, learns: bool, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.line = nn.LayerNorm(8), nn.Linear(8, 4)
        self.learns, self.factor = learns, factor

    def layers(self, x: Tensor) -> Tensor:
        x = x - 0.5
        return self.line(self.norm(x.square())) * self.factor

    def forward(self, x: Tensor) -> Tensor:
        if self.learns:
            given = torch.empty(3, 8).requires_grad_()
            torch.autograd.grad(self.layers(given).square().sum(), given)
        return self.layers(x)


def stepped(path: Path, stage: Stage, held: float = float("nan")) -> Path:
    with Lies(held):
        return record(path, lambda step: stage(seeded(3, 8)).square().sum().backward(), stage)


@pytest.mark.parametrize("held", [float("nan"), 1e30], ids=["nan", "finite, and its square overflows"])
def test_a_forward_over_unwritten_memory_that_reaches_no_end_is_a_note(held: float, tmp_path: Path) -> None:
    plain, learning = (stepped(tmp_path / f"{learns}", Stage(learns=learns), held) for learns in (False, True))
    for target, baseline in ((learning, plain), (plain, learning)):
        found = compare(target, baseline)
        assert found.exit_code == 0, found.answer()
        assert any("it depends on memory that nothing had written" in note for note in found.all_notes)


def test_a_mistake_beside_a_forward_over_unwritten_memory_is_found(tmp_path: Path) -> None:
    plain, wrong = stepped(tmp_path / "plain", Stage(learns=False)), Stage(learns=True, factor=1.5)
    found = compare(stepped(tmp_path / "wrong", wrong), plain)
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.row.target is not None and found.cause.row.target.call.startswith("Aten.mul")
