from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_server import BUCKET, Faults, proxy, s3_server, variables


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """A server of S3, of one bucket."""
    pytest.importorskip("obstore")
    with s3_server() as port:
        yield port


@pytest.fixture
def faults(s3_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Faults]:
    """The proxy through which this test reaches the server."""
    with proxy(s3_port) as found:
        for name, value in variables(found.proxy_port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where spools go
        yield found


@pytest.fixture
def url(faults: Faults, request: pytest.FixtureRequest) -> str:
    """A place that no other test writes to."""
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}/run"
