"""The lab in a browser: every view, its controls, what is said when something is wrong."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.lab.export import exported
from feedline.lab.page import page_of
from feedline.lab.views import VIEWS, batching, collate, samplers, transfer
from tests.lab.served import TOKEN, Waiting, counting, served
from tests.lab.test_views import figures_of, told_by
from tests.report.test_page import CHROMIUM, FLAGS, NARROW, WIDTH

QUICK = (batching.VIEW, samplers.VIEW, collate.VIEW)


def test_everything_is_in_the_page_and_below_400_kilobytes() -> None:
    page = page_of(VIEWS, token=TOKEN, nonce="n")
    assert len(page.encode()) < 400_000
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|src=|@import|url\(", page)


def test_no_text_of_a_view_can_end_the_script() -> None:
    view = counting()
    object.__setattr__(view, "notice", "</script><script>alert(1)</script>")
    assert "<script>alert" not in page_of([view])


# -- in a browser -----------------------------------------------------------------------------------------------------


# Any, throughout: what Playwright has no types for without its package.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(*QUICK, counting()) as at:
        yield f"{at}/?token={TOKEN}"


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    """The lab, opened in a window of that width; whatever the browser complains about fails the test."""
    width = getattr(request, "param", WIDTH)
    opened = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(address)
    opened.wait_for_selector("html[data-ready=yes]")
    yield opened
    opened.close()
    assert [text for text in complaints if "422" not in text] == []


def shown(page: Any, view: str) -> None:
    """Show a view, and wait for the end of its run."""
    page.click(f"[data-view={view}]")
    ended(page)


def ended(page: Any) -> None:
    page.wait_for_selector("#view[data-state=done], #view[data-state=stopped]", timeout=60_000)


@pytest.mark.parametrize("page", [WIDTH, NARROW], indirect=True)
def test_views_show_marks_and_numbers_of_the_run(page: Any) -> None:
    for view in QUICK:
        shown(page, view.name)
        told = told_by(view, {})
        names = [event["name"] for event in told if event["kind"] in ("cells", "bars", "lines", "table")]
        assert {figure.get_attribute("data-picture") for figure in page.query_selector_all("figure")} == set(names)
        figures = {figure.get_attribute("data-figure"): figure.inner_text() for figure in page.query_selector_all("dd")}
        for name, value in figures_of(told).items():
            assert figures[name] == str(value)
        assert page.inner_text("#said") == [event["text"] for event in told if event["kind"] == "say"][-1]
        assert "DataLoader" in page.inner_text("#code")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.query_selector("polyline.series") is None  # those of another view are gone
    shown(page, "batching")
    assert page.query_selector("polyline.series") is not None
    assert len(page.query_selector_all("[data-picture='epoch 0'] .cell")) == 50


def test_a_changed_control_makes_another_run_and_stays_after_a_reload(page: Any) -> None:
    shown(page, "batching")
    page.fill("#c-batch_size", "25")
    page.press("#c-batch_size", "Enter")
    page.wait_for_selector("dd[data-figure=batches]:text-is('2')")
    assert "batch_size=25" in page.inner_text("#code")
    page.reload()
    page.wait_for_selector("dd[data-figure=batches]:text-is('2')")
    assert page.input_value("#c-batch_size") == "25"


@pytest.mark.parametrize("value", ["1000000000", "0", "-3"])
def test_absurd_numbers_are_answered_with_a_sentence(page: Any, value: str) -> None:
    shown(page, "batching")
    page.fill("#c-batch_size", value)
    page.press("#c-batch_size", "Enter")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Batch size" in page.inner_text("#trouble")
    page.fill("#c-batch_size", "5")
    page.press("#c-batch_size", "Enter")
    page.wait_for_selector("dd[data-figure=batches]:text-is('10')")
    assert page.is_hidden("#trouble")


def test_views_are_reached_by_keys(page: Any) -> None:
    page.focus("[data-view=samplers]")
    page.keyboard.press("Enter")
    ended(page)
    assert page.inner_text("#title") == "Samplers"
    page.focus("#c-forget")
    page.keyboard.press("Space")
    ended(page)
    assert page.is_checked("#c-forget")


def test_dark_and_light(page: Any) -> None:
    def ground() -> str:
        shade: str = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return shade

    light = ground()
    page.click("#theme")
    assert ground() != light


def test_a_view_that_fails_shows_its_traceback(page: Any) -> None:
    shown(page, "counting")
    page.check("#c-fails")
    page.wait_for_selector("#trouble:has-text('this view fails')")
    assert "Traceback" in page.inner_text("#trouble")


def test_two_tabs_run_at_a_time_and_a_button_reaches_its_own_run(browser: Any) -> None:
    waiting = Waiting()
    with served(waiting.view()) as at:
        context = browser.new_context(reduced_motion="reduce")
        tabs = [context.new_page() for _ in range(2)]
        for tab in tabs:
            tab.goto(f"{at}/?token={TOKEN}")
            tab.wait_for_selector("[data-action=go]:not([disabled])")
        tabs[0].click("[data-action=go]")
        tabs[0].wait_for_selector("#view[data-state=done]")
        assert tabs[0].inner_text("#said") == "clicked: go"
        assert tabs[1].get_attribute("#view", "data-state") == "running"
        context.close()
        assert waiting.closed.wait(60)


def test_a_server_that_was_stopped_is_told(browser: Any) -> None:
    with served(counting()) as at:
        opened = browser.new_page()
        opened.goto(f"{at}/?token={TOKEN}")
        ended(opened)
    opened.click("#again")
    opened.wait_for_selector("#trouble:not([hidden])")
    assert "Start it again with `feedline lab`" in opened.inner_text("#trouble")
    opened.close()


def test_the_exported_page_needs_no_server(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "lab.html"
    file.write_text(exported([collate.VIEW, samplers.VIEW]), "utf-8")
    opened = browser.new_page(reduced_motion="reduce")
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(file.as_uri())
    opened.wait_for_selector("#view[data-state=done]")
    assert "Recorded on a machine" in opened.inner_text("#origin")
    opened.select_option("#c-kind", "detection")
    opened.wait_for_selector("#said:has-text('boxes stay a list')")
    opened.fill("#c-batch_size", "9")
    opened.press("#c-batch_size", "Enter")
    opened.wait_for_selector("#origin:has-text('nearest recorded settings')")
    opened.close()
    assert not complaints


def test_a_machine_without_a_gpu_says_whose_run_is_shown() -> None:
    events = told_by(transfer.VIEW, {"step_ms": 6})
    assert "no GPU" in events[-1]["text"] or "Measured just now" in events[-1]["text"]
    assert len([event for event in events if event["kind"] == "lanes"]) == 4
