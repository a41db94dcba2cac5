"""An S3 server on this machine (moto's, a process of its own), and a proxy in front of it that makes it fail or wait."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "bucket"


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Run the server; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    request(port, "PUT", f"/{BUCKET}")
                    break
                time.sleep(0.1)
            yield port
        finally:
            server.kill()


def request(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
    """Send a request; returns (status, headers, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


@dataclass
class Faults:
    """What the proxy does, and what it saw."""

    port: int  # of the server
    delay_s: float = 0.0
    is_down: bool = False  # connections are closed without an answer
    denies: bool = False  # 403
    error_rate: float = 0.0  # half of them 500, half a connection that is closed
    on_put: Callable[[int], None] | None = None  # before the n-th PUT is passed on
    after_put: Callable[[int], None] | None = None
    requests: list[tuple[str, str, int]] = field(default_factory=list)  # method, path, bytes of the answer
    at_once: int = 0
    most_at_once: int = 0
    puts: int = 0
    proxy_port: int = 0
    lock: Any = field(default_factory=threading.Lock)
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def got(self) -> list[str]:
        """The paths that were read, with how often."""
        return [path for method, path, _ in self.requests if method == "GET"]

    def put_paths(self) -> list[str]:
        return [path for method, path, _ in self.requests if method == "PUT"]

    def forget(self) -> None:
        """Forget what was asked, once nothing more is on its way."""
        quiet = 0
        while quiet < 10:
            time.sleep(0.02)
            quiet = 0 if self.at_once else quiet + 1
        self.requests.clear()
        self.most_at_once = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults

    def _pass_on(self) -> None:
        faults, body = self.faults, self._body()
        with faults.lock:
            faults.at_once += 1
            faults.most_at_once = max(faults.most_at_once, faults.at_once)
            number = faults.puts = faults.puts + (self.command == "PUT")
            dice = faults.dice.random()
        try:
            if self.command == "PUT" and faults.on_put is not None:
                faults.on_put(number)
            time.sleep(faults.delay_s)
            if faults.is_down or dice < faults.error_rate / 2:
                self.close_connection = True
                self.connection.close()
                return
            if faults.denies or dice < faults.error_rate:
                text = b"<Error><Code>%s</Code></Error>" % (b"AccessDenied" if faults.denies else b"InternalError")
                self._answer(403 if faults.denies else 500, [], text)
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "transfer-encoding")}
            status, given, data = request(faults.port, self.command, self.path, body, headers)
            if self.command == "PUT" and faults.after_put is not None:
                faults.after_put(number)
            faults.requests.append((self.command, self.path, len(data)))
            self._answer(status, given, data)
        except OSError:  # who asked has gone
            self.close_connection = True
        finally:
            with faults.lock:
                faults.at_once -= 1

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = (
            next((v for k, v in headers if k.lower() == "content-length"), None) if self.command == "HEAD" else None
        )
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass  # who asked has gone


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Faults]:
    """Run a proxy in front of a server."""
    faults = Faults(port)
    handler = type("Handler", (_Handler,), {"faults": faults})
    server = _Server(("127.0.0.1", 0), handler)
    faults.proxy_port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield faults
    finally:
        server.shutdown()
        server.server_close()


def variables(port: int) -> dict[str, str]:
    """Return the variables of the environment by which a program finds a server."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
