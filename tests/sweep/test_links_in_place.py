"""The backward of every in-place op of PyTorch's database belongs to that op, by the name of its autograd node.

Ops that overwrite what their backward needs have autograd clone it first; the node is made before the op runs.
A sample of the ops; all of them with ATEN_DUMP_SWEEP=all (`make test-ops`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, RankDump, open_dump
from tests.devices import here

EVERY = 1 if os.environ.get("ATEN_DUMP_SWEEP") == "all" else 64


def samples() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, in-place function and sample of ops that have a gradient."""
    from torch.testing._internal.common_methods_invocations import op_db

    in_place = [
        op for op in op_db if op.get_inplace() is not None and op.supports_autograd and torch.float32 in op.dtypes
    ]
    for op in in_place[::EVERY]:
        for at, sample in enumerate(op.sample_inputs(here().type, torch.float32, requires_grad=True)):
            if at < 4 and isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
                yield f"{op.formatted_name}.{at}", op.get_inplace(), sample


def runs_backward(function: Any, sample: Any) -> bool:
    try:
        result = function(sample.input.clone(), *sample.args, **sample.kwargs)
        if not (isinstance(result, torch.Tensor) and result.requires_grad):
            return False
        result.sum().backward()
    except RuntimeError:  # it has no derivative in place, or the sample is none for it
        return False
    return True


def links(rank: RankDump) -> Iterator[tuple[str, str]]:
    """Yield the op that each node is named for, and the op that it belongs to."""
    for node in rank.calls.filter(kind="node"):
        named = re.match(r"(?:\w+::)?(\w+?)Backward\w*$", node.op)
        if named is not None:
            owner = "nothing" if node.forward is None else node.forward.op
            yield named[1].lower(), re.sub(r"^aten::|\..*$|_", "", owner)


@pytest.mark.filterwarnings("ignore")
def test_nodes_belong_to_the_ops_they_are_named_for(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ran: list[tuple[int, str]] = []
    with DumpMode(DumpConfig(path=str(tmp_path), data="structure", stacks=False)) as dump:
        for step, (name, function, sample) in enumerate(samples()):
            if runs_backward(function, sample):
                ran.append((step, name))
            dump.step()
    recorded = open_dump(tmp_path)
    found = {name: list(links(recorded.step(step).rank(0))) for step, name in ran}
    assert len(found) > 300 / EVERY and sum(map(len, found.values())) > 2 * len(found)
    wrong = {name: [pair for pair in pairs if pair[0] != pair[1]] for name, pairs in found.items()}
    assert {name: pairs for name, pairs in wrong.items() if pairs} == {}
