"""The picture of a report in README and on the first page shows what feedline says today."""

from __future__ import annotations

from docs.building import report_picture


def test_the_picture_shows_the_advice_that_the_page_of_its_run_has_now() -> None:
    assert report_picture.advice() == report_picture.ADVICE.read_text("utf-8"), "run make report-picture"
