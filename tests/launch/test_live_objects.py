"""Models and optimizers that are found, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from aten_dump.launch.live_objects import models_of, optimizers


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    import gc

    gc.collect()
    yield
    gc.collect()


def test_the_outermost_module_is_the_model_and_wrappers_are_looked_through() -> None:
    head = Head()
    wrapped = nn.DataParallel(torch.compile(head))
    optimizer = torch.optim.SGD(head.body.parameters(), lr=1)
    assert models_of([optimizer]) == {"": head}
    assert wrapped.module is not head


def test_several_models_have_their_classes_names() -> None:
    first, second, third, other = Head(), Head(), nn.Linear(1, 1), nn.Linear(1, 1)
    found = [torch.optim.SGD([*second.parameters(), *first.parameters()], lr=1), torch.optim.SGD(third.parameters())]
    assert models_of(found) == {"Head0": second, "Head1": first, "Linear": third}
    assert other not in models_of(found).values()


def test_an_optimizer_around_another_is_one() -> None:
    from accelerate import Accelerator

    known = {id(one) for one in optimizers()}
    inner = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)
    outer = Accelerator(cpu=True).prepare(inner)
    assert outer is not inner
    found = [one for one in optimizers() if id(one) not in known]
    assert len(found) == 1
    assert found[0] in (inner, outer)
