"""Which call made what for which: as text, DOT and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from aten_dump.export.formats.to_graph import nodes, write
from tests.export.made import FILE, chosen, small_step


def test_inputs_are_tied_to_the_last_selected_call_that_made_them(tmp_path: Path) -> None:
    calls = chosen(small_step(tmp_path / "dump"), ["aten", "node"])
    found = {node.call.id: node for node in nodes(calls, calls.ranks[0])}
    assert [made for _, _, made in found[3].inputs] == [None, None]
    assert [(slot, made) for slot, _, made in found[4].inputs] == [("input.0", (3, "mutated.self"))]
    assert [slot for slot, _ in found[3].outputs] == ["output.0", "mutated.self"]


def test_a_call_that_hands_on_what_it_was_given_has_not_made_it(tmp_path: Path) -> None:
    calls = chosen(small_step(tmp_path / "dump"), ["api", "node"])
    made = {node.call.id: [m for _, _, m in node.inputs] for node in nodes(calls, calls.ranks[0])}
    assert made == {2: [None, None], 4: [(2, "output.0")], 5: [(2, "output.0")], 6: [(2, "output.0")]}


def test_the_text_says_operands_literals_and_where(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump"), ["aten", "node"]), tmp_path / "out")
    lines = (tmp_path / "out" / "step0" / "rank0" / "graph.ir").read_text().splitlines()
    assert lines == [
        "# Step 0, rank 0 of dump",
        "  %3(Aten.addmm_.0.forward) = aten::addmm_(%value1, %value2) {mat2: 1.5, beta: True}",
        "      : (<Tensor[float32], (1, 3)>, <Tensor[float32], (2, 3)>) -> (<Tensor[float32], (1, 2)>, <Tensor[float32], (1, 2)>)",
        "      : (Default/fc/Aten.addmm_.0.forward)",
        f"      # In file {FILE}(7)/forward/",
        "  %4(Node.AddmmBackward0.0.backward) = AddmmBackward0(%3[mutated.self]) {backward of %3}",
        "      : (<Tensor[float32], (1, 2)>) -> (<Tensor[float32], (5)>)",
        "      : (Default/fc/Node.AddmmBackward0.0.backward)",
    ]


def test_the_drawing_and_the_explorer_have_the_same_edges(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump"), ["aten", "node"]), tmp_path / "out")
    folder = tmp_path / "out" / "step0" / "rank0"
    dot = (folder / "graph.dot").read_text()
    assert dot.startswith("digraph {") and dot.endswith("}\n")
    assert '  3 [label="Aten.addmm_.0.forward\\nfc"];\n' in dot
    assert [line for line in dot.splitlines() if "->" in line] == ['  3 -> 4 [label="input.0 float32[1, 2]"];']
    (graph,) = json.loads((folder / "graph.json").read_text())["graphs"]
    addmm, node = graph["nodes"]
    assert (graph["id"], addmm["id"], addmm["namespace"], node["namespace"]) == (
        "step0.rank0", "3", "forward/fc", "backward/fc",
    )  # fmt: skip
    assert addmm["incomingEdges"] == []
    assert node["incomingEdges"] == [
        {"sourceNodeId": "3", "sourceNodeOutputId": "mutated.self", "targetNodeInputId": "input.0"}
    ]
    assert [output["id"] for output in addmm["outputsMetadata"]] == ["output.0", "mutated.self"]


def test_lines_of_code_are_shown_where_their_folder_is_given(tmp_path: Path) -> None:
    from tests.dump.building import Builder

    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import torch\n    y = model(x)\n")
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), stack=b.stack((str(code / "train.py"), 2, "step", True)))
    write(chosen(b.finish(), sources=code.resolve()), tmp_path / "out")
    assert "(2)/y = model(x)/" in (tmp_path / "out" / "step0" / "rank0" / "graph.ir").read_text()
