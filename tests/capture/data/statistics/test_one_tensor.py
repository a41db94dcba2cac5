"""Statistics against a float64 reference, for every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.capture.data.statistics import one_tensor
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.config import STATISTICS
from tests.capture.bits import calls

Record = Callable[..., Any]

FLOATS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    *(["float8_e8m0fnu"] if hasattr(torch, "float8_e8m0fnu") else []),
]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PRECISION = {"float64": 1e-12}
COUNTS = ("nan", "posinf", "neginf", "zero", "negative", "positive")


def statistics(record: Record, tensor: Tensor, **config: Any) -> Any:
    """What the dump says of `tensor`, as the input of an op."""
    rank = record(lambda: tensor.detach(), level="aten", **{"data": "statistic", **config})
    return calls(rank, kind="aten")[-1].inputs[0][0].stats


def reference(tensor: Tensor) -> dict[str, float]:
    """The same in float64."""
    x = tensor.to(torch.float64).flatten()
    numbers = {"count": x.numel(), "min": x.min(), "max": x.max(), "mean": x.mean(), "l2norm": x.norm()}
    numbers["std"] = x.std() if x.numel() > 1 else None
    counts = {
        "nan": x.isnan().sum(), "posinf": (x == math.inf).sum(), "neginf": (x == -math.inf).sum(),
        "zero": (x == 0).sum(), "negative": (x < 0).sum(), "positive": (x > 0).sum(),
    }  # fmt: skip
    return {name: value if value is None else float(value) for name, value in (numbers | counts).items()}


def check(found: Any, expected: dict[str, float], relative: float, scale: float) -> None:
    """`scale` is the size of the elements, against which a mean near 0 is judged."""
    for name in ("count", "min", "max", *COUNTS):
        value = getattr(found, name)
        same = value == expected[name] or (value is not None and math.isnan(value) and math.isnan(expected[name]))
        assert same, f"{name} is {value}, expected {expected[name]}"
    for name in ("mean", "l2norm", "std"):
        value = getattr(found, name)
        if expected[name] is None:
            assert value is None, f"{name} is {value}, expected None"
            continue
        assert value is not None, f"{name} is None, expected {expected[name]}"
        if math.isnan(expected[name]):
            assert math.isnan(value), f"{name} is {value}, expected NaN"
        else:
            assert value == pytest.approx(expected[name], rel=relative, abs=relative * scale), name


def sample_of(name: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    if name.startswith("float8_e8m0"):
        return torch.randn(n, generator=generator).abs().to(getattr(torch, name))
    x = torch.randn(n, generator=generator)
    x[:: max(1, n // 3)] = 0
    return x.to(getattr(torch, name))


@pytest.mark.parametrize("n", [1, 2, 1000, 300_007])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(record: Record, name: str, n: int) -> None:
    x = sample_of(name, n)
    check(statistics(record, x), reference(x), PRECISION.get(name, 1e-5), 1.0)


@pytest.mark.parametrize(
    "special", [math.nan, math.inf, -math.inf, (math.inf, -math.inf), (math.nan, math.inf, -math.inf)]
)
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("n", [10, 200_000])
def test_nan_and_infinities(record: Record, name: str, special: Any, n: int) -> None:
    x = sample_of("float32", n)
    for i, value in enumerate(special if isinstance(special, tuple) else (special,)):
        x[i + 1 :: n // 3] = value
    x = x.to(getattr(torch, name))
    found, expected = statistics(record, x), reference(x)
    check(found, expected, 1e-5, 1.0)


def test_float16_does_not_overflow(record: Record) -> None:
    x = torch.full((4096,), 6e4, dtype=torch.float16)
    x[::2] = -6e4
    x[0] = 6e4
    check(statistics(record, x), reference(x), 1e-6, 1e3)
    x = x.abs()
    found = statistics(record, x)
    assert found.mean == pytest.approx(6e4, rel=1e-3)
    assert math.isfinite(found.std) and found.l2norm == pytest.approx(reference(x)["l2norm"], rel=1e-6)


@pytest.mark.parametrize("size", [1e30, 3e38, 1e-30])
def test_bfloat16_neither_overflows_nor_underflows(record: Record, size: float) -> None:
    x = torch.full((1000,), size, dtype=torch.bfloat16)
    found, expected = statistics(record, x), reference(x)
    assert found.l2norm == pytest.approx(expected["l2norm"], rel=1e-5)
    assert found.mean == pytest.approx(expected["mean"], rel=1e-5)


def test_bfloat16_mean_keeps_its_digits(record: Record) -> None:
    x = torch.ones(1_000_000, dtype=torch.bfloat16)
    x[::1000] = 2
    assert statistics(record, x).mean == pytest.approx(1.001, rel=1e-6)


def test_small_numbers_of_float16(record: Record) -> None:
    x = torch.full((500_000,), 6e-8, dtype=torch.float16)
    check(statistics(record, x), reference(x), 1e-4, 0)


def test_std_far_from_zero(record: Record) -> None:
    """E[x^2] - E[x]^2 in float32 would lose all digits here."""
    x = 1000 + 0.01 * torch.randn(200_000)
    assert statistics(record, x).std == pytest.approx(reference(x)["std"], rel=1e-3)


def test_constant_tensor_has_no_spread(record: Record) -> None:
    assert statistics(record, torch.full((300_000,), 0.1)).std == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", INTS)
def test_ints(record: Record, name: str) -> None:
    dtype = getattr(torch, name)
    limits = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 5, 100, 0] + ([-3, -100] if limits.min < 0 else []), dtype=dtype)
    check(statistics(record, x), reference(x), 1e-12, 1.0)


@pytest.mark.parametrize("name", INTS)
def test_limits_of_ints_are_exact(record: Record, name: str) -> None:
    dtype = getattr(torch, name)
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, limits.max - 1], dtype=dtype)
    found = statistics(record, x)
    assert (found.min, found.max) == (limits.min, limits.max)
    exact = (limits.min + 2 * limits.max - 1) / 3
    assert found.mean == pytest.approx(exact, rel=1e-9)
    assert found.l2norm == pytest.approx(math.sqrt(limits.min**2 + limits.max**2 + (limits.max - 1) ** 2), rel=1e-9)


def test_sum_of_ints_does_not_wrap(record: Record) -> None:
    x = torch.full((1000,), 2**62, dtype=torch.int64)
    found = statistics(record, x)
    assert found.mean == pytest.approx(2.0**62, rel=1e-12)
    assert found.l2norm == pytest.approx(2.0**62 * math.sqrt(1000), rel=1e-9)
    assert statistics(record, torch.full((1000,), 127, dtype=torch.int8)).mean == 127


def test_bool(record: Record) -> None:
    x = torch.tensor([True, False, True, True])
    found = statistics(record, x)
    assert (found.count, found.min, found.max, found.mean) == (4, 0, 1, 0.75)
    assert (found.zero, found.positive, found.negative, found.nan) == (1, 3, 0, 0)
    assert found.l2norm == pytest.approx(math.sqrt(3))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex(record: Record, dtype: torch.dtype) -> None:
    x = torch.tensor([3 + 4j, -1 - 1j, 0j, 5j], dtype=torch.complex128).to(dtype)
    found, size = statistics(record, x), x.to(torch.complex128).abs()
    assert found.count == 4
    assert (found.min, found.max) == (0, pytest.approx(5))
    assert complex(found.mean) == pytest.approx((2 + 8j) / 4)
    assert found.l2norm == pytest.approx(size.norm().item(), rel=1e-6)
    assert found.std == pytest.approx(x.to(torch.complex128).std().item(), rel=1e-5)
    assert found.zero == 1 and found.nan == 0


def test_complex_nan_and_infinity(record: Record) -> None:
    x = torch.tensor([complex(math.nan, 1), complex(1, math.inf), 1 + 1j], dtype=torch.complex64)
    found = statistics(record, x)
    assert found.nan == 1
    assert math.isnan(found.max) and math.isnan(found.l2norm)


def test_complex32_does_not_overflow(record: Record) -> None:
    x = torch.view_as_complex(torch.full((100, 2), 6e4, dtype=torch.float16))
    found = statistics(record, x)
    assert found.l2norm == pytest.approx(60000 * math.sqrt(200), rel=1e-3)
    assert complex(found.mean) == pytest.approx(60000 + 60000j, rel=1e-3)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty(record: Record, name: str, shape: tuple[int, ...]) -> None:
    found = statistics(record, torch.empty(shape, dtype=getattr(torch, name)))
    assert found.count == 0
    assert (found.min, found.max, found.mean, found.std) == (None, None, None, None)
    assert found.l2norm == 0
    assert all(not getattr(found, name) for name in COUNTS)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool", "float8_e5m2"])
def test_scalar(record: Record, name: str) -> None:
    x = torch.tensor(1.0).to(getattr(torch, name))
    found = statistics(record, x)
    assert (found.count, found.min, found.max, found.mean, found.l2norm, found.std) == (1, 1, 1, 1, 1, None)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.view(100, 120).t(),
    "every_third": lambda x: x[::3],
    "column": lambda x: x.view(100, 120)[:, 5],
    "expanded": lambda x: x[:7].view(7, 1).expand(7, 30),
    "part": lambda x: x[100:200],
    "channels_last": lambda x: x.view(10, 10, 12, 10).contiguous(memory_format=torch.channels_last),
    "overlapping": lambda x: x.as_strided((50, 4), (2, 1)),
    "flipped_channels": lambda x: (
        x.view(10, 10, 12, 10).contiguous(memory_format=torch.channels_last).permute(2, 0, 3, 1)
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_count_their_own_elements(record: Record, view: str) -> None:
    x = VIEWS[view](sample_of("float32", 12000))
    check(statistics(record, x), reference(x), 1e-5, 1.0)


def test_conjugate_view(record: Record) -> None:
    x = torch.randn(100, dtype=torch.complex64)
    assert complex(statistics(record, x.conj()).mean) == pytest.approx(x.mean().conj().item(), rel=1e-4)
    negative = x.conj().imag
    assert negative.is_neg()
    check(statistics(record, negative), reference(negative.resolve_neg()), 1e-5, 1.0)


def test_view_that_covers_its_storage_after_a_write(record: Record) -> None:
    """Shared statistics must not outlive a write."""
    x = torch.zeros(4, 4)

    def body() -> None:
        x.t().detach()
        x[0, 0] = 9
        x.t().detach()

    rank = record(body, data="full", level="aten")
    detached = calls(rank, kind="aten", op="aten::detach")  # two of a torch that detaches twice under a mode
    first, last = (detached[n].inputs[0][0] for n in (0, -1))
    assert first.stats.max == 0 and last.stats.max == 9
    assert first.hash != last.hash


def test_selected_statistics(record: Record) -> None:
    found = statistics(record, torch.tensor([1.0, -2.0]), statistics=("max", "zero"))
    assert (found.max, found.zero) == (1, 0)
    assert set(found) == {"max", "zero"}


@pytest.mark.parametrize(
    "chosen", [("mean",), ("l2norm",), ("std",), ("nan",), ("min", "nan"), ("count",), ("positive", "negative")]
)
def test_each_selection_alone_is_right(record: Record, chosen: tuple[str, ...]) -> None:
    x = sample_of("float32", 1000)
    found, expected = statistics(record, x, statistics=chosen), reference(x)
    assert set(found) == set(chosen)
    for name in chosen:
        assert getattr(found, name) == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(
    "dtype",
    [torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.float32, torch.float64, torch.complex64],
)
def test_two_elements_have_a_spread(dtype: torch.dtype) -> None:
    with quiet():
        assert one_tensor.compute(torch.tensor([1, 4], dtype=dtype), ("std",)) == [pytest.approx(1.5 * math.sqrt(2))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("near", "spread"), [(1e3, 1e-2), (-1e6, 1.0), (3e38, 1e34), (1e-30, 1e-33), (5.0, 100.0)])
def test_std_of_many_elements_far_from_zero(dtype: torch.dtype, near: float, spread: float) -> None:
    x = (near + spread * torch.randn(100_000, dtype=torch.float64)).to(dtype)
    with quiet():
        found = one_tensor.compute(x, ("mean", "l2norm", "std"))
    wide = x.double()
    expected = [wide.mean().item(), (wide / near).norm().item() * abs(near), (wide - near).std().item()]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [3, 4097, 16_385, 131_073, 300_001])
def test_elements_whose_squares_are_beyond_float64(record: Record, dtype: torch.dtype, n: int) -> None:
    x = torch.zeros(n, dtype=dtype)
    x[-1] = 1e200  # alone in its row or chunk
    found = statistics(record, x)
    assert (found.max, found.l2norm, found.std, found.zero, found.posinf) == (1e200, math.inf, math.inf, n - 1, 0)
    assert abs(found.mean) == pytest.approx(1e200 / n)


def test_spread_of_elements_whose_squares_are_beyond_float64(record: Record) -> None:
    x = torch.full((100_000,), 1e200, dtype=torch.float64)
    x[::2] = 1e200 + 1e190
    found = statistics(record, x)
    assert found.mean == pytest.approx(1e200)
    assert math.isinf(found.l2norm) and math.isinf(found.std)  # the squares of the differences are beyond it too
    x[0] = -math.inf
    assert math.isnan(statistics(record, x).std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_signs_of_many_elements_count(dtype: torch.dtype) -> None:
    n = 1 << 18
    parts = [torch.empty(n).uniform_(*limits) for limits in ((0.5, 1.0), (-1.0, -0.5), (0.0, 1.0), (-1.0, 1.0))]
    x = torch.cat([*parts, torch.tensor([-3.0, 0.0, 2.0])]).to(dtype)
    x[2 * n : 3 * n : 100] = 0
    x[n + 5] = math.nan
    x[n + 7] = -math.inf
    with quiet():
        found = dict(zip(STATISTICS, one_tensor.compute(x, STATISTICS), strict=True))
    expected = reference(x)
    assert {name: found[name] for name in COUNTS} == {name: expected[name] for name in COUNTS}
    assert math.isnan(found["min"]) and math.isnan(found["max"])
