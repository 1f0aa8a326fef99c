"""The lab's page: one self-contained HTML file, live or with recorded runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from feedline.tools.advise.page import packed
from feedline.tools.lab.view import View

SCRIPTS = ("marks.js", "controls.js", "runs.js", "lab.js")
"""Scripts in the order in which the page runs them, after the report's `drawing.js`."""


# object: JSON values.
def page_of(
    views: Sequence[View], *, token: str = "", nonce: str = "", recorded: Mapping[str, object] | None = None
) -> str:
    """Return the page.

    Args:
        views: the views of the page.
        token: the token that the page sends with each request; empty in an exported page.
        nonce: lets the browser run the scripts of this page and no others.
        recorded: runs by view, for a page without a server.
    """
    assets = resources.files(__package__) / "assets"
    shared = resources.files("feedline.tools.advise") / "assets"
    data = {
        "views": [view.described() for view in views],
        "token": token,
        "recorded": None if recorded is None else packed(recorded),
    }
    parts = {
        "STYLE": (assets / "lab.css").read_text("utf-8"),
        "SCRIPT": "\n".join(
            [(shared / "drawing.js").read_text("utf-8"), *((assets / name).read_text("utf-8") for name in SCRIPTS)]
        ),
        # A "<" could end the element that contains the data.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False, default=str).replace("<", "\\u003c"),
        "NONCE": nonce,
    }
    page = (assets / "lab.html").read_text("utf-8")
    return re.sub(r"/\*([A-Z]+)\*/", lambda found: parts[found[1]], page)
