"""The lab's page, the runs of its views, and the server on 127.0.0.1 that shows them.

Each run is in a process of its own, which Python's fork server starts: it has feedline and torch imported, and no
threads or held locks. The process leads a session, so one signal ends it together with its workers. A run waits while
its events are not read, so a slow page slows down its own run and nothing else.

The lab runs code on the user's machine, and any page in a browser can send requests to 127.0.0.1. So a request must
pass three checks, each of which would be enough alone:

- `Host` must be the address that the lab listens at. Other names made to point here (DNS rebinding) are refused.
- `Origin` and `Sec-Fetch-Site`, which pages cannot forge, must not name another site.
- The token, drawn when the lab starts, must be in the address of the page, and in a header of every other request: no
  other site can send that header.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import multiprocessing
import os
import platform
import queue
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
import webbrowser
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from importlib import resources
from multiprocessing import forkserver
from multiprocessing.connection import Connection

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from feedline.errors import BadOption, FeedlineError
from feedline.system import socket_folder
from feedline.system.failures import words
from feedline.system.limits import usable_cores
from feedline.tools.advise.page import packed
from feedline.tools.lab.view import Clicks, Event, View, failure
from feedline.types import JsonObject

HEADER = "x-feedline-token"
MOST = 4
"""Maximum runs at a time. Browsers open six connections to a server, and pages and clicks need free ones."""
_SCRIPTS = ("marks.js", "controls.js", "runs.js", "lab.js")
"""Scripts in the order in which the page runs them, after the report's `drawing.js`."""
_LIVE = ("doing", "buttons")
"""Events that matter only while a run goes on."""
_PRELOADED = ("feedline.loader.torch", "feedline.tools.lab.views")
_POLL_S = 0.2

# -- the page ----------------------------------------------------------------------------------------------------------


def page_of(views: Sequence[View], *, token: str = "", nonce: str = "", recorded: str = "") -> str:
    """Return the page, one self-contained HTML file.

    Args:
        views: the views of the page.
        token: the token that the page sends with each request; empty in an exported page.
        nonce: lets the browser run the scripts of this page and no others.
        recorded: packed runs, for a page without a server.
    """
    assets = resources.files(__package__) / "assets"
    drawing = resources.files("feedline.tools.advise") / "assets" / "drawing.js"
    data = {"views": [view.described() for view in views], "token": token, "recorded": recorded}
    parts = {
        "STYLE": (assets / "lab.css").read_text("utf-8"),
        "SCRIPT": "\n".join(file.read_text("utf-8") for file in (drawing, *(assets / name for name in _SCRIPTS))),
        # A "<" could end the element that contains the data.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "NONCE": nonce,
    }
    return re.sub(r"/\*([A-Z]+)\*/", lambda found: parts[found[1]], (assets / "lab.html").read_text("utf-8"))


def exported(views: Sequence[View], on_run: Callable[[str], None] = lambda title: None) -> str:
    """Run every view with each of its presets, and return a page that contains the recorded events.

    Args:
        views: the views of the page.
        on_run: called with the title of the view before each run.

    Raises:
        FeedlineError: a run failed.
    """
    runs: dict[str, list[JsonObject]] = {view.name: [] for view in views}
    for view, preset in [(each, preset) for each in views for preset in each.presets]:
        on_run(view.title)
        values = view.read(preset)
        events = [event for event in Run(view, values).events() if event and event["kind"] not in _LIVE]
        if events[-1]["kind"] == "error":
            raise FeedlineError(f"{view.title} failed with {preset or 'its defaults'}: {events[-1]['text']}")
        runs[view.name].append({"values": values, "events": events})
    machine = f"{usable_cores()} cores, {platform.machine()}"
    origin = f"Recorded on a machine with {machine}. `feedline lab` runs it on yours."
    return page_of(views, recorded=packed({"runs": runs, "origin": origin}))


# -- runs --------------------------------------------------------------------------------------------------------------


def start_fork_server() -> None:
    """Start the fork server, unless it runs already; it imports torch, which takes seconds, while others go on."""
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    socket_folder.use_short_paths()
    forkserver.ensure_running()


class Run:
    """One run of a view. It starts when its events are read."""

    def __init__(self, view: View, values: JsonObject) -> None:
        self.is_stopped = False
        """True to end the run at its next event."""
        self._view = view
        self._values = values
        self._offered: frozenset[str] = frozenset()
        self._ours: Connection | None = None

    def click(self, action: str) -> None:
        """Send a click to the view. Raises BadOption: the page shows no such button now."""
        if self._ours is None or action not in self._offered:
            raise BadOption(f"This run has no button {action!r:.40}.")
        self._ours.send(action)

    def events(self) -> Generator[Event | None, None, None]:
        """Yield the events of the view, and None now and then while there are none, so that the reader can leave."""
        context = multiprocessing.get_context("forkserver")
        start_fork_server()
        # A process that is killed does not delete its temporary files, so the lab does.
        with tempfile.TemporaryDirectory(prefix="feedline-lab-", ignore_cleanup_errors=True) as folder:
            self._ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._view, self._values, folder))
            process.start()
            theirs.close()
            try:
                while not self.is_stopped:
                    lives = process.is_alive()
                    if self._ours.poll(_POLL_S if lives else 0):
                        event: Event | None = self._ours.recv()
                        if event is None:
                            return
                        if event["kind"] == "buttons":
                            self._offered = frozenset(event["actions"])
                        yield event
                    elif lives:
                        yield None
                    else:  # a worker that was left behind may keep the other end of the pipe open
                        raise EOFError
            except (EOFError, ConnectionError):
                text = "The process of this run ended unexpectedly. The terminal of `feedline lab` may show the reason."
                yield failure(FeedlineError(text))
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the process and its workers have ended
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()  # one that has just started has no group of its own yet, and no workers
                process.join()
                process.close()
                self._ours.close()


