"""The lab as an ASGI app: one page, and runs of its views."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from feedline.errors import BadOption
from feedline.system.failures import words
from feedline.tools.lab.controls import read
from feedline.tools.lab.guard import Guard, new_token
from feedline.tools.lab.page import page_of
from feedline.tools.lab.runs import Runs
from feedline.tools.lab.view import View

_MOST_BYTES = 100_000


def app_of(views: Sequence[View], *, token: str, port: int) -> Starlette:
    """Return the app; its runs are `state.runs`, and whoever serves it closes them.

    Args:
        views: what it shows.
        token: what a browser has to know.
        port: where it listens, on this machine.
    """
    by_name = {view.name: view for view in views}
    runs = Runs()

    async def page(_: Request) -> Response:
        nonce = new_token()
        policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"
        headers = {
            "content-security-policy": f"{policy}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }
        return HTMLResponse(page_of(views, token=token, nonce=nonce), headers=headers)

    async def begin(request: Request) -> Response:
        asked = await _asked(request)
        view = by_name.get(str(asked.get("view")))
        if view is None:
            raise BadOption(f"The lab has no view {asked.get('view')!r}.")
        values = asked.get("values", {})
        if not isinstance(values, dict):
            raise BadOption("values: give an object with a value for each control.")
        run = runs.begin(view, read(view.controls, values))
        return StreamingResponse(run.lines(), media_type="application/x-ndjson", headers={"cache-control": "no-store"})

    async def act(request: Request) -> Response:
        number: str = request.path_params["number"]  # as text: of thousands of digits, it is no number for Python
        runs.act(number, str((await _asked(request)).get("action")))
        return JSONResponse({})

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/runs", begin, methods=["POST"]),
            Route("/runs/{number}/actions", act, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={BadOption: _refused, ClientDisconnect: _refused},  # whom nobody hears: no traceback
    )
    app.state.runs = runs
    return app


async def _asked(request: Request) -> dict[str, Any]:
    """Return what a request holds.

    Raises:
        BadOption: it is no JSON object, or too long.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise BadOption(f"A request to the lab has at most {_MOST_BYTES:,} bytes.")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"The request is no JSON: {words(error)}.") from error
    if not isinstance(asked, dict):
        raise BadOption("The request is no JSON object.")
    return asked


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)
