"""The lab in a browser: every view, its controls, and its error messages."""

import re
from pathlib import Path
from typing import Any

import pytest

from feedline.tools.lab.server import exported, page_of
from feedline.tools.lab.view import View
from feedline.tools.lab.views import VIEWS, batching, collate, samplers, transfer, your_dataset
from tests.browsing import NARROW, WIDTH
from tests.tools.lab.served import TOKEN, served
from tests.tools.lab.views import COUNTING


def test_the_page_is_self_contained_and_smaller_than_400_kilobytes() -> None:
    page = page_of(VIEWS, token=TOKEN, nonce="n")
    assert len(page.encode()) < 400_000
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|src=|@import|url\(", page)


def test_text_of_a_view_cannot_end_the_script() -> None:
    assert "</script>" in COUNTING.more
    assert "<script>alert" not in page_of([COUNTING])


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_changed_control_starts_another_run_and_survives_a_reload_and_going_back(browser: Any) -> None:
    with served(batching.VIEW, samplers.VIEW) as at:
        page = browser.new_page(reduced_motion="reduce")
        page.goto(f"{at}/?token={TOKEN}#batching")
        two_batches = "dd[data-figure=batches]:text-is('2')"
        for given, shown in (("1000000000", "#trouble:has-text('Batch size: 1')"), ("25", two_batches)):
            page.fill("#c-batch_size", given)
            page.press("#c-batch_size", "Enter")
            page.wait_for_selector(shown)
            assert page.is_hidden("#trouble") == (given == "25")
        assert "batch_size=25" in page.inner_text("#code")
        page.reload()
        page.wait_for_selector(two_batches)
        page.click("[data-view=samplers]")
        page.wait_for_selector("#title:text-is('Samplers')")
        page.go_back()
        page.wait_for_selector(two_batches)
        assert page.input_value("#c-batch_size") == "25"
        page.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_every_view_and_every_control_runs_at_both_widths(browser: Any, view: View) -> None:
    with served(view) as at:
        page = browser.new_page(viewport={"width": NARROW, "height": 900}, reduced_motion="reduce")
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{at}/?token={TOKEN}#{view.name}{'?try_all=true' if view is your_dataset.VIEW else ''}")
        page.click("#settings summary")
        for control in view.controls:
            before = page.wait_for_function("() => window.lab?.number").json_value()
            if control.kind == "number":
                page.focus(f"#c-{control.name}-slider")
                page.keyboard.press("ArrowRight" if control.default != control.most else "ArrowLeft")
            elif control.kind == "choice":
                page.select_option(f"#c-{control.name}", control.options[-1])
            elif control.kind == "switch" and control.name != "try_all":
                page.click(f"#c-{control.name}")
            else:
                continue
            if view is not your_dataset.VIEW or control.name == "step_ms":  # its runs take long
                page.wait_for_function("(before) => lab.number !== before", arg=before, timeout=120_000)
                page.wait_for_selector("#view[data-state=done]", timeout=120_000)
                assert page.is_hidden("#trouble")
        assert page.query_selector_all("figure[data-picture]")
        for width in (NARROW, WIDTH):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)
        page.close()
    assert errors == []


# -- runs that go on --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_exported_page_needs_no_server(window: Any, tmp_path: Path) -> None:
    file = tmp_path / "lab.html"
    file.write_text(exported([collate.VIEW, transfer.VIEW]), "utf-8")
    window.goto(file.as_uri())
    window.wait_for_selector("#view[data-state=done]")
    assert "Recorded on a machine" in window.inner_text("#origin")
    window.select_option("#c-function", "detection")
    window.wait_for_selector("#said:has-text('boxes stay a list')")
    window.fill("#c-batch_size", "9")
    window.press("#c-batch_size", "Enter")
    window.wait_for_selector("#origin:has-text('nearest recorded settings')")
