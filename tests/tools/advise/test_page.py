"""The page of a recording: its content, and how a browser shows it."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from feedline.insight.attribution import CAUSES
from feedline.insight.recording import Recording
from feedline.tools.advise.page import contents, page_of, text_of
from feedline.tools.advise.what_if import RecordedRun
from feedline.tools.screen import Table
from tests.browsing import NARROW, WIDTH
from tests.tools.advise.recordings import recording_of


def test_the_page_is_self_contained() -> None:
    page = page_of(contents(recording_of(20)))
    assert not re.findall(r"https?://|src=|@import|url\(", page)
    assert "/*" not in page.partition("<style>")[0]


def test_recorded_text_cannot_end_the_script() -> None:
    recording = recording_of(20)
    recording.settings["dataset"] = "</script><script>alert(1)</script>"
    assert "alert(1)" not in page_of(contents(recording))


@pytest.mark.parametrize(("slow", "cause"), [(0.3, "order"), (0.0, "fetch")])
def test_the_verdict_names_the_main_cause_in_the_timeline(slow: float, cause: str) -> None:
    recording = recording_of(300, slow=slow, workers=2)
    shown_page = contents(recording)
    shown: dict[str, int] = dict.fromkeys(CAUSES, 0)
    waited = recording.rows["got"] - recording.rows["asked"]
    for place, wait in zip(itertools.accumulate(shown_page["rows"]["cause"]), waited.tolist(), strict=True):
        shown[CAUSES[place]] += wait
    assert max(shown, key=shown.__getitem__) == cause
    assert ("late batch" if cause == "order" else cause) in shown_page["verdict"]


def test_advice_and_a_comparison_are_on_the_page() -> None:
    table = Table("Both", ["", "torch"], [["images/s", ("12", "bold")]])
    shown = contents(recording_of(60, workers=2), table)
    assert shown["advice"][0]["text"].startswith("too-few-workers: ")
    assert shown["advice"][0]["code"].startswith("DataLoader(dataset, num_workers=")
    text = text_of(shown)
    assert shown["verdict"] in text.replace("\n", " ")
    assert "too-few-workers" not in text, "the verdict says that"
    assert "Best: num_workers=" in text
    assert shown["compared"] == {"title": "Both", "heads": ["", "torch"], "rows": [["images/s", "12"]]}


def test_a_recording_without_batches_is_shown() -> None:
    empty = Recording(settings={"engine": "process", "workers": 2}, counters={"workers": 2})
    assert contents(empty)["rows"]["got"] == []
    assert "feedline report" in page_of(contents(empty))


@pytest.mark.slow
def test_figures_and_predictions_on_the_page_equal_those_of_the_recording(window: Any, tmp_path: Path) -> None:
    recording = recording_of(600)
    (tmp_path / "report.html").write_text(page_of(contents(recording)), "utf-8")
    page = window
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    for width in (NARROW, WIDTH):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    stats = recording.stats()
    assert page.inner_text("#verdict") == stats.verdict
    figures = page.inner_text("#figures")
    assert f"{stats.total.samples_per_s:,.0f}" in figures
    assert f"{100 * stats.total.stall:.0f} %" in figures
    longest = max(stats.total.waits, key=lambda cause: stats.total.waits[cause])
    first = page.inner_text("#waits tbody tr:first-child")
    assert page.evaluate("MEANING")[longest] in first

    run = RecordedRun(recording)
    grid = run.grid()
    lines = page.query_selector_all("#grid tbody tr")
    shown = [[cell.inner_text() for cell in line.query_selector_all("td")] for line in lines]
    heads = [head.inner_text() for head in page.query_selector_all("#grid th")]
    table = {(int(line[0]), head): cell for line in shown for head, cell in zip(heads, line, strict=True)}
    for one in [*grid, *run.twice_as_fast()]:
        assert table[one.workers, one.change].startswith(f"{one.samples_per_s:,.0f} (")
    assert page.inner_text("#chosen") == f"Best: {run.compared(run.best(grid))}"
    assert all(sentence in page.inner_text("#simulated") for sentence in run.assumptions(grid))
