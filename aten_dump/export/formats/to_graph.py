"""``--to graph``: which call made what for which, as text, DOT and Model Explorer JSON.

``step<S>/rank<R>/graph.ir`` has a line for each call with its operands, what they are, where it is and the source
lines, in the manner of MindSpore's .ir files; graph.dot is for Graphviz; graph.json opens in Model Explorer, with
modules as its layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ...dump import Call, RankDump, Value
from ..chosen_calls import ChosenCalls


@dataclass(frozen=True, slots=True)
class Node:
    """A call; each input is (slot, value, the call that made it and the slot there), None from outside."""

    call: Call
    inputs: list[tuple[str, Value, tuple[int, str] | None]]
    outputs: list[tuple[str, Value]]


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write three files for each step and rank."""
    sources = SourceLines(chosen.sources)
    for rank in chosen.each_rank():
        folder = out / f"step{rank.step}" / f"rank{rank.rank}"
        folder.mkdir(parents=True)
        with (
            open(folder / "graph.ir", "w", encoding="utf-8") as text,
            open(folder / "graph.dot", "w", encoding="utf-8") as dot,
            open(folder / "graph.json", "w", encoding="utf-8") as explorer,
        ):
            _write_rank(chosen, rank, sources, (text, dot, explorer))


def _write_rank(
    chosen: ChosenCalls, rank: RankDump, sources: SourceLines, files: tuple[TextIO, TextIO, TextIO]
) -> None:
    text, dot, explorer = files
    text.write(f"# Step {rank.step}, rank {rank.rank} of {rank.directory.parent.parent.name}\n")
    dot.write("digraph {\n  node [shape=box];\n")
    explorer.write(f'{{"graphs": [{{"id": "step{rank.step}.rank{rank.rank}", "nodes": [')
    separator = "\n"
    for node in nodes(chosen, rank):
        text.writelines(_text(node, sources))
        dot.writelines(_dot(node))
        explorer.write(separator + json.dumps(_explorer(node)))
        separator = ",\n"
    dot.write("}\n")
    explorer.write("\n]}]}\n")


def nodes(chosen: ChosenCalls, rank: RankDump) -> Iterator[Node]:
    """Yield the selected calls with the selected calls that made their inputs."""
    made: dict[int, tuple[int, str]] = {}  # by value id: call id and slot
    for call in chosen.calls(rank):
        inputs = [(slot, value, made.get(value.id)) for slot, value in call.input_values()]
        outputs = [*call.output_values(), *call.written_values()]
        given = {value.id for _, value, _ in inputs}
        for slot, value in outputs:
            if value.id not in given:
                made[value.id] = (call.id, slot)
        yield Node(call, inputs, outputs)


def _text(node: Node, sources: SourceLines) -> Iterator[str]:
    call = node.call
    operands = ", ".join(_operand(value, made) for _, value, made in node.inputs)
    yield f"  %{call.id}({call.name}) = {call.op}({operands}) {{{_attributes(call)}}}\n"
    given = ", ".join(_tensor(value) for _, value, _ in node.inputs)
    yield f"      : ({given}) -> ({', '.join(_tensor(value) for _, value in node.outputs)})\n"
    yield f"      : ({'/'.join(['Default', *filter(None, call.module.split('.')), call.name])})\n"
    for frame in call.stack:
        if frame.user:
            code = sources.line(frame.file, frame.line) or frame.function
            yield f"      # In file {frame.file}({frame.line})/{code}/\n"


def _operand(value: Value, made: tuple[int, str] | None) -> str:
    if made is None:
        return f"%value{value.id}"
    number = made[1].partition(".")[2]
    return f"%{made[0]}" if number == "0" else f"%{made[0]}[{made[1]}]"


def _attributes(call: Call) -> str:
    args, kwargs = call.inputs
    names = dict(enumerate(call.arguments))
    literals = {names.get(at, str(at)): item for at, item in enumerate(args)} | kwargs
    facts = [f"{name}: {item}" for name, item in literals.items() if _is_literal(item)]
    forward = call.forward
    if forward is not None:
        facts.append(f"{call.phase} of %{forward.id}")
    return ", ".join(facts)


def _is_literal(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return all(map(_is_literal, item))
    return not isinstance(item, Value | dict)


def _tensor(value: Value) -> str:
    return f"<Tensor[{value.dtype_name}], ({', '.join(map(str, value.shape))})>"


def _dot(node: Node) -> Iterator[str]:
    label = json.dumps(f"{node.call.name}\n{node.call.module}" if node.call.module else node.call.name)
    yield f"  {node.call.id} [label={label}];\n"
    for slot, value, made in node.inputs:
        if made is not None:
            text = json.dumps(f"{slot} {value.dtype_name}{list(value.shape)}")
            yield f"  {made[0]} -> {node.call.id} [label={text}];\n"


def _explorer(node: Node) -> dict[str, Any]:
    call = node.call
    facts = {"call": call.name, "op": call.op, "phase": call.phase, "attributes": _attributes(call)}
    edges = [
        {"sourceNodeId": str(made[0]), "sourceNodeOutputId": made[1], "targetNodeInputId": slot}
        for slot, _, made in node.inputs
        if made is not None
    ]
    outputs = [
        {"id": slot, "attrs": [{"key": "tensor", "value": f"{value.dtype_name}{list(value.shape)}"}]}
        for slot, value in node.outputs
    ]
    return {
        "id": str(call.id),
        "label": call.api,
        "namespace": "/".join([call.phase, *filter(None, call.module.split("."))]),
        "attrs": [{"key": key, "value": value} for key, value in facts.items() if value],
        "incomingEdges": edges,
        "outputsMetadata": outputs,
    }


class SourceLines:
    """Reads lines of files beneath a folder; of no files without one."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._files: dict[str, list[str]] = {}

    def line(self, file: str, number: int) -> str:
        """Return a line without its indentation; ``""`` where it cannot or must not be read."""
        lines = self._files.get(file)
        if lines is None:
            lines = self._files[file] = self._read(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def _read(self, file: str) -> list[str]:
        if self._root is None:
            return []
        path = Path(file).resolve()
        if not path.is_relative_to(self._root) or path.suffix != ".py":
            return []
        try:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # the code has moved since: the line's number is still shown
            return []
