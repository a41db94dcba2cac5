"""Arguments that are not tensors, compared exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.flow.argument_differences import argument_differences
from aten_dump.dump import Call
from aten_dump.store import records as r
from tests.analysis.by_hand import one_call

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
CLAMP = ("self", "min", "max")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Call]:
    count = iter(range(100))

    def call(*given: Any, op: str = "aten::clamp", result: torch.Tensor = X, **options: Any) -> Call:
        names = options.pop("arguments", CLAMP)
        return one_call(tmp_path / str(next(count)), op, given, [result], arguments=names, **options)

    return call


def told(target: Call, baseline: Call) -> list[str]:
    return [str(difference) for difference in argument_differences(target, baseline)]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (0, 0, None),
        (0, 0.0, None),
        (0, 1, "min is 0, in the baseline 1"),
        (0.5, 0.5000001, "min is 0.5, in the baseline 0.5000001"),
        (math.nan, math.nan, None),
        (math.nan, 0.0, "min is nan, in the baseline 0.0"),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], "min is [1, 2], in the baseline [1, 3]"),
        ([1, 2], [1], "min is [1, 2], in the baseline [1]"),
        ([], [], None),
        ("a", "b", "min is a, in the baseline b"),
        (None, None, None),
        (None, 0, "min is None, in the baseline 0"),
    ],
)
def test_numbers_and_lists(make: Callable[..., Call], one: Any, other: Any, text: str | None) -> None:
    assert told(make(X, one), make(X, other)) == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("op", "one", "other", "same"),
    [
        ("aten::_softmax", -1, 2, True),
        ("aten::_softmax", -1, 1, False),
        ("aten::sum.dim_IntList", [-1, 0], [2, 0], True),
        ("aten::sum.dim_IntList", [-1, 0], [1, 0], False),
        ("aten::unsqueeze", -1, 2, False),
        ("torch.unsqueeze", -1, 2, False),
    ],
)
def test_dimensions_may_be_counted_from_the_last(
    make: Callable[..., Call], op: str, one: Any, other: Any, same: bool
) -> None:
    x, names = torch.ones(2, 3, 4), ("self", "dim")
    calls = [make(x, dim, op=op, arguments=names, result=x) for dim in (one, other)]
    assert told(*calls) == ([] if same else [f"dim is {one}, in the baseline {other}"])


def test_tensors_are_compared_as_values_elsewhere(make: Callable[..., Call]) -> None:
    assert told(make(X, 0), make(X[:2] * 2, 0)) == []
    assert told(make(X, X[:2]), make(X, 3)) == ["min is a tensor float32[2], in the baseline 3"]
    assert told(make(X, 3), make(X, X[:2])) == ["min is 3, in the baseline a tensor float32[2]"]
    assert told(make([X, X]), make([X])) != []


def test_the_shape_of_memory_that_is_filled_is_an_argument(record: Callable[..., Any]) -> None:
    def filled(*shape: int, number: float = 0.5) -> Call:
        return record(lambda: torch.empty(shape).fill_(number).add_(1))["Aten.fill_.0.forward"]

    assert told(filled(4), filled(4)) == []
    assert told(filled(4), filled(4, 1)) == ["self is a tensor float32[4], in the baseline a tensor float32[4, 1]"]
    added = [call.rank["Aten.add_.0.forward"] for call in (filled(4), filled(4, 1))]
    assert told(*added) == [], "it reads what it writes to"


@pytest.mark.parametrize(("given", "differs"), [(None, False), (False, False), (True, True), (0, True), (3, True)])
def test_giving_nothing_is_giving_the_default(make: Callable[..., Call], given: Any, differs: bool) -> None:
    calls = make(X, given), make(X)
    for pair in (calls, calls[::-1]):
        assert bool(told(*pair)) == differs
    if differs:
        assert told(*calls) == [f"min is {given}, in the baseline not given"]


def test_defaults_are_those_of_the_schema(make: Callable[..., Call]) -> None:
    add = {"op": "aten::add.Tensor", "arguments": ("self", "other")}
    assert told(make(X, X, keywords={"alpha": 1}, **add), make(X, X, **add)) == []
    assert told(make(X, X, keywords={"alpha": 2}, **add), make(X, X, **add)) == [
        "alpha is 2, in the baseline 1 (the default)"
    ]
    assert told(make(X, X, **add), make(X, X, keywords={"alpha": 1}, **add)) == []
    unknown = {"op": "nolib::add", "arguments": ("self", "other")}
    assert told(make(X, X, keywords={"alpha": 1}, **unknown), make(X, X, **unknown)) != []


def test_false_is_no_default_where_the_schema_says_true(make: Callable[..., Call]) -> None:
    topk = {"op": "aten::topk", "arguments": ("self", "k", "dim", "largest")}
    assert told(make(X, 2, -1, True, **topk), make(X, 2, **topk)) == []
    for given in (False, None):
        pair = make(X, 2, -1, given, **topk), make(X, 2, **topk)
        assert told(*pair) == [f"largest is {given}, in the baseline True (the default)"]
        assert told(*pair[::-1]) == [f"largest is True (the default), in the baseline {given}"]


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (lambda x: x.topk(2)[0], lambda x: x.topk(2, largest=False)[0], "largest"),
        (lambda x: F.avg_pool1d(x, 3, 1, 1), lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False), "count_"),
        (
            lambda x: torch.zeros(1, 4).scatter_reduce(0, torch.zeros(3, 4).long(), x, "amax"),
            lambda x: torch.zeros(1, 4).scatter_reduce(0, torch.zeros(3, 4).long(), x, "amax", include_self=False),
            "include_self",
        ),
    ],
)
def test_a_flag_that_is_true_where_nothing_is_given_is_found(
    tmp_path: Path, one: Callable[..., Any], other: Callable[..., Any], name: str
) -> None:
    x = -torch.arange(1.0, 13.0).reshape(3, 4)
    for path, program in (("target", other), ("baseline", one)):
        with DumpMode(DumpConfig(path=str(tmp_path / path), data="tensor")):
            program(x).square().sum()
    found = compare(tmp_path / "target", tmp_path / "baseline")
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert found.cause.kind == "argument"
    assert name in found.cause.text


def test_an_argument_by_name_is_the_one_by_position(make: Callable[..., Call]) -> None:
    assert told(make(X, 0, 5), make(X, keywords={"max": 5, "min": 0})) == []
    assert told(make(X, 0, 5), make(X, keywords={"max": 6, "min": 0})) == ["max is 5, in the baseline 6"]
    assert told(make(X, 0, arguments=()), make(X, 1, arguments=())) == ["1 is 0, in the baseline 1"], "by number"


def test_where_is_not_what(make: Callable[..., Call]) -> None:
    for name in ("device", "pin_memory", "generator", "layout", "non_blocking"):
        assert told(make(X, keywords={name: "a"}), make(X, keywords={name: "b"})) == []
    assert told(make(X, keywords={"dtype": "a"}), make(X, keywords={"dtype": "b"})) != []


def test_dtypes_are_told_apart_from_other_differences(make: Callable[..., Call]) -> None:
    single, half = make(X, torch.float32), make(X, torch.float16)
    (found,) = argument_differences(single, half)
    assert (found.dtypes, str(found)) == (("float32", "float16"), "min is torch.float32, in the baseline torch.float16")
    (found,) = argument_differences(single, make(X, 3))
    assert found.dtypes is None
    (found,) = argument_differences(make(X, 3), single)
    assert found.dtypes is None


def test_limits_of_the_dtype_each_side_computes_in_are_the_same(make: Callable[..., Call]) -> None:
    half, single = (torch.finfo(dtype) for dtype in (torch.float16, torch.float32))
    calls = make(X.half(), half.min, result=X.half()), make(X, single.min)
    assert told(*calls) == []
    assert told(make(X.half(), half.min, result=X.half()), make(X, single.max)) != []
    assert told(make(X, half.min), make(X, single.min)) != [], "both compute in float32"
    assert told(make(X.half(), -1.0, result=X.half()), make(X, single.min)) != []


def test_dicts_and_long_texts(make: Callable[..., Call]) -> None:
    def of(*items: Any) -> Call:
        return make(X, keywords={"options": [r.TREE_DICT, *items]})

    assert told(of("a", 1), of("a", 1)) == []
    assert told(of("a", 1), of("a", 2)) == ["options is {'a': 1}, in the baseline {'a': 2}"]
    assert told(of("a", 1), of("b", 1)) != []
    (text,) = told(make(X, "x" * 81), make(X, "y" * 80))
    assert text == f"min is {'x' * 77}..., in the baseline {'y' * 80}"


def test_a_group_s_backend_is_the_device_s(make: Callable[..., Call]) -> None:
    def of(backend: str, *ranks: int, description: str = "") -> Any:
        group = [r.TREE_DICT, "group", "0", "backend", backend, "ranks", [r.TREE_LIST, *ranks]]
        return make(X, keywords={"process_group": [*group, *(["description", description] if description else [])]})

    assert told(of("custom", 0, 1), of("gloo", 0, 1)) == []
    assert told(of("gloo", 0, 1, description="tp"), of("gloo", 0, 1)) == [], "older recordings have none"
    (text,) = told(of("custom", 0, 2), of("gloo", 0, 1))
    assert text.startswith("process_group is ")
    backends = [make(X, keywords={"options": [r.TREE_DICT, "backend", name]}) for name in ("a", "b")]
    assert told(*backends) != [], "of no process group"


def test_objects_that_cannot_be_looked_into_are_not_compared(make: Callable[..., Call]) -> None:
    def of(item: Any) -> Call:
        return make(X, keywords={"rule": item})

    assert told(of([r.TREE_OBJECT, "mine.Rule"]), of([r.TREE_OBJECT, "mine.Other"])) == []
    assert told(of([r.TREE_GENERATOR, "cpu", 1]), of([r.TREE_GENERATOR, "cpu", 2])) == []
    assert told(of([r.TREE_DEVICE, "cpu"]), of([r.TREE_DEVICE, "cuda:0"])) == []
    assert told(of([r.TREE_OBJECT, "mine.Rule"]), of([r.TREE_GENERATOR, "cpu", 1])) != []
    assert told(of([r.TREE_OBJECT, "mine.Rule"]), of("mine.Rule")) != []


def test_the_op_comes_first(make: Callable[..., Call]) -> None:
    assert told(make(X, 0, op="aten::clamp_"), make(X, 1)) == [
        "the op is aten::clamp_, in the baseline aten::clamp",
        "min is 0, in the baseline 1",
    ]


def test_other_tools_know_the_name_of_a_module_only(make: Callable[..., Call]) -> None:
    def module(op: str, kind: str = "module") -> Call:
        return make(X, op=op, kind=kind)

    assert told(module("Linear"), module("torch.nn.modules.linear.Linear")) == []
    assert told(module("torch.nn.modules.linear.Linear"), module("Linear")) == []
    assert told(module("Conv2d"), module("torch.nn.modules.linear.Linear")) != []
    assert told(module("mine.Linear"), module("torch.nn.modules.linear.Linear")) != [], "both are known"
    assert told(module("linear", "api"), module("torch.nn.functional.linear", "api")) != []


@pytest.mark.parametrize(
    ("one", "other", "numbers"),
    [
        (0.5, 0.25, ((0.5, 0.25),)),
        ([0.5, 1.0, 0.1], [0.5, 2.0, 0.2], ((1.0, 2.0), (0.1, 0.2))),
        ([0.5, 1], [0.25, 2], ()),
        ([0.5], [0.25, 0.5], ()),
        (1, 0.5, ()),
        (0, 1, ()),
    ],
)
def test_where_all_that_differs_are_numbers_they_are_told(
    make: Callable[..., Call], one: Any, other: Any, numbers: Any
) -> None:
    (found,) = argument_differences(make(X, one), make(X, other))
    assert found.numbers == numbers
