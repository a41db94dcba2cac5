"""A program of four gloo ranks that hangs, or goes apart, in the way that its first argument names.

usage: hanging_program.py CASE DUMP, with RANK and WORLD_SIZE. Rank 3 does something else than the others in step 1.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode

CASE, OUT = sys.argv[1:3]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
groups: dict[str, Any] = {}
kept: list[Any] = []


def sleep() -> None:
    while True:
        time.sleep(0.1)


def reduce(numel: int = 4, **more: Any) -> None:
    dist.all_reduce(torch.ones(numel), **more)


def ends(bad: bool, how: Callable[[], Any]) -> None:
    """Have this rank end in its next collective, as soon as that has begun."""
    if bad:
        Within.ends = how


class Within(TorchDispatchMode):
    """Stands between the recorder and the kernels of collectives."""

    ends: Callable[[], Any] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Within.ends is not None and func.namespace == "c10d":
            Within.ends()
        return func(*args, **(kwargs or {}))


def all_send_first(bad: bool) -> None:
    dist.send(torch.ones(4), dst=(RANK + 1) % WORLD)
    dist.recv(torch.ones(4), src=(RANK - 1) % WORLD)


def dropped_send(bad: bool) -> None:
    if bad:
        dist.isend(torch.ones(4), dst=0)  # its Work goes at once, and the message with it
        sleep()
    if RANK == 0:
        time.sleep(1)
        dist.recv(torch.ones(4), src=3)
    reduce()


def stopped(bad: bool) -> None:
    if bad:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce()


def left_at_once(bad: bool) -> None:
    if bad:
        os._exit(7)
    time.sleep(600)


def left_within(bad: bool) -> None:
    ends(bad, lambda: os._exit(7))
    dist.all_reduce(torch.ones(4))


def killed_within(bad: bool) -> None:
    ends(bad, lambda: os.kill(os.getpid(), signal.SIGKILL))
    dist.all_reduce(torch.ones(4))


def raised_within(bad: bool) -> None:
    ends(bad, lambda: torch.ones(4).reshape(3))
    dist.all_reduce(torch.ones(4))


def keeps_the_lock(bad: bool) -> None:
    if bad:
        re.match(r"(a+)+$", "a" * 60 + "b")  # never lets go of Python's lock
    reduce()


def scatter_from_another(bad: bool) -> None:
    root = 2 if bad else 0
    parts = [torch.ones(4)] * WORLD if root == RANK else None
    dist.scatter(torch.ones(4), parts, src=root)
    reduce()


def barrier_or_broadcast(bad: bool) -> None:
    if bad:
        dist.barrier()
    else:
        dist.broadcast(torch.ones(4), src=0)


def chain(bad: bool) -> None:
    """0 waits for 1, which waits for 2, which waits for 3, which sleeps."""
    if bad:
        sleep()
    reduce(group=groups["12" if RANK == 1 else "23" if RANK == 2 else "01"])


def circle_of_three(bad: bool) -> None:
    first, second = {0: ("01", "02"), 1: ("12", "01"), 2: ("02", "12")}.get(RANK, ("", ""))
    if first:
        reduce(group=groups[first])
        reduce(group=groups[second])
    sleep()


def another_tag(bad: bool) -> None:
    if RANK == 0:
        dist.send(torch.ones(4), dst=1, tag=7)
    if RANK == 1:
        dist.recv(torch.ones(4), src=0, tag=8)
    reduce()


def lock(bad: bool) -> None:
    if bad:
        threading.Event().wait()
    reduce()


def functional_collective(bad: bool) -> None:
    if bad:
        sleep()
    functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))


def raise_in_backward(bad: bool) -> None:
    tensor = torch.ones(4, requires_grad=True)
    if bad:
        tensor.register_hook(lambda gradient: gradient.reshape(3))
    tensor.sum().backward()
    reduce()


def another_reduction(bad: bool) -> None:
    reduce(op=dist.ReduceOp.MAX if bad else dist.ReduceOp.SUM)


def unwaited(bad: bool) -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    kept.append((work, tensor))
    if not bad:
        work.wait()


def one_less(bad: bool) -> None:
    for _ in range(2 if bad else 3):
        reduce()


def slow(bad: bool) -> None:
    if bad:
        for _ in range(6000):
            torch.ones(4).add_(1)
            time.sleep(0.1)
    reduce()


def interrupted(bad: bool) -> None:
    if bad:
        raise KeyboardInterrupt
    time.sleep(600)


def unrecorded(bad: bool) -> None:
    if bad:
        sleep()
    reduce()


CASES: dict[str, Callable[[bool], None]] = {
    name: function
    for name, function in list(globals().items())
    if callable(function)
    and getattr(function, "__module__", "") == __name__
    and name not in ("sleep", "reduce", "ends", "Within")
}


def main() -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=600)
    dist.init_process_group("gloo", init_method=f"file://{OUT}.store", rank=RANK, world_size=WORLD, timeout=limit)
    for name in ("01", "12", "23", "02"):
        groups[name] = dist.new_group([int(number) for number in name])
    steps = "0" if CASE == "unrecorded" else "all"
    with (
        Within() if CASE.endswith("_within") else contextlib.nullcontext(),
        DumpMode(DumpConfig(path=OUT, data="structure", steps=steps)) as dump,
    ):
        for step in range(3):
            if step == 1:
                CASES[CASE](RANK == WORLD - 1)
            else:
                reduce()
            dump.step()


if __name__ == "__main__":
    main()
