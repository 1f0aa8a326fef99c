"""The lab as an ASGI app: one page, and runs of its views."""

from __future__ import annotations

import json
from collections.abc import Sequence

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
    """Return the app. Its runs are in `state.runs`; the server closes them.

    Args:
        views: the views of the page.
        token: the token that a browser must send.
        port: the local port that the app is served at.
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
        wanted = await _read_json(request)
        view = by_name.get(str(wanted.get("view")))
        if view is None:
            raise BadOption(f"The lab has no view {wanted.get('view')!r}.")
        values = wanted.get("values", {})
        if not isinstance(values, dict):
            raise BadOption("values must be an object with a value for each control.")
        run = runs.begin(view, read(view.controls, values))
        return StreamingResponse(run.lines(), media_type="application/x-ndjson", headers={"cache-control": "no-store"})

    async def act(request: Request) -> Response:
        number: str = request.path_params["number"]  # a string: Python refuses to convert thousands of digits
        runs.act(number, str((await _read_json(request)).get("action")))
        return JSONResponse({})

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/runs", begin, methods=["POST"]),
            Route("/runs/{number}/actions", act, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={BadOption: _refused, ClientDisconnect: _refused},  # no traceback if the client disconnects
    )
    app.state.runs = runs
    return app


async def _read_json(request: Request) -> dict[str, object]:
    """Return the JSON object in a request.

    Raises:
        BadOption: the request is not a JSON object, or is too long.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise BadOption(f"The request is too long: the lab accepts at most {_MOST_BYTES:,} bytes.")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"The request is not JSON: {words(error)}.") from error
    if not isinstance(value, dict):
        raise BadOption("The request is not a JSON object.")
    return value


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)
