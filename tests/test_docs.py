"""Every Python block of the docs and every docstring example runs."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MODULES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for file in SOURCE.glob("feedline/**/*.py")
    if ">>>" in file.read_text(encoding="utf-8")
)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")


def runnable_lines(page: str) -> str:
    """Return the page with everything blanked that is not Python to be run, so that line numbers stay true."""
    kept = []
    running = skipping = False
    previous = ""
    for line in page.splitlines():
        if not running and not skipping and line.startswith("```"):
            python = line.startswith("```python")
            running = python and not NOT_RUN.fullmatch(previous)
            skipping = not running
            kept.append("")
        elif (running or skipping) and line.rstrip() == "```":
            running = skipping = False
            kept.append("")
        else:
            kept.append(line if running else "")
        previous = line.strip() or previous
    return "\n".join(kept)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PAGES_WITH_CODE = [page for page in PAGES if runnable_lines(page.read_text(encoding="utf-8")).strip()]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=page_id)
def test_code_of_page_runs(page: Path, tmp_path: Path) -> None:
    # As a file and in a process of its own: spawned workers import it, as they would a reader's script.
    script = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    script.write_text(runnable_lines(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{page_id(page)} (line numbers are the page's)\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_page_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    failed, tried = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried > 0, "the module has examples, but not in a docstring that doctest finds"
    assert failed == 0


def test_block_with_a_reason_is_left_out() -> None:
    page = "a\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```python\ny = 2\n```\n```\nz = 3\n```\n"
    assert runnable_lines(page) == "\n\nx = 1" + "\n" * 8
