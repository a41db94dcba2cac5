"""Which calls a filter selects, and how it says that it cannot."""

from __future__ import annotations

import pytest

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.call_filter import CallFilter, Wanted
from aten_dump.errors import ConfigError
from tests.dump.building import Builder


def selected(rank: RankDump, wanted: Wanted) -> list[int]:
    positions = range(len(rank.calls))
    return [rank.call_at(position).id for position in CallFilter(rank.tables, wanted).select(positions)]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Wanted(), list(range(1, 11))),
        (Wanted(op="aten::t"), [3]),  # exact: not _foreach_add_.List, not ...::mm
        (Wanted(op="aten::_foreach_add_"), [10]),
        (Wanted(op="Functional.linear"), [2, 9]),
        (Wanted(op="LINEAR"), [1, 2, 9]),
        (Wanted(op="no such op"), []),
        (Wanted(op="Functional.lin"), []),  # a full name, and none of these
        (Wanted(op="aten::"), []),
        (Wanted(op="regex:mm$"), [4, 8]),
        (Wanted(op="regex:MM$"), []),  # a regular expression is taken as it is
        (Wanted(kind="node"), [7]),
        (Wanted(kind="module", op="Linear"), [1]),
        (Wanted(phase="optimizer"), [10]),
        (Wanted(module="net"), [1, 2, 3, 4, 9]),
        (Wanted(module="*.fc"), [1, 2, 3, 4, 9]),
        (Wanted(module="fc"), []),
        (Wanted(module="net.f"), []),
        (Wanted(name="linear.0"), [2, 9]),
        (Wanted(name="regex:^Aten.*backward$"), [8]),
        (Wanted(op="linear", kind="api", phase="backward", module="net.fc"), [9]),
    ],
    ids=str,
)
def test_what_is_selected(rank: RankDump, wanted: Wanted, ids: list[int]) -> None:
    assert selected(rank, wanted) == ids


def test_a_module_call_is_inside_itself(builder: Builder) -> None:
    """The record of a module's own call may name the module around it."""
    inner = builder.op("module", "torch.nn.Linear", "Module", "net.fc")
    exp = builder.op("aten", "aten::exp", "Aten", "exp")
    fake = builder.op("api", "net.fc", "Torch", "net.fc")  # no module, whatever it is called
    builder.call(inner, id=1, module="net")
    builder.call(exp, id=2, module="net")
    builder.call(fake, id=3)
    rank = open_dump(builder.finish()).rank(0, 0)
    assert selected(rank, Wanted(module="net.fc")) == [1]
    assert selected(rank, Wanted(module="net")) == [1, 2]


def test_positions_are_those_that_were_given(rank: RankDump) -> None:
    found = CallFilter(rank.tables, Wanted(kind="aten")).select([9, 2, 0])
    assert list(found) == [9, 2]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(kind="op"), "filter kind is 'op'; allowed: aten, api, module, node"),
        (Wanted(phase="Forward"), "filter phase is 'Forward'; allowed: forward, recompute, backward, optimizer"),
        (Wanted(op="regex:("), "filter op='regex:\\('.*fix it or leave out 'regex:'"),
        (Wanted(name="regex:["), "filter name="),
        (Wanted(module=""), "filter module is empty; give a glob"),
    ],
)
def test_a_bad_filter_is_refused(rank: RankDump, wanted: Wanted, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CallFilter(rank.tables, wanted)
