"""`aten-dump serve` as a process of its own, and requests to it that say exactly what a test wants."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import ROOT


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A running server; `stop` is Ctrl-C."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "aten_dump", "serve", *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split(" ")[0]
        self.port = int(self.url.split(":")[2].split("/")[0]) if self.line else 0
        self.token = self.url.split("/")[3] if self.line else ""

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send a request for a path below the token; `Host` is left out where it is given as ""."""
        return self.ask_exactly(f"/{self.token}/{path}", method, **headers)

    def ask_exactly(self, path: str, method: str = "GET", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            given = {"Host": f"127.0.0.1:{self.port}", **headers}
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())
        finally:
            connection.close()

    def stop(self) -> tuple[int, str, str]:
        """Press Ctrl-C; return exit code, what else it printed, and its errors."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=60)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of all that is in a folder."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}
