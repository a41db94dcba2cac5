"""These tests run on the simulated device; `make test-npu` builds it and sets its environment."""

from __future__ import annotations

from tests.npu.simulator import device

device.start()
