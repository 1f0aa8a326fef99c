"""Pages can be read in ten minutes."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
LONGEST = 2600
"""Words without code and folded answers: ten minutes at 260 words per minute."""
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "reference" not in page.parts]


def words_of(page: Path) -> int:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    return len(re.findall(r"\S*\w\S*", text))


def test_a_page_can_be_read_in_ten_minutes() -> None:
    words = {page.relative_to(DOCS).as_posix(): words_of(page) for page in PAGES}
    assert {page: count for page, count in words.items() if count > LONGEST} == {}, "split these pages"
