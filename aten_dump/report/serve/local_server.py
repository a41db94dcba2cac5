"""The server itself: a socket on 127.0.0.1, one line that says where, and a clean end at Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from ...errors import MissingDataError, StoreError
from .served_dump import ServedDump

HOST = "127.0.0.1"  # never another: whoever reaches a server can read what it serves


def listen(port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any that is free.

    Raises:
        StoreError: the port is taken, or not allowed.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(64)
    except OSError as error:
        found.close()
        raise StoreError(
            error.errno, f"cannot listen on {HOST}:{port}: {error.strerror}; take another --port"
        ) from error
    return found


def serve(served: ServedDump, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        served: what is shown.
        port: to listen on; 0 is any that is free.
        say: is called with the address when it can be opened.

    Raises:
        MissingDataError: what the extra ``serve`` installs is not there.
        StoreError: the port is taken.
    """
    try:
        import uvicorn

        from .application import application
        from .guard import new_token
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette"):
            raise
        raise MissingDataError("serve needs starlette and uvicorn: pip install 'aten-dump[serve]'") from None
    with listen(port) as door:
        token, own_port = new_token(), door.getsockname()[1]
        app = application(served, token, own_port)
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        started = server.startup

        async def startup(sockets: list[socket.socket] | None = None) -> None:
            await started(sockets)
            say(f"http://{HOST}:{own_port}/{token}/")  # not before Ctrl-C ends it cleanly

        server.startup = startup  # type: ignore[method-assign]
        Thread(target=served.read_ahead, daemon=True, name="aten-dump read ahead").start()
        with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has ended
            server.run(sockets=[door])
