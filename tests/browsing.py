"""Pages in Debian's Chromium: one window for all tests of a file.

A separate window for every test would be a separate process: two seconds of a core instead of half a second.
"""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

WIDTH = 1280
NARROW = 390

_CHROMIUM = shutil.which("chromium")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


# Any, throughout: Playwright's types need its package.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if _CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=_CHROMIUM, args=list(_FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shared_window(browser: Any) -> Any:
    return browser.new_page(reduced_motion="reduce")


@pytest.fixture
def window(shared_window: Any) -> Iterator[Any]:
    """A window for a page. Errors and warnings of the browser fail the test, except for requests a server rejected."""
    problems: list[str] = []

    def note_message(message: Any) -> None:
        if message.type in ("error", "warning") and not re.search(r"status of 4(04|22)", message.text):
            problems.append(message.text)

    def note_error(error: Any) -> None:
        problems.append(str(error))

    shared_window.set_viewport_size({"width": WIDTH, "height": 900})
    shared_window.on("console", note_message)
    shared_window.on("pageerror", note_error)
    yield shared_window
    shared_window.remove_listener("console", note_message)
    shared_window.remove_listener("pageerror", note_error)
    assert not problems, problems
