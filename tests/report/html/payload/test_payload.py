"""The sections of a real step say what `open_dump` says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aten_dump import open_dump
from aten_dump.dump import RankDump, Value
from aten_dump.report.html.payload.call_arguments import MARK
from aten_dump.report.html.payload.chunks import CHUNK
from aten_dump.report.html.payload.sections import rank_sections
from aten_dump.report.units import format_number, tensor_type
from aten_dump.store.records import PHASES
from tests.browser import dumps
from tests.report.sections_read import Read


@pytest.fixture(
    scope="module", params=["trained", "recompute", "nan", "inference", "interrupted", "structure", "scaler"]
)
def rank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RankDump:
    path = dumps.RECORDERS[request.param](tmp_path_factory.mktemp(request.param))
    return open_dump(path).all_ranks()[-1]


@pytest.fixture(scope="module")
def sections(rank: RankDump) -> dict[str, Read]:
    return {name.partition("/")[2]: Read(data) for name, data in rank_sections(rank, "k")}


def names_of(tree: Read) -> list[str]:
    """Render the names as the page does."""
    last: dict[tuple[str, int], int] = {}
    names = []
    columns = (tree.columns[name] for name in ("op", "phase", "number", "repeat"))
    for op, phase, step, repeat in zip(*columns, strict=True):
        head = tree.json["ops"][op][0]
        n = last[head, phase] = last.get((head, phase), -1) + 1 + step
        names.append(f"{head}.{n}.{PHASES[phase]}" + (f".{repeat}" if repeat else ""))
    return names


def test_the_tree_is_that_of_the_dump(rank: RankDump, sections: dict[str, Read]) -> None:
    tree = sections["tree"]
    calls = list(rank.calls)
    assert len(calls) > 20
    assert names_of(tree) == [call.name for call in calls]
    positions = {call.id: at for at, call in enumerate(calls)}
    for at, call in enumerate(calls):
        distance = tree.columns["parent"][at]
        assert (at - distance if distance else None) == positions.get(call.parent_id), call
        forward = call.forward
        assert tree.columns["forward"][at] == (-1 if forward is None else positions[forward.id]), call
        assert tree.json["ops"][tree.columns["op"][at]] == [call.api, call.op, call.kind, list(call.arguments)]
        assert tree.json["modules"][tree.columns["module"][at]] == call.module
        assert tree.columns["id"][at] + at == call.id
        assert frames_of(tree, at) == [(f.file, f.line, f.function, f.user) for f in call.stack]
    assert tree.json["unfinished"] == [at for at, call in enumerate(calls) if not call.finished]


def frames_of(tree: Read, call: int) -> list[tuple[str, int, str, bool]]:
    found = []
    chain = tree.columns["stack"][call]
    while chain:
        frame = tree.columns["chain.frame"][chain]
        file, line, function, user = (
            tree.columns[f"frame.{name}"][frame] for name in ("file", "line", "function", "user")
        )
        found.append((tree.json["texts"][file], line, tree.json["texts"][function], bool(user)))
        chain = tree.columns["chain.parent"][chain]
    return found


def test_arguments_and_results_are_those_of_the_dump(rank: RankDump, sections: dict[str, Read]) -> None:
    ids = [value.id for value in rank.values]
    chunk = sections["calls/0"]
    assert len(rank.calls) <= CHUNK
    at = 0
    for position, call in enumerate(rank.calls):
        inputs, outputs, written, slots = chunk.json["templates"][chunk.columns["template"][position]]
        refs = [ids[index] for index in chunk.columns["refs"][at : at + len(slots)]]
        at += len(slots)
        expected = [*call.input_slots(), *call.output_slots(), *call.written_slots()]
        assert list(zip(slots, refs, strict=True)) == expected, call
        assert tuple(written) == call.mutated
        args, kwargs = call.inputs
        assert [key for key, _ in inputs] == [*map(str, range(len(args))), *kwargs]
        for (_, text), given in zip(inputs, [*args, *kwargs.values()], strict=True):
            assert text.count(MARK) == len(list(values_in(given)))
            if isinstance(given, (int, float, bool)) or given is None:
                assert text == str(given)
        assert outputs.count(MARK) == len(list(call.output_slots()))
        assert chunk.json["errors"].get(str(position)) == call.error


def values_in(tree: Any) -> list[Value]:
    if isinstance(tree, Value):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [value for item in items for value in values_in(item)]


def test_statistics_are_shown_in_the_digits_of_the_command_line(rank: RankDump, sections: dict[str, Read]) -> None:
    chunk = sections["values/0"]
    columns = {name: chunk.numbers(f"statistics.{name}") for name in chunk.json["statistics"]}
    for at, value in enumerate(rank.values):
        assert chunk.columns["id"][at] == value.id
        text, nbytes, dtype, shape, stride, device = chunk.json["signatures"][chunk.columns["signature"][at]]
        assert (text, nbytes, dtype, device) == (tensor_type(value), value.nbytes, value.dtype_name, value.device_name)
        assert (tuple(shape), tuple(stride)) == (tuple(value.shape), value.stride)
        assert (chunk.columns["storage"][at], chunk.columns["version"][at]) == (value.storage, value.version)
        row = chunk.columns["row"][at] - 1
        assert (row >= 0) == (value.stats is not None)
        for name, number in (value.stats or {}).items():
            shown = columns[name][row]
            if name == "positive" and None not in (shown, value.stats["zero"]):  # type: ignore[index]
                others = [columns[other][row] for other in ("nan", "zero", "negative")]
                shown += columns["count"][row] - sum(others)  # type: ignore[operator]
            assert format_number(None if shown is None else float(shown)) == format_number(
                None if number is None else float(number)
            ), (value, name)  # type: ignore[arg-type]


def test_producers_and_consumers_are_those_of_the_dump(rank: RankDump, sections: dict[str, Read]) -> None:
    uses = sections["uses/0"]
    positions = {call.id: at for at, call in enumerate(rank.calls)}
    start = 0
    for at, value in enumerate(rank.values):
        made = value.producer
        assert uses.columns["producer"][at] == (-1 if made is None else positions[made[0].id])
        count = uses.columns["count"][at]
        steps = uses.columns["consumer"][start : start + count]
        start += count
        found = [sum(steps[: k + 1]) for k in range(count)]
        assert found == sorted({positions[call.id] for call, _ in value.consumers})


def test_histograms_count_all_elements(rank: RankDump, sections: dict[str, Read]) -> None:
    found = sections.get("histograms")
    if not any(value.has_data and value.numel for value in rank.values):  # none recorded, or the dump ends before any
        assert rank.config["data"] == "structure" or rank.missing
        assert found is None
        return
    assert found is not None
    values = list(rank.values)
    lows, highs = found.numbers("low"), found.numbers("high")
    bars = found.json["bars"]
    for row, index in enumerate(found.columns["index"]):
        tensor = values[index].tensor().double()
        finite = tensor[tensor.isfinite()]
        low, high = lows[row], highs[row]
        assert low is not None and high is not None
        assert float(format_number(finite.min().item())) == pytest.approx(low, rel=1e-5)
        mine = found.columns["bar"][row * bars : (row + 1) * bars]
        assert max(mine) == 15
        assert mine[0] > 0 and mine[-1] > 0  # least and greatest are in the outermost
        expected = finite.float().histc(bars, float(finite.min()), float(finite.max()))
        assert [bar > 0 for bar in mine] == [count > 0 for count in expected.tolist()]


def test_calls_beyond_one_chunk_go_on_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aten_dump.report.html.payload import chunks

    rank = open_dump(dumps.inference(tmp_path)).all_ranks()[0]
    monkeypatch.setattr(chunks, "CHUNK", 7)
    found = {name: Read(data) for name, data in rank_sections(rank, "k")}
    counts = [len(found[f"k/calls/{number}"].columns["template"]) for number in range(-(-len(rank.calls) // 7))]
    assert sum(counts) == len(rank.calls)
    assert set(counts[:-1]) == {7}
