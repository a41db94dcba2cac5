"""Names of dtypes in records lead back to the dtype."""

from __future__ import annotations

import torch

from aten_dump.capture.memory.dtypes import dtype_name

DTYPES = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]


def test_a_name_is_the_attribute_of_torch_and_nothing_more() -> None:
    assert dtype_name(torch.float32) == "float32"
    assert len(DTYPES) > 30
    assert [getattr(torch, dtype_name(dtype)) for dtype in DTYPES] == DTYPES


def test_an_old_name_of_a_dtype_is_told_by_the_new_one() -> None:
    assert (dtype_name(torch.half), dtype_name(torch.double)) == ("float16", "float64")
