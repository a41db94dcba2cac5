"""Settings of the test session."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys

# Before torch is imported: several workers on few cores must not spin, and no test may reach for a model hub.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from tests import cpu_only, devices

torch.set_num_threads(2)  # the same everywhere, as sums depend on it
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell's for what it starts in the background; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These need torch_npu and a stand-in for its driver: `make test-npu` sets both up and runs them.
collect_ignore = [] if importlib.util.find_spec("torch_npu") else ["npu"]

_modules = 0  # how many were imported when the collector was last spared what there is


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=devices.DEVICES, default="cpu", help="where the tests make their tensors")
    parser.addoption("--part", default="1/1", metavar="1/3", help="run one of so many equal parts of the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Make tensors on the device of ``--device`` where a test, or a file of tests, names none."""
    device = config.getoption("device")
    devices.use(device)
    collect_ignore.extend(["accelerator"] if device == "cpu" else [])
    collect_ignore.extend(["cuda"] if device != "cuda" else [])


@pytest.hookimpl(trylast=True)  # of what other options leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of the part asked for, and skip what cannot run on the device asked for, with the reason."""
    part, parts = (int(number) for number in config.getoption("part").split("/"))
    chosen = set(items[part - 1 :: parts])
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
    device = config.getoption("device")
    if device != "cpu":
        for item in items:
            if reason := cpu_only.reason_of(item.nodeid, device):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Spare the collector what earlier tests left for good: many tests ask for a collection, some for dozens."""
    _freeze()


@pytest.fixture(autouse=True)
def _imported() -> None:
    """Spare it what the test before, or a fixture of the module, has imported: dynamo alone is a second of collections."""
    if len(sys.modules) > _modules + 50:
        _freeze()


def _freeze() -> None:
    global _modules
    gc.collect()
    gc.freeze()
    _modules = len(sys.modules)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Spare the collector what is there for good: modules, and thousands of tests."""
    _freeze()
