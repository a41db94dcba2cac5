"""Holds recorded calls against what the oracle saw of the same ops."""

from __future__ import annotations

from typing import Any

from aten_dump.store.op_names import is_workspace
from tests.capture.bits import difference, values
from tests.capture.oracle import Seen, Step
from tests.devices import here

WRITES_UNDECLARED = ("batch_norm", "cudnn_rnn")  # what these write they do not say; other tests look at that


def compare(seen: list[Seen], recorded: list[Any], where: str, allow_undefined: bool, op: str = "") -> list[str]:
    if len(seen) != len(recorded):
        return [f"{where}: {len(recorded)} values, expected {len(seen)}"]
    problems = []
    for i, (expected, value) in enumerate(zip(seen, recorded, strict=True)):
        if here().type == "cuda" and is_workspace(op, f"output.{i}"):  # two runs leave other bytes there
            continue
        if (
            tuple(value.shape) != tuple(expected.copy.shape)
            or tuple(value.stride) != expected.stride
            or value.dtype != expected.copy.dtype
        ):
            problems.append(
                f"{where}.{i}: {value.dtype} {value.shape} {value.stride}, expected {expected.copy.dtype} {expected.copy.shape} {expected.stride}"
            )
        elif value.undefined:
            if not allow_undefined:
                problems.append(f"{where}.{i}: marked undefined")
        elif problem := difference(expected.copy, value.tensor(), stride=False):
            problems.append(f"{where}.{i}: {problem}")
        elif value.tensor().stride() != expected.stride:
            problems.append(f"{where}.{i}: tensor() has stride {value.tensor().stride()}, expected {expected.stride}")
    return problems


def compare_call(step: Step, call: Any) -> list[str]:
    # Only memory that was just allocated, and what zeroes or fills it, may be undefined before it is written.
    fresh = "empty" in step.op or step.op == "aten::resize_"  # what a resize adds is not written yet
    written = step.op.split("::")[1].split(".")[0].endswith("_")
    problems = compare(step.inputs, values(call.inputs), f"{call.name}.input", allow_undefined=written)
    problems += compare(step.outputs, values(call.outputs), f"{call.name}.output", allow_undefined=fresh, op=step.op)
    if set(call.mutated) != set(step.written) and not any(name in step.op for name in WRITES_UNDECLARED):
        problems.append(f"{call.name}: mutated {call.mutated}, expected {tuple(step.written)}")
    for name, expected in step.written.items():
        if name in call.mutated:
            problems += compare(
                expected, values([call.mutated_values[name]]), f"{call.name}.mutated.{name}", allow_undefined=fresh
            )
    return problems
