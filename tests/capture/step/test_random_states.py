"""The generator state before each random op is recorded, and the stream does not move for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from aten_dump.capture.naming.interned_tables import Interner
from aten_dump.capture.step.random_states import RandomStates
from aten_dump.store.records import RANDOM, TEXT
from tests.capture.bits import calls
from tests.devices import here, random_states
from tests.store.memory_sink import MemorySink


def state() -> torch.Tensor:
    """The state of the default generator of the device that the tests run on."""
    return random_states()[-1]


def body() -> None:
    torch.randn(3)
    torch.bernoulli(torch.full((64,), 0.5))
    torch.rand(2, generator=torch.Generator(here()).manual_seed(11))
    torch.ones(3).add(1)


def test_states_are_those_before_each_op(record: Callable[..., Any]) -> None:
    torch.manual_seed(4)
    states = {"aten::randn": state()}
    torch.randn(3)
    states["aten::bernoulli"] = state()
    states["aten::rand.generator"] = torch.Generator(here()).manual_seed(11).get_state()
    torch.manual_seed(4)
    body()
    after = state()
    torch.manual_seed(4)
    rank = record(body, data="tensor")
    assert torch.equal(state(), after)
    found = {call.op: call.random_state for call in calls(rank, kind="aten") if call.random_state}
    assert {op: (device, raw) for op, (device, raw) in found.items()} == {
        op: (str(here()), bytes(expected.tolist())) for op, expected in states.items()
    }


def test_equal_states_are_stored_once_and_only_with_bytes(record: Callable[..., Any]) -> None:
    def attention() -> None:
        q = torch.ones(1, 2, 4, 8)
        for _ in range(3):
            F.scaled_dot_product_attention(q, q, q)  # may draw, and does not

    rank = record(attention, data="tensor")
    assert len(rank.tables.random) == 3
    assert len({random.blob for random in rank.tables.random.records()}) == 1
    for data in ("structure", "statistic", "hash"):
        assert not record(attention, data=data).tables.random


class Kept:
    """The states of a step on a sink in memory."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.states = RandomStates(True, self.sink, Interner(self.sink.emit))

    def keep(self, *args: Any, **kwargs: Any) -> tuple[str, bytes | None]:
        """The device and the state of the op's record."""
        self.states.keep(5, args, kwargs)
        random = self.sink.of(RANDOM)[-1]
        texts = {record.id: record.text for record in self.sink.of(TEXT)}
        assert random.call == 5
        return texts[random.device], self.sink.blobs.get(random.blob)


def test_an_op_draws_from_the_generator_it_is_given_wherever_it_stands() -> None:
    kept, mine = Kept(), torch.Generator("cpu").manual_seed(3)
    drawn_from = bytes(mine.get_state().tolist())
    assert kept.keep([2], mine) == ("cpu", drawn_from)
    assert kept.keep([2], generator=mine) == ("cpu", drawn_from)
    assert kept.keep([2], generator=None) == ("cpu", bytes(torch.get_rng_state().tolist()))
    assert len(kept.sink.blobs) == 2


def test_the_device_is_the_one_told_else_that_of_the_first_tensor() -> None:
    kept, tensor, nowhere, name = Kept(), torch.ones(1), torch.ones(1, device="meta"), str(here())
    assert kept.keep([2])[0] == "cpu"
    assert kept.keep([[nowhere], tensor]) == ("meta", None), "a device without a generator has no state"
    assert kept.keep(tensor, nowhere)[0] == name
    assert kept.keep(nowhere, device="cpu")[0] == "cpu"
    assert kept.keep(nowhere, device=here().type)[0] == name, "the current one of that type"
    assert kept.keep(tensor, device=torch.device("meta"))[0] == "meta"
    assert kept.keep(tensor, device=None)[0] == name
