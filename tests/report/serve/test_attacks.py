"""Who may ask the server and for what: a real process, and requests as an attacker sends them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.report.serve.application import CONNECT
from aten_dump.report.serve.guard import new_token
from aten_dump.report.serve.local_server import HOST, listen
from tests.dump.scenario import linear_step
from tests.report.serve.server_process import Served, contents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    linear_step(folder / "dump").builder.finish()
    (folder / "secret.txt").write_text("secret")
    (folder / "dump" / "notes.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    before = contents(folder)
    found = Served(folder / "dump")
    yield found
    code, out, err = found.stop()
    assert (code, out, err) == (0, "", ""), "one line is printed, and Ctrl-C is no error"
    assert contents(folder) == before, "the server wrote something"


def test_it_prints_one_line_with_the_address(served: Served) -> None:
    assert served.line == f"http://127.0.0.1:{served.port}/{served.token}/  (Ctrl-C ends it)\n"
    assert len(served.token) >= 32 and new_token() != new_token()


def test_the_page_and_its_sections_are_there(served: Served) -> None:
    page = served.ask("")
    assert page.status == 200 and page.body.startswith(b"<!doctype html>")
    policy = page.headers["content-security-policy"]
    assert f"connect-src {CONNECT}" in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    expected = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
    expected |= {"cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin"}
    for path in ("", "sections/target/0/0/tree", "generation"):
        answer = served.ask(path)
        assert answer.status == 200
        assert {name: answer.headers[name] for name in expected} == expected
        assert "server" not in answer.headers and "access-control-allow-origin" not in answer.headers
    assert served.ask("", "HEAD").body == b""


@pytest.mark.parametrize(
    "path", ["/", "/x/", "//", "/generation", "/sections/target/0/0/tree", "/%00/", "/ÿ/".encode().decode("latin-1")]
)
def test_without_the_token_there_is_nothing(path: str, served: Served) -> None:
    answer = served.ask_exactly(path.encode("ascii", "ignore").decode() or "/")
    assert answer.status == 403
    assert served.token.encode() not in answer.body and b"linear" not in answer.body


def test_a_part_of_the_token_is_not_enough(served: Served) -> None:
    for token in (served.token[:-1], served.token + "x", served.token.swapcase(), f"x/{served.token}"):
        assert served.ask_exactly(f"/{token}/").status == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "[::1]:{port}", "0.0.0.0:{port}"],
)
def test_another_host_is_refused(host: str, served: Served) -> None:
    """As after DNS rebinding: the browser sends the name that it believes in."""
    assert served.ask("", Host=host.format(port=served.port)).status == 403


def test_localhost_is_this_host(served: Served) -> None:
    assert served.ask("", Host=f"localhost:{served.port}").status == 200


def test_two_hosts_or_none_are_refused(served: Served) -> None:
    own = f"Host: 127.0.0.1:{served.port}\r\n"
    for lines in (own + "Host: evil.example\r\n", ""):
        with socket.create_connection((HOST, served.port), timeout=30) as door:
            door.sendall(f"GET /{served.token}/ HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            assert door.recv(4096).split()[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "file://"]
)
def test_another_origin_is_refused(origin: str, served: Served) -> None:
    answer = served.ask("generation", Origin=origin.format(port=served.port))
    assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
    assert served.ask("generation", Origin=f"http://127.0.0.1:{served.port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(method: str, served: Served) -> None:
    answer = served.ask("sections/outline", method)
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt", "..%2fsecret.txt", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "notes.txt", "target/0/0/notes.txt",
        "target/0/0/index.msgpack", "target/0/0/../../../secret.txt", "target/0/0/tree/0", "target/0/0/calls", "target/0/0/calls/-1",
        "target/0/0/calls/1e3", "target/0/0/calls/99999999999999999999", "target/00000000000/0/tree", "target/9/0/tree", "baseline/0/0/tree",
        "target/0/0/calls/\u0663".encode().decode("latin-1"), "target/0/0/__class__", "target/0/0/calls/0%00", "target/0/0/calls/7",
    ],
)  # fmt: skip
def test_no_name_leaves_the_dump(name: str, served: Served) -> None:
    answer = served.ask("sections/" + name.encode("ascii", "replace").decode().replace("?", "%D9%A3"))
    assert answer.status in (204, 404) and b"secret" not in answer.body and b"root:" not in answer.body


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "it must be side/step/rank/id"),
        ("value=../../secret", "it must be side/step/rank/id"),
        ("value=target/0/0/1&path=/etc/passwd", "allowed: part, value"),
        ("value=target/0/0/1&show=bytes", "show is 'bytes'"),
        ("value=target/0/0/1&at=9,9", "at is [9, 9]"),
        ("value=target/0/0/1&at=-1,0", "numbers from 0 up"),
        ("value=target/0/0/1&dims=0,0", "dims is [0, 0]"),
        ("value=target/0/0/1&dims=5,6", "dims is [5, 6]"),
        ("value=target/0/0/1&share=nan", "share is 'nan'"),
        ("value=target/0/0/1&show=difference", "no partner of its shape"),
        ("value=target/0/0/1&value=" + "9" * 500, "a request about a tensor"),
    ],
)
def test_wrong_requests_about_tensors_are_told_what_is_allowed(query: str, says: str, served: Served) -> None:
    answer = served.ask(f"tensor?{query}")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    assert says in answer.body.decode()


def test_it_listens_on_this_machine_only(served: Served) -> None:
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", served.port), timeout=5):
        pass


def test_a_web_socket_is_refused(served: Served) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    assert served.ask_exactly("/x/", **headers).status == 403
    assert served.ask("", **headers).status in (200, 400, 403), "answered as any other request, or not at all"


def test_nonsense_does_not_end_it(served: Served) -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"\x00" * 70_000,
    ):
        with socket.create_connection((HOST, served.port), timeout=30) as door:
            door.sendall(nonsense)
            door.shutdown(socket.SHUT_WR)
            door.settimeout(10)
            try:
                door.recv(4096)
            except OSError:
                pass
    assert served.ask("generation").status == 200


def test_a_taken_port_is_told(served: Served) -> None:
    with pytest.raises(StoreError, match=f"cannot listen on 127.0.0.1:{served.port}: .*take another --port"):
        listen(served.port)


@pytest.mark.slow
def test_ctrl_c_while_something_is_asked_for(folder: Path) -> None:
    found = Served(folder / "dump")
    try:
        door = socket.create_connection((HOST, found.port), timeout=30)
        door.sendall(f"GET /{found.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{found.port}\r\n\r\n".encode())
        begun = time.monotonic()
        assert found.stop() == (0, "", "")
        assert time.monotonic() - begun < 30
        door.close()
    finally:
        found.kill()
