"""What a dump names is run only if it computes: no files, no libraries, nothing of a namespace that nobody allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from aten_dump import ConfigError, ReplayError, compare, open_dump, replay
from aten_dump.analysis.replay import replay_all, replay_call
from aten_dump.analysis.rerun.allowed_ops import allowed_op, allowing, registered_op
from aten_dump.analysis.rerun.repro_script import repro_script
from aten_dump.cli.main import main
from aten_dump.store import records as r
from tests.torture.changing import records_of, signed


@pytest.fixture(scope="module")
def twice() -> Iterator[Any]:
    """An op of a library of ours."""
    library = torch.library.Library("stranger", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    yield torch.ops.stranger.twice
    library._destroy()


@pytest.mark.parametrize("name", ["aten::add.Tensor", "aten::mm", "prims::add", "aten::__and__.Tensor", "aten::set_"])
def test_computing_ops_are_allowed(name: str) -> None:
    assert allowed_op(name).name() == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten::from_file", "something else than computing"),
        ("aten::from_file.out", "something else than computing"),
        ("aten::_print", "something else than computing"),
        ("aten::set_data", "something else than computing"),
        ("aten::save", "has no op"),
        ("aten::add", "has no op"),
        ("aten::add.None", "has no op"),
        ("load_library::__call__", "--allow-ops 'load_library::*'"),
        ("symm_mem::get_remote_tensors", "--allow-ops"),
        ("aten::__class__", "has no op"),
        ("aten::add.Tensor.redispatch", "is no name of an op"),
        ("aten::add.Tensor; x", "is no name of an op"),
        ("aten::add\n", "is no name of an op"),
        ("atén::add", "is no name of an op"),
        ("aten", "is no name of an op"),
        ("", "is no name of an op"),
    ],
)
def test_others_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ReplayError) as error:
        allowed_op(name)
    assert reason in str(error.value)


def test_no_op_of_torch_that_takes_a_text_takes_the_name_of_a_file() -> None:
    """A new torch may bring another `from_file`: whoever sees this fail looks at it and lists it."""
    texts = set[str]()
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(("aten::", "prims::")):
            try:
                op = allowed_op(name)
            except ReplayError:
                continue
            texts |= {argument.name for argument in op._schema.arguments if "str" in str(argument.type)}
    known = {
        "reduce",
        "approximate",
        "interpolation",
        "mode",
        "p",
        "pad_mode",
        "ord",
        "UPLO",
        "padding",
        "equation",
        "norm",
    }
    known |= {
        "indexing",
        "api_name",
        "rounding_mode",
        "driver",
        "activation",
        "side",
        "algorithm",
        "padding_side",
        "assert_msg",
    }
    if hasattr(torch.ops.aten, "refine_names"):  # of a torch that has dimensions with names
        known |= {"dim", "dim0", "dim1", "dim2", "dims", "start_dim", "end_dim", "out_dim", "outdim", "names", "order"}
    assert texts - known <= {"a", "b"}  # of aten::_test_*


def test_a_library_runs_only_where_it_is_allowed(twice: Any) -> None:
    assert registered_op("stranger::twice") is not None
    with pytest.raises(ReplayError, match="--allow-ops 'stranger::"):
        allowed_op("stranger::twice")
    for pattern in ("stranger::*", "stranger::twice", "stranger::t?ice"):
        with allowing([pattern]):
            assert allowed_op("stranger::twice") == twice.default
    with pytest.raises(ReplayError), allowing(["other::*"]):
        allowed_op("stranger::twice")
    with pytest.raises(ReplayError):
        allowed_op("stranger::twice")
    for wrong in ("*", "stranger", "::", "a b::*"):
        with pytest.raises(ConfigError, match="allow_ops has"), allowing([wrong]):
            pass


def test_replay_compare_and_scripts_take_the_permission(record: Callable[..., Any], twice: Any, tmp_path: Path) -> None:
    given = torch.ones(3)
    rank = record(lambda: twice(given))
    dump = rank.directory.parent.parent
    name = "Custom.twice.0.forward"
    assert "--allow-ops 'stranger::*'" in replay(rank).skipped[-1].reason
    assert [op.op for op in replay(rank, allow_ops=["stranger::*"]).ops] == ["stranger::twice"]
    assert [op.op for op in replay_all(dump, allow_ops=["stranger::*"])[0].ops] == ["stranger::twice"]
    assert replay_call(rank[name]).reason is not None
    assert replay_call(rank[name], allow_ops="stranger::*").reason is None  # type: ignore[arg-type]
    with pytest.raises(ReplayError, match="--allow-ops"):
        repro_script(rank[name])
    assert "torch.ops.stranger.twice.default" in repro_script(rank[name], allow_ops=["stranger::*"])
    assert compare(dump, dump, allow_ops=["stranger::*"]).verdict == "same"
    told = CliRunner().invoke(main, ["replay", str(dump)])
    assert told.exit_code == 2 and "--allow-ops" in told.output
    done = CliRunner().invoke(main, ["replay", str(dump), "--allow-ops", "stranger::*"])
    assert done.exit_code == 0, done.output
    script = tmp_path / "script.py"
    assert CliRunner().invoke(main, ["replay", str(dump), name, "--emit", str(script)]).exit_code == 2
    with_it = ["replay", str(dump), name, "--emit", str(script), "--allow-ops", "stranger::*"]
    assert CliRunner().invoke(main, with_it).exit_code == 0 and script.exists()
    assert CliRunner().invoke(main, ["compare", str(dump), str(dump), "--allow-ops", "nonsense"]).exit_code == 2


def test_a_forged_dump_makes_no_file(record: Callable[..., Any], tmp_path: Path) -> None:
    """The op is changed into one that makes and enlarges a file, with the arguments that it takes."""
    rank = record(lambda: torch.full((3,), 1.0))
    target = tmp_path / "made"
    index = rank.directory / "index.msgpack"
    rows = records_of(index)
    for row in rows:
        if row[0] == r.OP and row[3].startswith("aten::"):
            row[3], row[6] = "aten::from_file", ["filename", "shared", "size"]
        if row[0] == r.CALL:
            row[14], row[15] = [str(target), True, 1 << 20], {}
    index.write_bytes(signed(rows))
    dump = open_dump(rank.directory.parent.parent)
    found = replay(dump)
    assert not found.ops and all("computing" in call.reason for call in found.skipped)
    compare(dump, dump)
    for call in dump.step(0).rank(0).calls:
        if call.kind == "aten":
            with pytest.raises(ReplayError):
                repro_script(call)
    assert not target.exists()


def test_a_kernel_without_an_op_is_none() -> None:
    """torch_npu registers hundreds."""
    library = torch.library.Library("npu", "IMPL")
    library.impl("orphan", lambda: None, "CPU")
    try:
        assert torch._C._dispatch_has_kernel("npu::orphan") and registered_op("npu::orphan") is None
        with pytest.raises(ReplayError, match="has no op npu::orphan"):
            allowed_op("npu::orphan")
    finally:
        library._destroy()
