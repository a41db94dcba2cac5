"""Every collective does under the dump what it does without it, on sparse, strided, empty, complex and integer tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.collective_kinds import COLLECTIVES
from tests.distributed.launching import RANKS, Launched, launch_once


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch_once("sweep", tmp_path_factory, module="tests.distributed.collective_kinds")


def same(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    return len(a) == len(b) and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_results_and_errors_are_those_of_the_bare_call(swept: Launched, name: str) -> None:
    for rank in range(RANKS):
        bare, recorded = swept.results[rank]["bare"], swept.results[rank]["recorded"]
        cases = [case for case in bare if case[0] == name]
        assert len(cases) >= 8
        assert [case for case in cases if not same(bare[case], recorded[case])] == []
        assert sum(not isinstance(bare[case], str) for case in cases) >= 4, "most of them run at all"


def test_what_a_sparse_all_reduce_brought_is_recorded(swept: Launched) -> None:
    for rank in range(RANKS):
        dump = swept.rank("dump", rank)
        expected = swept.results[rank]["bare"]["all_reduce", "sparse"][0]
        call = [call for call in dump.calls if call.op == "c10d::allreduce_"][8]
        result = call.outputs[0][0].tensor()
        assert result.is_sparse
        assert torch.equal(result.to_dense(), expected)