def _work(theirs: Connection, view: View, values: JsonObject, folder: str) -> None:
    """Run the view, in its own process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab handles Ctrl-C, and ends its runs itself
    # As in a user's script. The only other thread is `_listen`, which holds no lock that a worker could need.
    multiprocessing.set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # workers here mostly sleep
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    clicks: Clicks = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(theirs, clicks, folder), daemon=True).start()
    try:
        for event in view.draw(**values, **({"clicks": clicks} if view.takes_clicks else {})):
            theirs.send(json.loads(json.dumps(event, allow_nan=False, default=str)))  # as the page gets it
    except Exception as error:
        theirs.send(failure(error))
    theirs.send(None)


def _listen(theirs: Connection, clicks: Clicks, folder: str) -> None:
    while True:
        try:
            clicks.put(theirs.recv())
        except (EOFError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)  # the lab has ended, for whatever reason: leave nothing of this run behind


# -- the server --------------------------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """Serves views. When it is stopped, it ends the runs first, so that their readers are not cut off."""

    def __init__(self, views: Sequence[View], *, token: str, port: int) -> None:
        self._views = {view.name: view for view in views}
        self._token = token
        self._numbers = itertools.count(1)
        self._running: dict[str, Run] = {}
        """The runs in progress, by number; used on the event loop's thread only."""
        app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/runs", self._run, methods=["POST"]),
                Route("/runs/{number}/clicks", self._click, methods=["POST"]),
            ],
            middleware=[Middleware(_Guard, token=token, port=port)],
            exception_handlers={BadOption: _refused, ClientDisconnect: _refused},  # no traceback if the client leaves
        )
        # A lifespan's task would show a traceback if Ctrl-C came twice.
        quiet = {"log_level": "warning", "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, **quiet, timeout_graceful_shutdown=2, lifespan="off"))  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the runs, then all connections. Called on the event loop's thread."""
        for run in self._running.values():
            run.is_stopped = True
        await super().shutdown(sockets)

    async def _page(self, _: Request) -> Response:
        nonce = secrets.token_urlsafe(24)
        policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"
        rest = "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        headers = {
            "content-security-policy": f"{policy}; {rest}",
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }
        return HTMLResponse(page_of([*self._views.values()], token=self._token, nonce=nonce), headers=headers)

    async def _run(self, request: Request) -> Response:
        wanted = await _read_json(request)
        view, values = self._views.get(str(wanted.get("view"))), wanted.get("values", {})
        if view is None:
            raise BadOption(f"The lab has no view {wanted.get('view')!r:.40}.")
        if not isinstance(values, dict):
            raise BadOption("values must be an object with a value for each control.")
        if len(self._running) >= MOST:
            raise BadOption(f"The lab does {MOST} runs at a time, and all are in progress. Close a tab or wait.")
        lines = self._lines(Run(view, view.read(values)))
        return StreamingResponse(lines, media_type="application/x-ndjson", headers={"cache-control": "no-store"})

    async def _lines(self, run: Run) -> AsyncIterator[str]:
        """Yield the events of a run as lines of JSON until it has ended, or the reader has left."""
        number = str(next(self._numbers))
        self._running[number] = run
        try:
            yield json.dumps({"kind": "run", "number": number}) + "\n"
            with contextlib.closing(run.events()) as events:
                async for event in iterate_in_threadpool(events):
                    if event is not None:
                        yield json.dumps(event) + "\n"
            if not run.is_stopped:
                yield json.dumps({"kind": "done"}) + "\n"
        finally:
            del self._running[number]

    async def _click(self, request: Request) -> Response:
        run = self._running.get(request.path_params["number"])
        if run is None:
            raise BadOption("This run has ended. Start it again.")
        run.click(str((await _read_json(request)).get("action")))
        return JSONResponse({})


async def _read_json(request: Request) -> JsonObject:
    try:
        value = await request.json()
    except (ValueError, RecursionError) as error:
        raise BadOption(f"The request is not JSON: {words(error)}.") from error
    if not isinstance(value, dict):
        raise BadOption("The request is not a JSON object.")
    return value


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)


class _Guard:
    """Passes requests on to an app, or refuses them with status 403 and a reason."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._refusal(Request(scope)) if scope["type"] == "http" else "The lab only answers HTTP requests."
        answer = PlainTextResponse(f"{reason}\n", status_code=403) if reason else self._app
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> str:
        """Return why a request is refused; empty if it is accepted."""
        headers = request.headers
        if headers.get("host") not in self._hosts:
            return f"The lab only answers at http://{self._hosts[0]}."
        own = [None, *(f"http://{host}" for host in self._hosts)]
        if headers.get("origin") not in own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "Another site sent this request. The lab only answers its own page."
        in_address = request.query_params.get("token", "") if request.method == "GET" else ""
        given = headers.get(HEADER) or in_address
        known = hmac.compare_digest(given.encode(), self._token.encode())
        return "" if known else "The token is missing or wrong. Open the address that `feedline lab` printed."


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
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # connections that arrive before the server has started wait
        except (OSError, OverflowError) as error:  # the second for a number that no port has
            advice = "Choose another with --port, or omit it to get a free one."
            raise BadOption(f"Port {port} cannot be used: {words(error)}. {advice}") from error
        token, bound = secrets.token_urlsafe(24), listening.getsockname()[1]
        address = f"http://127.0.0.1:{bound}/?token={token}{shown and f'#{shown}'}"
        sys.stdout.write(f"The lab is at {address}\nCtrl-C stops it.\n")
        sys.stdout.flush()
        start_fork_server()
        if open_browser:
            webbrowser.open(address)
        Server(views, token=token, port=bound).run(sockets=[listening])
