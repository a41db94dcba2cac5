"""What differences of several layers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump.analysis.outcomes.region_differences import Signature, signature_of
from tests.analysis.by_hand import knowledge

X = torch.linspace(0.1, 3.0, 8)


def test_layers_of_one_line_differ_alike(record: Callable[..., Any]) -> None:
    def layers(*factors: float) -> Callable[[], None]:
        def body() -> None:
            for factor in factors:
                (X * factor).exp().sin()

        return body

    knows = knowledge(record(layers(0.3, 0.3, 0.4)), record(layers(0.5, 0.5, 0.5)))

    def signature(layer: int) -> Signature:
        names = f"Aten.mul.{layer}.forward", f"Aten.sin.{layer}.forward"
        target, baseline = ([rank[name] for name in names] for rank in (knows.target, knows.baseline))
        differences = knows.differences(target[0], baseline[0])
        read = [knows.flows[side].reads(call[1])[0][1] for side, call in enumerate((target, baseline))]
        cones = knows.regions.compare([read[0]], [read[1]]).cones
        assert differences and cones is not None and len(cones[0].calls) == 2
        return *signature_of(target[0], differences, ()), *signature_of(target[1], (), [cones])

    assert signature(0) == signature(1)
    assert not set(signature(2)[:4]) >= set(signature(0)[:4]) and signature(2) != signature(0), "another number"
