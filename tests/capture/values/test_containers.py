"""Which containers are entered, by which keys, and where that ends."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.values.containers import DEEPEST, is_mapping, is_too_deep, items_of, tensors_in

Pair = namedtuple("Pair", "first second")


@dataclass
class Options:
    scale: Any
    mask: Any = None
    later: Any = field(init=False)  # never set


@pytest.mark.parametrize(
    "item", [{}, OrderedDict(a=1), UserDict(a=1), Options(1)], ids=lambda item: type(item).__name__
)
def test_mappings_and_dataclasses_are_entered_by_keys(item: Any) -> None:
    assert is_mapping(item)


@pytest.mark.parametrize("item", [[], (), Options, "text", torch.ones(1), {1}], ids=str)
def test_others_are_not(item: Any) -> None:
    assert not is_mapping(item)


def test_keys_are_texts_or_integers() -> None:
    assert items_of({"a": 1, 2: 3, True: 4, (1, 2): 5, None: 6}) == [
        ("a", 1), (2, 3), ("True", 4), ("(1, 2)", 5), ("None", 6),
    ]  # fmt: skip


def test_of_a_dataclass_the_fields_in_order_also_one_that_was_never_set() -> None:
    assert items_of(Options(2)) == [("scale", 2), ("mask", None), ("later", None)]


def test_tensors_are_found_with_their_paths_in_order() -> None:
    a, b, c, d = (torch.ones(1) for _ in range(4))
    found = list(tensors_in([a, {"x": (b, 3), 4: "text"}, Options(c, mask=[None]), Pair(1, d)]))
    assert [path for path, _ in found] == [(0,), (1, "x", 0), (2, "scale"), (3, 1)]
    assert all(one is other for (_, one), other in zip(found, (a, b, c, d), strict=True))
    assert list(tensors_in(a)) == [((), a)] and list(tensors_in({1, 2})) == []


def test_a_tensor_twice_is_found_twice() -> None:
    x = torch.ones(1)
    assert [path for path, _ in tensors_in((x, x))] == [(0,), (1,)]


def test_a_container_in_itself_is_entered_once() -> None:
    x = torch.ones(1)
    inside: dict[str, Any] = {"x": x}
    inside["self"] = [inside]
    assert [path for path, _ in tensors_in(inside)] == [("x",)]
    shared = [x]
    assert [path for path, _ in tensors_in([shared, shared])] == [(0, 0), (1, 0)], "twice side by side is no circle"


@pytest.mark.parametrize(("depth", "found"), [(DEEPEST, 1), (DEEPEST + 1, 0)])
def test_so_deep_and_no_deeper(depth: int, found: int) -> None:
    item: Any = torch.ones(1)
    for _ in range(depth):
        item = [item]
    assert len(list(tensors_in(item))) == found


def test_the_outermost_is_never_too_deep() -> None:
    item: list[Any] = []
    assert not is_too_deep(item, ())
    assert not is_too_deep(item, (1, 2))
    assert is_too_deep(item, (1, id(item)))
    assert not is_too_deep(item, tuple(range(1, DEEPEST))) and is_too_deep(item, tuple(range(1, DEEPEST + 1)))


class Lazy(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("its entries are fetched when the program asks")


class LazyPair(tuple[Any, ...]):
    __iter__ = Lazy.__iter__


class LazyDict(dict[Any, Any]):
    __iter__ = keys = values = items = Lazy.__iter__

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("missing")


class Batch(Mapping[str, Any]):
    """Draws a field whenever somebody asks for it."""

    def __iter__(self) -> Any:
        return iter(("noise",))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Tensor:
        return torch.randn(3)


class LazyUserDict(UserDict[Any, Any]):
    __iter__ = keys = values = items = Lazy.__iter__  # type: ignore[assignment]
    __getitem__ = LazyDict.__getitem__


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("none")


def test_a_program_s_own_containers_are_entered_without_its_code() -> None:
    x = torch.ones(1)
    own = (Lazy([x]), (0,)), (LazyPair((x,)), (0,)), (LazyDict(a=x), ("a",)), (LazyUserDict(a=x), ("a",))
    for item, path in own:
        assert list(tensors_in(item)) == [(path, x)]
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert items_of(ordered) == [("b", 2), ("a", 1)]
    broken = UserDict(a=1)
    broken.data = None  # type: ignore[assignment]
    assert items_of(broken) is None and list(tensors_in(broken)) == []


def test_a_mapping_that_draws_what_it_is_asked_for_is_not_asked(tmp_path: Path) -> None:
    """It was entered: the program went on with other random numbers."""
    batch = Batch()
    assert not is_mapping(batch) and list(tensors_in([batch])) == []

    def drawn() -> Tensor:
        torch.manual_seed(0)
        return TakesNoise()(batch)

    bare = drawn()
    with DumpMode(DumpConfig(tmp_path / "dump")):
        assert torch.equal(drawn(), bare)
    calls = open_dump(tmp_path / "dump").step(0).rank(0).calls
    assert "test_containers.Batch" in next(str(call.inputs) for call in calls if call.kind == "module")


class TakesNoise(nn.Module):
    def forward(self, given: Batch) -> Tensor:
        return given["noise"] * 2


class Takes(nn.Module):
    def forward(self, x: Tensor, given: object) -> Tensor:
        return x * 2


@pytest.mark.parametrize(
    "given",
    [Lazy([1]), LazyPair((1,)), LazyDict(a=1), LazyUserDict(a=1), Batch(), {NoRepr(): 1}, slice(NoRepr(), None)],
    ids=lambda item: type(item).__name__,
)
def test_a_container_that_raises_is_the_program_s_own_affair(tmp_path: Path, given: object) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump")):
        Takes()(torch.ones(2), given)
    assert "Aten.mul.0.forward" in {call.name for call in open_dump(tmp_path / "dump").step(0).rank(0).calls}
