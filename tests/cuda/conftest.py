"""These tests name the GPU themselves; what names none is made in host memory."""

from tests.accelerator.conftest import no_default_device  # noqa: F401 - a fixture for each of them
