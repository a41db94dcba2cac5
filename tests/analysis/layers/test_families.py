"""A fault in each layer of the compiler, in each of five families of models that train: named with its layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import compare, open_dump, replay
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.analysis.layers.faults import custom_pass, decomposition, first
from tests.analysis.layers.planted import slipped
from tests.analysis.layers.unseen import SLIPS
from tests.compiled_programs import How, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]

aten = torch.ops.aten
HOW = How(rows=(4,))
Inject = Callable[[list[str]], contextlib.AbstractContextManager[Any]]


def _slip(name: str, kernel: int = 0) -> Inject:
    return lambda changed: slipped(SLIPS[name], kernel, 0, changed)


def _decomposed(op: Any) -> Inject:
    return lambda _: decomposition(op, first(lambda made: made * 1.03))


def _passed(where: str) -> Inject:
    def change(node: torch.fx.Node) -> None:
        node.args = (node.args[0], node.args[0] if isinstance(node.args[1], torch.fx.Node) else 4)

    return lambda _: custom_pass(where, change)


FAULTS: dict[tuple[str, str], tuple[Inject, str]] = {  # by family and layer: what injects it, and what is named
    ("time mix", "kernel"): (_slip("another function"), ""),
    ("time mix", "decomposition"): (_decomposed(aten.sigmoid_backward.default), "sigmoid_backward"),
    ("time mix", "pass"): (_passed("post_grad_custom_post_pass"), "post_grad_custom_post_pass"),
    ("crossing", "kernel"): (_slip("plus for minus", 1), ""),
    ("crossing", "decomposition"): (_decomposed(aten._prelu_kernel.default), "_prelu_kernel"),
    ("crossing", "pass"): (_passed("joint_custom_post_pass"), "joint_custom_post_pass"),
    ("graph attention", "kernel"): (_slip("a factor forgotten"), ""),
    ("graph attention", "decomposition"): (_decomposed(aten.leaky_relu.default), "leaky_relu"),
    ("graph attention", "pass"): (_passed("post_grad_custom_pre_pass"), "post_grad_custom_pre_pass"),
    ("attentive unet", "kernel"): (_slip("a constant rounded", 1), ""),
    ("attentive unet", "decomposition"): (_decomposed(aten.mish.default), "mish"),
    ("attentive unet", "pass"): (_passed("joint_custom_pre_pass"), "joint_custom_pre_pass"),
    ("recognizer", "kernel"): (_slip("times for divided", 1), ""),
    ("recognizer", "decomposition"): (_decomposed(aten.hardswish.default), "hardswish"),
    ("recognizer", "pass"): (_passed("post_grad_custom_post_pass"), "post_grad_custom_post_pass"),
}


@pytest.mark.parametrize(("family", "layer"), FAULTS)
def test_a_fault_in_a_family_is_named_with_its_layer(tmp_path: Path, family: str, layer: str) -> None:
    inject, name = FAULTS[family, layer]
    changed: list[str] = []
    with inject(changed):
        run(family, HOW, tmp_path / "wrong")
    rank = open_dump(str(tmp_path / "wrong")).step(0).rank(0)
    found = replay(rank)
    assert [one.layer for one in found.layers[:1]] == [layer], [str(one) for one in found.layers]
    named = found.layers[0].name
    if layer == "kernel":
        kernel = rank[named].kernel
        assert kernel is not None
        assert {code[code.index("{") :] for code in changed} == {kernel.code[kernel.code.index("{") :]}
    assert name in named
    run(family, replace(HOW, compiled=False), tmp_path / "written")
    compared = compare(str(tmp_path / "wrong"), str(tmp_path / "written"))
    assert compared.exit_code == 1
    assert f"layer, in the target: {found.layers[0]}" in compared.answer()
