"""Programs on a device that saturates: an overflow gives the largest finite number, and sets a register. Each asserts
what it has to; `test_trigger` runs them in processes that have such a device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.trigger.measured import overflow_registers
from tests.npu.simulator import device

LARGEST = 65504.0
WINDOW: dict[str, Any] = {"trigger": "nonfinite", "trigger_before": 0, "trigger_after": 0, "trigger_times": None}
Body = Callable[[], object]


def large() -> Tensor:
    return torch.full((4,), 60000.0, dtype=torch.float16, device="npu")


def is_set() -> bool:
    return bool(torch.npu.utils.get_npu_overflow_flag())


def clear() -> None:
    torch.npu.utils.clear_npu_overflow_flag()


def recorded(path: Path, body: Body, steps: int = 1, **config: Any) -> Any:
    """Run a body in each of some steps; returns the dump."""
    with DumpMode(DumpConfig(path=path, **{**WINDOW, "data": "full", **config})) as dump:
        for _ in range(steps):
            body()
            dump.step()
    return open_dump(path)


def messages(dump: Any, step: int = 0) -> list[str]:
    return [note.message for note in dump.step(step).rank(0).notes if note.code == "trigger"]


def the_call_that_overflows(path: Path) -> None:
    def body() -> None:
        x = large()
        y = x
        for _ in range(10):
            y = y * 1
        z = y * 2
        for _ in range(10):
            z = z * 1
        assert z.tolist() == [LARGEST] * 4

    dump = recorded(path, body, trigger_before=4, trigger_after=6, level="aten")
    assert dump.run["computing"]["keeps_nonfinite"] is False
    (message,) = messages(dump)
    expected = "aten::mul.Tensor set the overflow register of npu:0: it saturates, and no value shows that: call "
    assert message.startswith(expected), message
    assert message.endswith("4 calls before it and 6 after it were written")
    rank = dump.step(0).rank(0)
    call = rank["Aten.mul.10.forward"]
    assert call.inputs[0][0].tensor().tolist() == [60000.0] * 4 and call.outputs.tensor().tolist() == [LARGEST] * 4
    assert not {"Aten.mul.5.forward", "Aten.mul.17.forward"} & {call.name for call in rank.calls}
    assert is_set(), "the program finds it as it would without us"


def in_backward(path: Path) -> None:
    x = torch.ones(4, dtype=torch.float16, device="npu", requires_grad=True)
    dump = recorded(path, lambda: (x * 60000).backward(torch.full_like(x, 2)), data="structure")
    (message,) = messages(dump)
    assert message.startswith("aten::mul.Tensor set the overflow register of npu:0 in backward: it saturates"), message


def what_was_set_before(path: Path) -> None:
    """A program that overflows before it is recorded, and never clears the register, is told of once."""
    _ = large() * 2
    x = torch.ones(4, device="npu")
    dump = recorded(path, x.exp, steps=3, level="aten")
    assert dump.steps == [0]
    expected = "the overflow register of npu:0 was set by aten::exp or by what ran before it, unrecorded: call "
    assert messages(dump)[0].startswith(expected), messages(dump)


def between_two_steps(path: Path) -> None:
    x = torch.ones(4, device="npu")
    with DumpMode(DumpConfig(path=path, level="aten", steps="0|2", **WINDOW)) as dump:
        x.exp()
        dump.step()
        _ = large() * 2  # of a step that is not recorded
        dump.step()
        x.sin()
    (message,) = messages(open_dump(path), 2)
    assert message.startswith(
        "the overflow register of npu:0 was set by aten::sin or by what ran before it, unrecorded"
    )


def a_program_that_reads_and_clears(path: Path) -> None:
    """What it reads of the register is what it reads without us, and each step that overflows is told."""

    def program(after: Body) -> list[bool]:
        found, x = [], large()
        for factor in (1.0, 2.0, 1.0, 2.0, 2.0):
            found.append(is_set())
            _ = x * factor
            found += [is_set(), is_set()]
            clear()
            found.append(is_set())
            after()
        return found

    bare = program(lambda: None)
    assert bare == [False] * 5 + [True, True] + [False] * 6 + [True, True, False] + [False, True, True, False]
    for data in ("structure", "statistic", "hash", "full"):
        with DumpMode(DumpConfig(path=path, data=data, overwrite=True, **WINDOW)) as mode:
            assert program(mode.step) == bare, data
        dump = open_dump(path)
        assert dump.steps == [1, 3, 4], dump.steps
        for step in dump.steps:
            assert messages(dump, step)[0].startswith("aten::mul.Tensor set the overflow register of npu:0:")


def statistics_do_not_set_it(path: Path) -> None:
    """Squares of these are too large for float32; the register is the program's, whether there is a trigger or not."""
    x = torch.full((3, 1000), 3e30, device="npu")
    gaps = x[:, ::3]
    for data in ("statistic", "full"):
        dump = recorded(path, lambda: (x.neg(), gaps.neg()), data=data, trigger=None, level="aten", overwrite=True)
        assert not is_set(), data
        rank = dump.step(0).rank(0)
        for name, count in (("Aten.neg.0.forward", 3000), ("Aten.neg.1.forward", 1002)):
            stats = rank[name].inputs[0][0].stats
            assert stats.max == stats.min == torch.tensor(3e30).item() and stats.count == count
            assert abs(stats.l2norm / (3e30 * count**0.5) - 1) < 1e-6, stats


