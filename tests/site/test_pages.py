"""Pages can be read in ten minutes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
LONGEST = 2600
"""Words without code and folded answers: ten minutes at 260 words per minute."""
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "reference" not in page.parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_can_be_read_in_ten_minutes(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    words = re.findall(r"\S*\w\S*", text)
    assert len(words) <= LONGEST, f"{len(words)} words: split the page"
