"""A command whose threads are in the midst of torch's code ends with its exit code, not with an abort."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from aten_dump.cli.ending import end_without_threads, ended_by_sigint
from tests.checkout import ROOT

IN_TORCH = """
import threading, time
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from aten_dump.cli.ending import end_without_threads

begun = threading.Event()

class Slow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begun.set()
        for _ in range(100_000_000):
            pass

def work():
    with Slow():
        torch.exp(torch.ones(2))

threading.Thread(target=work, daemon=True).start()
begun.wait()
print("told")
end_without_threads()
"""

INTERRUPTED_IN_AN_IMPORT = """
import os, signal
from aten_dump.cli.ending import ended_by_sigint

with ended_by_sigint():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # as C++ code does that imports numpy
print("went on without a part")
"""


def ended(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_thread_in_torch_does_not_abort_the_process() -> None:
    assert ended(IN_TORCH) == (0, "told\n", "")


def test_without_such_a_thread_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    if any(thread.daemon for thread in threading.enumerate()):
        pytest.skip("the test runner itself has daemon threads")
    end_without_threads()
    print("went on")
    assert capsys.readouterr().out == "went on\n"


def test_ctrl_c_while_torch_is_imported_ends_the_process() -> None:
    assert ended(INTERRUPTED_IN_AN_IMPORT) == (130, "", "Interrupted.\n")


def test_after_imports_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ended_by_sigint():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: ended_by_sigint().__enter__()).result()
    assert signal.getsignal(signal.SIGINT) == before, "only the main thread may change it"
