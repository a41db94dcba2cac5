"""The threads of torch's that the C files run on: found, waited with, and not asked for by a forked child."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from aten_dump.capture.torch_threads import IS_COMPILED, TeamBell, bell_for_program, team_address
from aten_dump.store.threads.bell import Bell
from tests.checkout import ROOT
from tests.forked import run
from tests.sampling import every_second

needs_compiler = pytest.mark.skipif(not IS_COMPILED, reason="nothing is compiled here: `make test-compiled` runs it")
needs_gomp = pytest.mark.skipif(
    platform.system() != "Linux" or "OpenMP" not in torch.__config__.parallel_info(),
    reason="torch runs on no OpenMP runtime with GOMP_parallel here",
)


@needs_gomp
def test_the_runtime_of_torch_is_found() -> None:
    assert team_address() and team_address() == team_address()


def test_what_the_program_waits_with() -> None:
    assert type(bell_for_program()) is (TeamBell if IS_COMPILED and team_address() else Bell)


@needs_compiler
def test_rung_before_or_meanwhile_it_wakes_once() -> None:
    bell, other = TeamBell(), TeamBell()
    bell.ring()
    bell.ring()
    begun = time.monotonic()
    bell.wait(60)
    other.ring()
    threading.Timer(0.05, bell.ring).start()
    bell.wait(60)
    assert time.monotonic() - begun < 50
    begun = time.monotonic()
    bell.wait(0.2)
    assert time.monotonic() - begun >= 0.2, "it is set back when it has woken somebody; another's ring is not heard"


@needs_compiler
@needs_gomp
def test_nobody_of_the_team_spins_while_the_program_waits() -> None:
    """After an op the others spin for milliseconds; the processor time of a wait of half a second is nearly none."""
    x = torch.randn(1 << 20)
    x.add_(1)
    begun = time.process_time()
    for _ in range(50):
        x.add_(1)
        TeamBell().wait(0.01)
    assert time.process_time() - begun < 0.25


@needs_compiler
def test_a_ring_from_another_thread_is_never_missed() -> None:
    bell, rounds = TeamBell(), 2000
    turn = [0]

    def answer() -> None:
        for number in range(rounds):
            while turn[0] == number:
                time.sleep(0)
            bell.ring()

    thread = threading.Thread(target=answer)
    thread.start()
    begun = time.monotonic()
    for _ in range(rounds):
        turn[0] += 1
        bell.wait(5)
    thread.join()
    assert time.monotonic() - begun < 60, "missed rings last five seconds each"


FORKED = """
import os, sys, torch
from aten_dump.capture import torch_threads
from aten_dump.capture.data.statistics.one_pass import of_memory
x = torch.randn(1 << 20)
names = ("mean", "l2norm", "std", "zero")
here = of_memory(x.dtype, x.data_ptr(), x.numel(), names)  # torch's threads are there now
child = os.fork()
if not child:
    found = of_memory(x.dtype, x.data_ptr(), x.numel(), names)
    bell = torch_threads.TeamBell()
    bell.wait(0.05)
    bell.ring()
    bell.wait(60)
    os._exit(0 if found == here else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_without_them() -> None:
    """They are not there any more: to ask for them is to wait for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"


INTERRUPTED = """
import sys, torch
from aten_dump.capture.torch_threads import bell_for_program
torch.randn(1 << 20).add_(1)
bell = bell_for_program()
try:
    print("waits", flush=True)
    while True:
        bell.wait(0.05)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_wait(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


FORKS_WHILE_RECORDED = """
import os, sys, torch
from pathlib import Path
from aten_dump import DumpConfig, DumpMode
data, root, spares_a_core = sys.argv[1:]
if spares_a_core == "True":  # then nobody waits with the writer's thread
    from aten_dump.capture import run_file
    run_file.has_spare_core = lambda: True
x = torch.frombuffer(bytearray(8 << 20), dtype=torch.float32)  # no op of the program's own runs on several threads
with DumpMode(DumpConfig(path=Path(root) / "dump", data=data)):
    x.view(-1, 8)
    torch.ones(10).add_(1)
    child = os.fork()
    if not child:
        torch.ones(8 << 20).add_(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    torch.ones(1 << 20).add_(1)
"""


@needs_gomp
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("spares_a_core", [False, True])
@pytest.mark.parametrize("data", every_second(["statistic", "tensor", "full"]))
def test_a_child_that_is_forked_while_its_parent_is_recorded_goes_on(
    tmp_path: Path, data: str, spares_a_core: bool
) -> None:
    """What the recorder does with torch's threads begins them; a child that inherits them waits for ever."""
    ended = run(["-c", FORKS_WHILE_RECORDED, data, str(tmp_path), str(spares_a_core)], tmp_path / "said")
    assert (ended.code, ended.said.splitlines()[-1]) == (0, "0"), ended.said


FORKS_AFTER_RECORDING = """
import os, sys, torch
from pathlib import Path
from aten_dump import DumpConfig, DumpMode

def threads():
    return len(os.listdir("/proc/self/task"))

def fork():
    child = os.fork()
    if not child:
        torch.ones(10).add_(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

torch.set_num_threads(3)
x = torch.ones(8 << 20)
with DumpMode(DumpConfig(path=Path(sys.argv[1]) / "dump", data="statistic")):
    x.add_(1)
    before = threads()
    fork()
    print("while recorded", threads() - before)
after = threads()
print("fork after", fork())
x.add_(1)
before = threads()
fork()
print("after", threads() - before)
"""


@needs_gomp
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not counted here")
def test_the_team_is_the_programs_own_again_once_recording_has_ended(tmp_path: Path) -> None:
    ended = run(["-c", FORKS_AFTER_RECORDING, str(tmp_path)], tmp_path / "said")
    assert ended.code == 0, ended.said
    said = ended.said.splitlines()[-3:]
    assert said[0].startswith("while recorded -") and said[1:] == ["fork after 0", "after 0"], ended.said
