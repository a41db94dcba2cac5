"""The source lines that tell where a call is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.dump.argument_decoding import Frame
from aten_dump.dump.shown.source_lines import source_lines

USER = Frame("/home/me/train.py", 3, "step", True)
OUTER = Frame("/home/me/main.py", 9, "main", True)
LIBRARY = Frame("/env/lib/python3.11/site-packages/transformers/modeling.py", 70, "forward", False)
DEBIAN = Frame("/usr/lib/python3/dist-packages/timm/layers.py", 5, "forward", False)
TORCH = Frame("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 1, "__call__", False)
STANDARD = Frame("/usr/lib/python3.11/contextlib.py", 2, "inner", False)
WINDOWS = Frame(r"C:\env\Lib\site-packages\diffusers\unet.py", 8, "forward", False)


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ([], ""),
        ([TORCH, STANDARD], ""),
        ([USER, OUTER], "/home/me/train.py:3 in step"),
        ([TORCH, USER, OUTER], "/home/me/train.py:3 in step"),
        ([TORCH, LIBRARY, TORCH, USER], f"{LIBRARY}, from {USER}"),
        ([STANDARD, DEBIAN, LIBRARY, USER], f"{DEBIAN}, from {USER}"),
        ([WINDOWS, USER], f"{WINDOWS}, from {USER}"),
        ([USER, LIBRARY, OUTER], str(USER)),  # a callback of the user's
        ([TORCH, LIBRARY], str(LIBRARY)),
    ],
)
def test_the_line_that_calls_torch_and_the_user_s_own(stack: list[Frame], text: str) -> None:
    assert source_lines(stack) == text


def test_a_backward_call_is_made_where_its_forward_call_is(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="structure")):
        y = torch.ones(3, requires_grad=True).exp()
        y.sum().backward()
    call = open_dump(tmp_path / "d").step(0).rank(0)["Aten.exp.0.forward"]
    assert f"{__file__}:" in call.where
    assert len(call.backward) > 0
    assert {one.where for one in call.backward} == {call.where}
    assert str(call.backward[0].source) != call.where, "its own stack is that of backward()"
