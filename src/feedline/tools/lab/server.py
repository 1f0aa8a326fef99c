"""The lab as an ASGI app (one page, and runs of its views), and its server on 127.0.0.1."""

from __future__ import annotations

import json
import socket
import sys
import webbrowser
from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from feedline.errors import BadOption
from feedline.system.failures import words
from feedline.tools.lab.guard import Guard, new_token
from feedline.tools.lab.page import page_of
from feedline.tools.lab.runs import Runs, start_fork_server
from feedline.tools.lab.view import View

_MOST_BYTES = 100_000


class Server(uvicorn.Server):
    """Serves views. When it is stopped, it ends the runs first, so that their readers are not cut off."""

    def __init__(self, views: Sequence[View], *, token: str, port: int) -> None:
        self._runs = Runs()
        app = _app_of(views, self._runs, token=token, port=port)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                server_header=False,
                lifespan="off",  # its task would show a traceback if Ctrl-C came twice
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the runs, then all connections. Called on the event loop's thread."""
        self._runs.close()
        await super().shutdown(sockets)


def serve(views: Sequence[View], *, port: int = 0, open_browser: bool = True, shown: str = "") -> None:
    """Listen on 127.0.0.1, print the address, and open a browser. Returns after Ctrl-C or SIGTERM.

    Args:
        views: the views of the page.
        port: 0 for any free port.
        open_browser: True to open the address in a browser.
        shown: the view to open, with values of its controls, as the page writes them after `#`.

    Raises:
        BadOption: the port cannot be used.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()  # connections that arrive before the server has started wait
    except (OSError, OverflowError) as error:  # the second for a number that no port has
        listening.close()
        raise BadOption(
            f"Port {port} cannot be used: {words(error)}. Choose another with --port, or omit it to get a free one."
        ) from error
    token, bound = new_token(), listening.getsockname()[1]
    address = f"http://127.0.0.1:{bound}/?token={token}{shown and f'#{shown}'}"
    sys.stdout.write(f"The lab is at {address}\nCtrl-C stops it.\n")
    sys.stdout.flush()
    start_fork_server()
    if open_browser:
        webbrowser.open(address)
    with listening:
        Server(views, token=token, port=bound).run(sockets=[listening])


def _app_of(views: Sequence[View], runs: Runs, *, token: str, port: int) -> Starlette:
    by_name = {view.name: view for view in views}

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

    async def run(request: Request) -> Response:
        wanted = await _read_json(request)
        view, values = by_name.get(str(wanted.get("view"))), wanted.get("values", {})
        if view is None:
            raise BadOption(f"The lab has no view {wanted.get('view')!r:.40}.")
        if not isinstance(values, dict):
            raise BadOption("values must be an object with a value for each control.")
        runs.check_room()
        lines = runs.lines(view, view.read(values))
        return StreamingResponse(lines, media_type="application/x-ndjson", headers={"cache-control": "no-store"})

    async def click(request: Request) -> Response:
        number: str = request.path_params["number"]  # a string: Python refuses to convert thousands of digits
        runs.click(number, str((await _read_json(request)).get("action")))
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/runs", run, methods=["POST"]),
            Route("/runs/{number}/clicks", click, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={BadOption: _refused, ClientDisconnect: _refused},  # no traceback if the client disconnects
    )


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
