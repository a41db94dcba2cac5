"""How close two values are by the best data that both have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.distance.value_distance import Closeness, closeness, same_bits, stride_class
from aten_dump.dump import Value
from aten_dump.store import records as r
from tests.dump.building import STATISTICS, Builder

X = torch.tensor([1.0, -2.0, 3.0, 4.0])


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Value]:
    """make(tensor, stats=..., hash=..., config=...): a value of a recording of its own."""
    count = iter(range(1000))

    def value(
        tensor: torch.Tensor,
        stats: dict[str, float | None] | None = None,
        hash: int | None = None,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> Value:
        b = Builder(tmp_path / str(next(count)), config=config)
        number = b.value(tensor, **options)
        if stats is not None:
            b.emit(r.Statistics(r.STATISTICS, number, [stats.get(name) for name in STATISTICS]))
        if hash is not None:
            b.emit(r.Hash(r.HASH, number, bytes([hash] * 8)))
        return open_dump(b.finish()).rank(0, 0).value_by_id(number)

    return value


Make = Callable[..., Value]


def stats(**changes: float) -> dict[str, float | None]:
    """Return the statistics of X."""
    known = {"count": 4, "min": -2.0, "max": 4.0, "mean": 1.5, "l2norm": math.sqrt(30), "std": 2.29, "nan": 0}
    return {**known, "posinf": 0, "neginf": 0, "zero": 0, "negative": 1, "positive": 3, **changes}


# -- which data decide ---------------------------------------------------------------------------------------------


def test_equal_bytes_are_told_by_the_index(make: Make) -> None:
    one, other = make(X), make(X.clone())
    assert same_bits(one, other)
    assert closeness(one, other) == closeness(one, other, data=False) == Closeness("tensor", True, 0.0)


def test_other_bytes_are_measured(make: Make) -> None:
    found = closeness(make(X * 2), make(X))
    assert (found.level, found.bitwise, found.nonfinite, found.known) == ("tensor", False, False, True)
    assert found.error == 1.0 and found.metrics is not None and found.metrics.max_abs == 4.0
    assert closeness(make(torch.tensor([1.0, math.nan])), make(torch.tensor([1.0, 2.0]))).nonfinite


def test_bytes_are_not_read_where_that_is_switched_off(make: Make) -> None:
    found = closeness(make(X * 2), make(X), data=False)
    assert (found.level, found.known) == ("none", False)
    assert found.reason
    both = make(X * 2, stats=stats(max=8.0)), make(X, stats=stats())
    assert closeness(*both).level == "tensor" and closeness(*both, data=False).level == "statistic"


def test_hashes_decide_before_bytes_are_read(make: Make) -> None:
    equal = closeness(make(X, hash=1, store=None), make(X, hash=1, store=None))
    assert (equal.level, equal.bitwise, equal.error) == ("hash", True, 0.0)
    other = closeness(make(X, hash=1, store=None), make(X, hash=2, store=None))
    assert (other.level, other.bitwise, other.error, other.known) == ("hash", False, None, True)
    assert closeness(make(X * 2, hash=1), make(X, hash=2)).level == "tensor", "which tell more"
    assert closeness(make(X, hash=1, store="compact"), make(X, hash=1)).level == "tensor"


def test_hashes_of_other_kinds_or_dtypes_tell_nothing(make: Make) -> None:
    here = make(X, hash=1, store=None)
    assert closeness(here, make(X, hash=1, store=None, config={"hash": "md5"})).level == "none"
    assert closeness(here, make(X.double(), hash=1, store=None)).level == "none"
    assert closeness(here, make(X, hash=1, store=None, stats=stats())).bitwise


def test_what_lacks_is_named(make: Make) -> None:
    bare, full = make(X, store=None), make(X)
    assert closeness(bare, full).reason == "no data of the target's tensor was recorded"
    assert closeness(full, bare).reason == "no data of the baseline's tensor was recorded"
    assert closeness(full, bare).level == "none"


def test_shapes_are_told_before_anything_else(make: Make) -> None:
    found = closeness(make(X), make(X.view(2, 2)))
    assert (found.level, found.shape, found.known, found.error) == ("none", ((4,), (2, 2)), True, None)
    assert closeness(make(X), make(X)).shape is None


def test_dtypes_and_layouts_are_told_beside(make: Make) -> None:
    found = closeness(make(X.bfloat16()), make(X))
    assert (found.dtype, found.bitwise) == (("bfloat16", "float32"), True)
    x = torch.arange(6.0).view(2, 3)
    found = closeness(make(x), make(x.t().contiguous().t()))
    assert (found.layout, found.bitwise) == (("contiguous", "permuted"), True)
    assert closeness(make(X), make(X)).dtype is None and closeness(make(X), make(X)).layout is None


def test_what_has_no_contents(make: Make) -> None:
    plain = make(X)
    undefined, opaque = make(X, flags=r.UNDEFINED), make(X, flags=r.OPAQUE)
    assert closeness(undefined, plain).reason == "the target's tensor is undefined memory"
    assert closeness(plain, opaque).reason == "the baseline's tensor has no bytes of its own"
    empty = closeness(make(torch.empty(0), store=None), make(torch.empty(0), store=None))
    assert (empty.level, empty.bitwise, empty.error, empty.known) == ("none", True, 0.0, True)


def test_bytes_that_were_lost_are_told(tmp_path: Path) -> None:
    values = []
    for name, lost in (("a", 8), ("b", 0)):
        b = Builder(tmp_path / name)
        number = b.value(X * (2 if lost else 1))
        values.append(open_dump(b.finish(commit=False, lose_bytes=lost)).rank(0, 0).value_by_id(number))
    found = closeness(*values)
    assert found.level == "none" and found.reason and not found.known


# -- the same bytes by the index -----------------------------------------------------------------------------------


def test_the_index_must_say_the_same_of_both(make: Make) -> None:
    one = make(X)
    assert same_bits(one, one)
    assert not same_bits(one, make(X * 2)), "another checksum"
    assert not same_bits(one, make(X, store=None)) and not same_bits(make(X, store=None), one)
    assert not same_bits(one, make(X, store="compact")), "laid out otherwise"
    assert not same_bits(make(X, store="sample"), make(X, store="sample")), "only a part"
    assert not same_bits(one, make(X.view(torch.int32)))
    x = torch.arange(6.0)
    assert not same_bits(make(x.view(2, 3)), make(x.view(3, 2).t()))
    assert not same_bits(make(x[:3]), make(x[3:])), "another part of the same bytes"
    assert not same_bits(make(x[:3]), make(torch.arange(9.0)[:3])), "of other bytes"
    z = torch.tensor([1 + 2j])
    assert not same_bits(make(z), make(z, flags=r.CONJUGATE))
    assert not same_bits(make(X), make(X, flags=r.NEGATIVE))
    extra = {"extra": {"quantized": {"scheme": "per_tensor_affine", "scale": 1.0, "zero_point": 0}}}
    assert not same_bits(make(X, **extra), make(X))


# -- statistics ----------------------------------------------------------------------------------------------------


def by_statistics(make: Make, ours: dict[str, Any], theirs: dict[str, Any] | None = None, **options: Any) -> Closeness:
    return closeness(
        make(X, stats=ours, store=None, **options), make(X, stats=stats() if theirs is None else theirs, store=None)
    )


def test_equal_statistics_are_no_proof_of_equal_bits(make: Make) -> None:
    found = by_statistics(make, stats())
    assert (found.level, found.bitwise, found.error, found.reason) == ("statistic", False, 0.0, "equal statistics")
    nan = by_statistics(make, stats(min=math.nan, nan=1), stats(min=math.nan, nan=1))
    assert (nan.error, nan.nonfinite) == (0.0, False)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mean": 1.6}, 0.1 / math.sqrt(7.5)),
        ({"std": 2.39}, 0.1 / math.sqrt(7.5)),
        ({"l2norm": math.sqrt(30) + 0.1}, 0.1 / math.sqrt(30)),
        ({"max": 4.4}, 0.1),
        ({"min": -2.4}, 0.4 / math.sqrt(7.5)),
        ({"mean": 1.6, "max": 8.0}, 1.0),
        ({"zero": 1, "negative": 2, "positive": 0}, 0.0),
    ],
)
def test_the_greatest_difference_over_the_root_mean_square(make: Make, changes: Any, error: float) -> None:
    found = by_statistics(make, stats(**changes))
    assert found.error == pytest.approx(error) and not found.nonfinite
    assert (found.level, found.reason) == ("statistic", "")


@pytest.mark.parametrize("name", ["nan", "posinf", "neginf"])
def test_other_counts_of_nan_and_inf(make: Make, name: str) -> None:
    found = by_statistics(make, stats(**{name: 1}))
    assert found.nonfinite and found.error == 0.0


def test_ends_that_are_not_finite(make: Make) -> None:
    inf = math.inf
    assert not by_statistics(make, stats(max=inf, mean=1.6), stats(max=inf)).nonfinite
    assert by_statistics(make, stats(max=inf)).nonfinite
    assert by_statistics(make, stats(max=-inf, mean=1.6), stats(max=inf)).nonfinite
    assert not by_statistics(make, stats(max=math.nan, mean=1.6), stats(max=math.nan)).nonfinite
    assert by_statistics(make, stats(max=math.nan, mean=1.6)).nonfinite


def test_without_a_norm_the_ends_are_the_scale(make: Make) -> None:
    def few(**changes: float) -> dict[str, float | None]:
        return {"min": -2.0, "max": 4.0, "mean": 1.5, **changes}

    assert by_statistics(make, few(mean=1.9), few()).error == pytest.approx(0.1)
    nothing: dict[str, float | None] = {"mean": 0.0, "min": 0.0, "max": 0.0}
    assert by_statistics(make, {**nothing, "mean": 1e-9}, nothing).error == math.inf
    assert by_statistics(make, {**nothing, "mean": 1e-9, "min": None}, {**nothing, "min": None}).error == math.inf


def test_only_what_both_have_is_compared(make: Make) -> None:
    assert by_statistics(make, {"mean": 1.5, "max": 4.0}, {"mean": 1.5, "min": -7.0}).reason == "equal statistics"
    assert by_statistics(make, {"mean": 1.6, "max": 4.0}, {"mean": 1.5, "min": -7.0}).error != 0.0


def test_values_that_have_no_statistic_in_common_do_not_agree(make: Make) -> None:
    for ours in ({"mean": 1.5}, {"count": 4.0}, {"count": 4.0, "mean": 1.5}):
        found = by_statistics(make, ours, {"count": 4.0, "max": 9.0})
        assert (found.level, found.known, found.reason) == ("none", False, "both have no statistic in common")


def test_other_tools_round_statistics_otherwise(make: Make) -> None:
    theirs = {"config": {"source": "msprobe"}}
    near, far = stats(mean=1.5 + 2e-6), stats(mean=1.5 + 4e-6)
    assert by_statistics(make, near).error != 0.0
    assert by_statistics(make, near, **theirs).error == 0.0
    assert by_statistics(make, far, **theirs).error == pytest.approx(4e-6 / math.sqrt(7.5))


# -- how a tensor lies in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (torch.empty(2, 3), "contiguous"),
        (torch.empty(()), "contiguous"),
        (torch.empty(1, 1, 1), "contiguous"),
        (torch.empty(0, 3).t(), "contiguous"),
        (torch.empty(1, 3).t(), "contiguous"),
        (torch.empty(2, 3).t(), "permuted"),
        (torch.empty(2, 4)[:, :3], "with holes"),
        (torch.empty(2, 4)[:, :3].t(), "permuted, with holes"),
        (torch.empty(8)[::2], "with holes"),
        (torch.empty(1, 3).expand(2, 3), "expanded"),
        (torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), "channels_last"),
        (torch.empty(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d), "channels_last"),
        (torch.empty(2, 3, 4, 5).permute(0, 1, 3, 2), "permuted"),
        (torch.empty(2, 3, 4).permute(0, 2, 1), "permuted"),
        (torch.empty(2, 4, 6, 3)[..., :2].permute(0, 3, 1, 2), "permuted, with holes"),
    ],
)
def test_classes_of_strides(make: Make, tensor: torch.Tensor, name: str) -> None:
    assert stride_class(make(tensor, store=None)) == name


def test_sparse_layouts_are_classes_of_their_own(make: Make) -> None:
    assert stride_class(make(X, extra={"layout": "sparse_coo"})) == "sparse_coo"
