"""What differences of several layers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump.analysis.outcomes.region_differences import Accused
from tests.analysis.by_hand import knowledge

X = torch.linspace(0.1, 3.0, 8)


def test_layers_of_one_line_differ_alike(record: Callable[..., Any]) -> None:
    def layers(*factors: float) -> Callable[[], None]:
        def body() -> None:
            for factor in factors:
                (X * factor).exp().sin()

        return body

    knows = knowledge(record(layers(0.3, 0.3, 0.4)), record(layers(0.5, 0.5, 0.5)))
    accused = Accused()

    def arguments(layer: int) -> tuple[Any, ...]:
        target, baseline = (rank[f"Aten.mul.{layer}.forward"] for rank in (knows.target, knows.baseline))
        return target, knows.differences(target, baseline), ()

    def regions(layer: int) -> tuple[Any, ...]:
        sines = [rank[f"Aten.sin.{layer}.forward"] for rank in (knows.target, knows.baseline)]
        read = [flow.reads(sine)[0][1] for flow, sine in zip(knows.flows, sines, strict=True)]
        cones = knows.regions.compare([read[0]], [read[1]]).cones
        assert cones is not None and len(cones[0].calls) == 2
        return sines[0], (), [cones]

    for found in (arguments, regions):
        assert not accused.has(*found(0))
        accused.add(*found(0))
        assert accused.has(*found(0)) and accused.has(*found(1))
        assert not accused.has(*found(2)), "another number"
