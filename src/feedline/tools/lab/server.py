"""The server of the lab: serves this machine only, until Ctrl-C."""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette

from feedline.errors import BadOption
from feedline.system.failures import words
from feedline.tools.lab.app import app_of
from feedline.tools.lab.guard import new_token
from feedline.tools.lab.runs import Runs
from feedline.tools.lab.view import View


class Server(uvicorn.Server):
    """A server that ends the runs first when it is stopped, so that their readers are not cut off."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, server_header=False)
        )
        self._runs: Runs = app.state.runs

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
    app = app_of(views, token=token, port=bound)
    sys.stdout.write(f"The lab is at {address}\nCtrl-C stops it.\n")
    sys.stdout.flush()
    if open_browser:
        webbrowser.open(address)
    with listening:
        Server(app).run(sockets=[listening])
