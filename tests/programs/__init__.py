"""Real programs of other people's libraries, small: `make test-programs` runs them all, `make test` a few."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

Program = Callable[[], list[Tensor]]  # makes all that it uses, trains or runs, and returns all that it leaves


def _declare_vision_ops() -> None:
    """Declare the ops that `import torchvision` looks for, where its wheel is for another build of torch (CUDA's)."""
    if find_spec("torchvision") is None or _loads_vision_ops():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


def _loads_vision_ops() -> bool:
    from importlib.machinery import PathFinder

    spec = find_spec("torchvision")
    folder = list(spec.submodule_search_locations or ()) if spec else []
    found = PathFinder.find_spec("_C", folder)
    try:
        torch.ops.load_library(str(found.origin if found else ""))
    except OSError:
        return False
    return True


_kept: list[torch.library.Library] = []
_declare_vision_ops()
