"""Who may ask: the browser on this machine that has the address with the token, and nobody through another page.

Theory of operation
    Other pages in the same browser can send requests to 127.0.0.1 too. They do not know the token, and each answer says
    that only its own page may use it. A page of another host whose name is made to lead here (DNS rebinding) is met by
    the Host header; one that a script of another page sends, by Origin. All is read: GET and HEAD, nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_BYTES: Final = 24


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Guard:
    """An application that hands on what may be asked."""

    def __init__(self, app: ASGIApp, token: str, port: int, policy: str) -> None:
        """Take the application, the first part of every path, the port that it is on, and the page's policy."""
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._headers = [
            (b"content-security-policy", f"{policy}; frame-ancestors 'none'".encode()),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status, why = self._refusal(scope)
            refused = PlainTextResponse(f"{why}\n", status, {"allow": "GET, HEAD"} if status == 405 else None)
            await (refused if status else self._app)(scope, receive, send_guarded)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """Return status and reason, 0 for what may be asked."""
        if _values(scope["headers"], b"host") not in [[host] for host in self._hosts]:
            return 403, "this server answers to 127.0.0.1 only"
        if any(origin not in self._origins for origin in _values(scope["headers"], b"origin")):
            return 403, "this server answers to its own page only"
        token = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not secrets.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            return 403, "take the whole address, with its token, that aten-dump serve printed"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "a dump is only read here"
        return 0, ""


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]
