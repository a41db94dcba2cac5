"""What is said of a proof that rests on other ranks."""

from __future__ import annotations

from aten_dump.analysis.evidence.findings import Leaning


def test_a_leaning_names_the_call_the_ranks_and_the_size() -> None:
    text = str(Leaning("Distributed.allreduce_.0.forward", 7, (1,), 0.0234, 1e-6))
    assert text == "Distributed.allreduce_.0.forward brings what rank 1 sent, which differs by 0.0234 (relative L2)"
    assert "what ranks 1|3 sent" in str(Leaning("call", 7, (1, 3), 0.5, 1e-6))