def _scaled(after: Body) -> tuple[list[float], list[Tensor]]:
    """Train in half precision with the package's scaler, from a scale that overflows twice."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8).npu()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.npu.amp.GradScaler(init_scale=2.0**18, growth_interval=2)
    x = torch.linspace(-1, 1, 64).reshape(8, 8).npu()
    scales = []
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("npu", dtype=torch.float16):
            loss = net(x).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        after()
    return scales, [p.detach().cpu() for p in net.parameters()]


def a_gradient_scaler(path: Path) -> None:
    scales, weights = _scaled(lambda: None)
    assert scales[0] < 2.0**18 and scales[-1] > min(scales), "some steps overflow, others do not"
    for config in (WINDOW, {"data": "full"}):
        with DumpMode(DumpConfig(path=path, overwrite=True, **config)) as mode:
            again, now = _scaled(mode.step)
        assert again == scales and all(map(torch.equal, now, weights)), config
        if "trigger" in config:
            before = [2.0**18, *scales]
            skipped = [step for step, (a, b) in enumerate(zip(before, scales, strict=False)) if b < a]
            assert open_dump(path).steps == skipped, (open_dump(path).steps, scales)


def no_op_makes_the_host_wait(path: Path) -> None:
    overflow_registers.MOST_SECONDS = 1e9  # type: ignore[misc]
    x = torch.ones(64, 64, device="npu")

    def body() -> None:
        y = x
        for _ in range(100):
            y = (y @ x) / 64

    def counts_of(run: Callable[[Body], None]) -> Counter[str]:
        with device.counted() as counts:
            run(body)
        return Counter({what: count for (what, _), count in counts.items()})

    def record(body: Body) -> None:
        recorded(path, body, data="structure", steps=2, overwrite=True)

    record(body)
    more = counts_of(record) - counts_of(lambda body: (body(), body()))
    assert max(more.values()) <= 6, f"two for each step, the last of which has no call: {more}"


PROGRAMS: tuple[Callable[[Path], None], ...] = (
    the_call_that_overflows,
    in_backward,
    what_was_set_before,
    between_two_steps,
    a_program_that_reads_and_clears,
    statistics_do_not_set_it,
    a_gradient_scaler,
    no_op_makes_the_host_wait,
)


def main(folder: Path) -> None:
    device.start()
    assert not torch.npu.utils.is_support_inf_nan()
    for program in PROGRAMS:
        clear()
        program(folder / program.__name__)
        torch.npu.synchronize()
        print(f"{program.__name__}: fine", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
