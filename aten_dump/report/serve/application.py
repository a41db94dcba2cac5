"""What the server answers: the page, sections by name, slices of tensors, and whether there is something new.

Theory of operation
    Sections take from a millisecond to seconds; each request that makes one runs in a thread that does not keep the
    process from ending. What the dump does not have, or has no right bytes for, is an answer too, with no content or
    with a text that the page shows: a browser would report any other status as an error of the page.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from threading import Thread
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...errors import AtenDumpError
from ...plain_text import visible_lines
from ..html.document import document, policy
from .guard import Guard
from .served_dump import ServedDump
from .tensor_requests import tensor_section

CONNECT: Final = "'self'"
Answer = TypeVar("Answer")


def application(served: ServedDump, token: str, port: int) -> Guard:
    """Return the application of a dump.

    Args:
        served: what is shown.
        token: that each path begins with.
        port: of 127.0.0.1 that it is reached at.
    """

    async def page(request: Request) -> Response:
        text = await in_thread(lambda: "".join(document([("outline", served.outline())], connect=CONNECT)))
        return HTMLResponse(text)

    async def section(request: Request) -> Response:
        return await _answer(lambda: served.section(request.path_params["name"]))

    async def tensor(request: Request) -> Response:
        query = dict(request.query_params)
        return await _answer(lambda: tensor_section(served, query))

    async def generation(request: Request) -> Response:
        return JSONResponse({"generation": await in_thread(served.refresh)})

    routes = [
        Route("/{token}/", page),
        Route("/{token}/generation", generation),
        Route("/{token}/tensor", tensor),
        Route("/{token}/sections/{name:path}", section),
    ]
    return Guard(Starlette(routes=routes), token, port, policy(CONNECT))


async def _answer(make: Callable[[], bytes | None]) -> Response:
    try:
        found = await in_thread(make)
    except AtenDumpError as error:
        return PlainTextResponse(visible_lines(str(error)))
    except asyncio.CancelledError:  # the server ends while this is made
        return Response(status_code=503)
    if found is None:
        return Response(status_code=204)
    return Response(found, media_type="application/octet-stream")


def in_thread(make: Callable[[], Answer]) -> Awaitable[Answer]:
    """Run a function in a thread of its own, one that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def then(act: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if future.done() else act())

    def run() -> None:
        try:
            found = make()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            failure = error
            if not isinstance(error, AtenDumpError):
                traceback.print_exc()  # a bug in aten_dump: the answer is an error without text
            then(lambda: future.set_exception(failure))
        else:
            then(lambda: future.set_result(found))

    Thread(target=run, daemon=True, name="aten-dump section").start()
    return future
