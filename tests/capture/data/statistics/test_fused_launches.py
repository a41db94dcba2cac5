"""What Triton has compiled is launched directly the next time, with the same arguments, where this Triton lets it.

The kernels themselves: test_triton_kernel.py, and on a GPU tests/cuda.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

fused_launches = pytest.importorskip("aten_dump.capture.data.statistics.fused_launches", exc_type=ImportError)

STREAM = 7


class Kernel:
    """A kernel of Triton's: what it was asked to do, by way of Triton and directly."""

    def __init__(self, name: str, refuses: bool = False) -> None:
        self.__name__ = name
        self.asked: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []
        self.refuses = refuses
        self.function, self.packed_metadata = object(), object()

    def __getitem__(self, grid: tuple[int]) -> Any:
        def ask(elements: torch.Tensor, into: torch.Tensor, *numbers: Any, num_warps: int) -> Kernel:
            assert num_warps == fused_launches._WARPS and elements.dtype is not torch.bool
            self.asked.append((*grid, elements.data_ptr(), into.data_ptr(), *numbers))
            return self

        return ask

    def run(self, x: int, y: int, z: int, stream: int, function: object, packed: object, *rest: Any) -> None:
        if self.refuses:
            raise TypeError("function takes exactly 17 arguments (20 given)")
        assert (y, z, stream) == (1, 1, STREAM) and (function, packed) == (self.function, self.packed_metadata)
        assert rest[:3] == (None, None, None)
        self.direct.append((x, *rest[3:]))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    active = SimpleNamespace(get_current_device=lambda: -1, get_current_stream=lambda device: STREAM)
    monkeypatch.setattr(fused_launches, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(fused_launches, "_compiled", {})
    monkeypatch.setattr(fused_launches, "_refused", set())
    made = SimpleNamespace(reduce_one=Kernel("reduce_one"), reduce_rows=Kernel("reduce_rows"))
    monkeypatch.setattr(fused_launches, "triton_kernel", made)
    return made


INTO = torch.empty(fused_launches.PARTS, 1000, dtype=torch.float64, device="cpu")


def reduce(x: torch.Tensor, start: int = 0, signs: bool = False) -> int:
    programs: int = fused_launches.reduce(x, INTO, start, signs, False)
    return programs


def test_the_second_launch_is_direct_and_has_the_arguments_that_triton_would_have(kernels: Any) -> None:
    x = torch.zeros(5000, device="cpu")
    for start in (0, 10, 20):
        assert reduce(x, start) == 10
    one = kernels.reduce_one
    expected = [(10, x.data_ptr(), INTO.data_ptr(), start, 1000, 5000, 1, False, 512) for start in (0, 10, 20)]
    assert one.asked == expected[:1] and one.direct == expected[1:]


def test_what_triton_compiles_apart_is_kept_apart(kernels: Any) -> None:
    whole = torch.zeros(64, 33, device="cpu")
    kinds: list[tuple[torch.Tensor, bool]] = [
        (whole, False), (whole, True), (whole.view(-1)[1:], False), (whole.half(), False), (whole > 0, False),
    ]  # fmt: skip
    for x, signs in kinds:
        reduce(x, signs=signs)
    one = kernels.reduce_one
    assert (len(one.asked), len(one.direct)) == (5, 0)
    for x, signs in kinds:
        reduce(x, signs=signs)
    assert (len(one.asked), len(one.direct)) == (5, 5)
    rows = kernels.reduce_rows
    for columns in (20, 21, 20):
        assert reduce(whole[:, :columns]) > 0
    assert (len(rows.asked), len(rows.direct)) == (2, 1)
    assert rows.direct[0] == rows.asked[0]


def test_a_triton_that_takes_other_arguments_is_asked_each_time(kernels: Any) -> None:
    kernels.reduce_one.refuses = True
    x = torch.zeros(7, device="cpu")
    for _ in range(4):
        assert reduce(x) == 1
    assert (len(kernels.reduce_one.asked), len(kernels.reduce_one.direct)) == (4, 0)


def test_no_more_is_kept_than_so_many(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_launches, "_MOST_KEPT", 3)
    x = torch.zeros(64, 33, device="cpu")
    for columns in range(2, 30):
        reduce(x[:, :columns])
        assert len(fused_launches._compiled) <= 3


def test_programs_take_all_elements_between_them() -> None:
    for count in (1, 511, 512, 513, 512 * 512, 512 * 512 + 1, 10**9 + 7):
        blocks, programs = fused_launches.programs_of(count)
        each = blocks * fused_launches.BLOCK
        assert (programs - 1) * each < count <= programs * each and programs <= fused_launches.MOST_PROGRAMS
