"""The documentation of extras agrees with `pyproject.toml`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def test_the_images_extra_is_documented_correctly() -> None:
    brought = {re.split(r"[<>=\[]", one)[0] for one in EXTRAS["images"]}
    sentence = re.search(r"`pip install 'feedline\[images\]'` brings (.*?)\. OpenCV", _text("docs/guide/images.md"))
    assert sentence is not None
    assert brought == {"pillow", "simplejpeg"}
    assert all(package in sentence[1].lower() for package in brought)
    assert "opencv" not in sentence[1].lower()


def test_every_mentioned_extra_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        for names in re.findall(r"(?<![\w/])feedline\[([a-z0-9, ]+)\]", page.read_text("utf-8")):
            assert set(re.split(r", ?", names)) <= set(EXTRAS), f"{page.name}: feedline[{names}]"


def _text(path: str) -> str:
    return " ".join((ROOT / path).read_text("utf-8").split())
