"""msprobe's own compare and graph builder work on our exports, and find a fault that was put in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aten_dump.export.job import export_dump
from tests.export.conftest import record

from .conftest import rows_of

FAULTY = ("Functional.linear.2.forward", "Module.blocks.1.Linear.forward.0")


@pytest.fixture(scope="module", params=["full", "statistic"])
def exports(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a folder with the exports `good` and `bad`: one weight of the second block is wrong in `bad`."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, fault in (("good", 0.0), ("bad", 20.0)):
        record(folder / "dumps" / name, steps=1, fault=fault, data=request.param)
        export_dump(folder / "dumps" / name, "msprobe", folder / name)
    return folder


def test_compare_finds_the_fault(exports: Path, msprobe: Callable[..., str], tmp_path: Path) -> None:
    bad, good = (exports / name / "step0" / "rank0" / "dump.json" for name in ("bad", "good"))
    msprobe("compare", "-tp", bad, "-gp", good, "-o", tmp_path)
    rows = rows_of(tmp_path)
    data = json.loads(good.read_text())["data"]
    assert {row["NPU Name"].rpartition(".")[0] for row in rows} > {f"{name}.output" for name in FAULTY}
    assert len(rows) > len(data)
    outputs = [row for row in rows if ".output" in row["NPU Name"]]
    differing = [row["NPU Name"] for row in outputs if row["NPU l2norm"] != row["Bench l2norm"]]
    assert differing[0] == "Module.Net.Net.forward.0.output.0", "the model's own call comes first"
    assert differing[1].startswith(FAULTY) and differing[2].startswith(FAULTY)
    assert any(row["NPU Name"].startswith(FAULTY) and row["Result"] != "pass" for row in rows)
    if "Cosine" in rows[0]:
        off = [row["NPU Name"] for row in rows if row["Cosine"].startswith("0.") and float(row["Cosine"]) < 0.99]
        assert off and any(name.startswith("Functional.linear.2.forward") for name in off)


def test_compare_of_an_export_with_itself_passes(exports: Path, msprobe: Callable[..., str], tmp_path: Path) -> None:
    good = exports / "good" / "step0" / "rank0" / "dump.json"
    msprobe("compare", "-tp", good, "-gp", good, "-o", tmp_path)
    rows = rows_of(tmp_path)
    assert rows and {row["Result"] for row in rows} == {"pass"}


def test_the_graph_builder_accepts_them(exports: Path, msprobe: Callable[..., str], tmp_path: Path) -> None:
    bad, good = (exports / name / "step0" / "rank0" for name in ("bad", "good"))
    msprobe("graph_visualize", "-tp", bad, "-gp", good, "-o", tmp_path)
    [file] = tmp_path.glob("*.vis.db")
    with sqlite3.connect(file) as database:
        query = "select node_name, up_node, matched_node_link from tb_nodes where data_source = 'NPU'"
        nodes = {name: (up, matched) for name, up, matched in database.execute(query)}
    data = json.loads((good / "dump.json").read_text())["data"]
    assert set(nodes) > {name for name in data if "parameters_grad" not in name}
    assert nodes["Functional.linear.2.forward"][0] == "Module.blocks.1.Linear.forward.0"
    assert nodes["Functional.linear.2.backward"][0] == "Module.blocks.1.Linear.backward.0"
    assert json.loads(nodes["Functional.linear.2.forward"][1])[-1] == "Functional.linear.2.forward"
