"""The n of a call's name counts the calls of its prefix and api, whatever the overload."""

from __future__ import annotations

from aten_dump.capture.naming.call_name import CallName
from aten_dump.capture.step.call_counters import CallCounters

ADD = CallName("aten::add.Tensor", "Aten", "add")


def test_overloads_are_counted_together_and_prefixes_apart() -> None:
    counters = CallCounters()
    names = [ADD, CallName("aten::add.Scalar", "Aten", "add"), CallName("torch.add", "Torch", "add"), ADD]
    assert [counters.of(name).next() for name in names] == [0, 1, 0, 2]
    assert counters.of(ADD) is counters.of(ADD)


def test_asking_for_a_counter_counts_nothing() -> None:
    counters = CallCounters()
    assert counters.of(ADD).n == counters.of(ADD).n == 0


def test_custom_ops_are_those_of_other_namespaces_and_no_markers_of_the_profiler() -> None:
    counters = CallCounters()
    for op, prefix, api in (
        ("aten::add", "Aten", "add"),
        ("mine::gelu", "Custom", "gelu"),
        ("mine::gelu.out", "Custom", "gelu"),
        ("profiler::_record_function_enter_new", "Custom", "_record_function_enter_new"),
        ("yours::norm", "Custom", "norm"),
    ):
        counters.of(CallName(op, prefix, api)).next()
    assert counters.custom_ops() == [("gelu", 2), ("norm", 1)]
