"""The site as a reader sees it: built strictly, served locally, every page in Chromium at two screen sizes."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import NARROW, WIDTH

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ("index.html", "guide/images.html", "reference/loader.html", "reference/options.html", "reference/errors.html")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> list[str]:
    """Every page, relative to the folder of the version."""
    (version,) = (one for one in site.iterdir() if one.is_dir())
    found = sorted(page.relative_to(version).as_posix() for page in version.rglob("*.html"))
    return [page for page in found if page not in ("404.html", "assets/lab.html")]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address at which the newest version is served."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    (version,) = (one.name for one in site.iterdir() if one.is_dir())
    yield f"http://127.0.0.1:{server.server_port}/{version}"
    server.shutdown()
    server.server_close()
    thread.join()


class _Problems(list[str]):
    """Errors and warnings of the browser, and requests to other machines."""

    # Any, throughout: Playwright's objects.
    def __init__(self, page: Any) -> None:
        super().__init__()
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.append(f"{page.url}: {error}"))
        page.on("request", self._note_request)

    def _note_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.append(f"{message.location['url']}: {message.text}")

    def _note_request(self, request: Any) -> None:
        if not re.match(r"http://127\.0\.0\.1:|data:|blob:", request.url):
            self.append(f"asks {request.url}")


@pytest.fixture
def opened(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """A window on a system with a light or dark theme; the browser must report no problem."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(
        color_scheme=scheme, reduced_motion="reduce", viewport={"width": WIDTH, "height": 900}
    )
    page = context.new_page()
    problems = _Problems(page)
    yield page
    context.close()
    assert problems == []


def test_no_file_refers_to_scripts_styles_or_pictures_on_other_hosts(site: Path) -> None:
    outside = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    found = {tag for page in site.rglob("*.html") for tag in outside.findall(page.read_text("utf-8"))}
    assert found == set()
    styles = [sheet.read_text("utf-8") for sheet in site.rglob("*.css")]
    assert [sheet[:80] for sheet in styles if re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet)] == []


def test_an_address_without_a_version_redirects_to_the_newest(opened: Any, address: str) -> None:
    opened.goto(address.rpartition("/")[0] + "/index.html")
    opened.wait_for_url("**/index.html")
    opened.wait_for_selector(".md-version")
    assert opened.url.startswith(address)
    assert re.fullmatch(r"\d+\.\d+.*", opened.inner_text(".md-version__current").strip())


PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("width", [NARROW, WIDTH])
def test_every_page_opens_without_problems_and_fits_the_screen(
    opened: Any, address: str, pages: list[str], width: int, part: int
) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    too_wide, headless, broken = [], [], []
    for page in pages[part::PARTS]:
        opened.goto(f"{address}/{page}")
        shown = opened.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        if shown > width:
            too_wide.append((page, shown))
        if opened.locator("article h1").count() != 1:
            headless.append(page)
        broken += opened.evaluate(
            "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
        )
    assert len(pages) > 60
    assert (too_wide, headless, broken) == ([], [], [])


CONTRAST = """
() => {
  const parse = text => {
    const parts = text.match(/[\\d.]+/g).map(Number)
    return text.startsWith("color(srgb") ? [...parts.slice(0, 3).map(one => one * 255), parts[3] ?? 1]
      : [parts[0], parts[1], parts[2], parts[3] ?? 1]
  }
  const over = (top, bottom) => [0, 1, 2].map(i => top[i] * top[3] + bottom[i] * (1 - top[3])).concat(1)
  const light = colour => colour.slice(0, 3).map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0)
  const background = element => {
    const layers = []
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor))
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1])
  }
  const found = {}
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    if (!node.textContent.trim()) continue
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue
    const box = element.getBoundingClientRect()
    if (box.width < 2 || box.height < 2 || element.closest("script, style, .headerlink, .md-search__output")) continue
    const style = getComputedStyle(element)
    let opacity = 1
    for (let one = element; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity)
    if (opacity < 0.1) continue
    const behind = background(element)
    const ink = parse(style.color)
    ink[3] *= opacity
    const [a, b] = [light(over(ink, behind)), light(behind)]
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
    const size = parseFloat(style.fontSize)
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
    if (ratio < (large ? 3 : 4.5) - 0.005) {
      const kind = `${element.tagName}.${element.className} in ${element.parentElement.className}`
      found[kind] = `${ratio.toFixed(2)}: ${node.textContent.trim().slice(0, 40)}`
    }
  }
  return found
}
"""


@pytest.mark.parametrize("opened", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("page", SAMPLE)
def test_text_has_enough_contrast(opened: Any, address: str, page: str) -> None:
    opened.goto(f"{address}/{page}")
    opened.wait_for_timeout(300)  # colours of links and buttons fade in
    assert opened.evaluate(CONTRAST) == {}


@pytest.mark.parametrize("width", [NARROW, WIDTH])
def test_search_finds_an_option(opened: Any, address: str, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    opened.goto(f"{address}/index.html")
    opened.keyboard.press("/")
    opened.keyboard.type("prefetch_factor")
    opened.wait_for_selector(".md-search-result__item a[href*='/reference/options.html']", timeout=60_000)
    opened.keyboard.press("Enter")
    opened.wait_for_url(re.compile("prefetch_factor"))


def test_the_keyboard_reaches_content_search_and_navigation(opened: Any, address: str) -> None:
    opened.goto(f"{address}/guide/ray.html")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.matches('.md-skip')")
    assert opened.evaluate("getComputedStyle(document.activeElement).opacity") == "1"
    reached = set()
    for _ in range(60):
        opened.keyboard.press("Tab")
        reached.add(opened.evaluate("document.activeElement.className"))
    assert {"md-search__input", "md-tabs__link"} <= {one for name in reached for one in name.split()}
    assert any("md-nav__link" in one for one in reached)
