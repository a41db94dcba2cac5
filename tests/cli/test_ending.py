"""A command whose threads are in the midst of torch's code ends with its exit code, not with an abort."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from aten_dump.cli.ending import end_without_threads
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


def ended(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def test_a_thread_in_torch_does_not_abort_the_process() -> None:
    assert ended(IN_TORCH) == (0, "told\n", "")


def test_without_such_a_thread_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    if any(thread.daemon for thread in threading.enumerate()):
        pytest.skip("the test runner itself has daemon threads")
    end_without_threads()
    print("went on")
    assert capsys.readouterr().out == "went on\n"
