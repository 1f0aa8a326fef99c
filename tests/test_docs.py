"""Every Python block of the docs and every docstring example runs, and all links are valid."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401  (it keeps files open from its import on, which a test would seem to leave behind)

from feedline import errors
from tests import program_server
from tests.frameworks_real.conftest import need

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MODULES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for file in SOURCE.glob("feedline/**/*.py")
    if ">>>" in file.read_text(encoding="utf-8")
)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
NEEDS = re.compile(r"<!-- needs: ([\w ]+) -->")  # packages that the code of a page needs
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")

OUTSIDE = re.compile(r"\b(?:docs|examples|benchmarks|changes|scripts)/\w[\w/-]*\.(?:md|py)")


def runnable_lines(page: str) -> str:
    """Return the page with everything but runnable Python blanked out, so that line numbers are kept."""
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
READ_FIRST = ("README.md", "docs/start/switch-from-torch.md")  # run by `make test`; the other pages are slow


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page_id(page), marks=() if page_id(page) in READ_FIRST else pytest.mark.slow)
        for page in PAGES_WITH_CODE
    ],
)
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for package in " ".join(NEEDS.findall(page.read_text(encoding="utf-8"))).split():
        need(package)
    # As a file, in its own process: spawned workers import it, as they would a reader's script.
    script = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    script.write_text(runnable_lines(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = program_server.run(script, cwd=tmp_path)
    assert done.returncode == 0, f"{page_id(page)} (line numbers are the page's)\n{done.stderr}"


def test_links_of_pages_are_valid() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [(page_id(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_raised_error_has_advice() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    advised = re.findall(r"^::: feedline\.errors\.(\w+)\n\n(?!:::)\S", page, re.MULTILINE)
    parents = {base for name in errors.__all__ for base in getattr(errors, name).__mro__[1:]}
    raised = {name for name in errors.__all__ if getattr(errors, name) not in parents}
    assert raised - set(advised) == set()


CORE = ("feedline.loader", "feedline.samplers", "feedline.collate", "feedline.faults", "feedline.pipes")
"""Modules whose examples `make test` runs; those of the others are slow."""


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=() if name.startswith(CORE) else pytest.mark.slow) for name in MODULES]
)
def test_docstring_examples_run(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []
    for example in find_examples(module):
        runner.run(example, out=output.append)
    assert runner.tries > 0, "there is >>> in the file, but not in a docstring"
    assert runner.failures == 0, "".join(output)


def find_examples(module: str) -> Iterator[doctest.DocTest]:
    """Yield the examples in a module's docstrings, including those under assignments, which doctest does not find."""
    loaded = importlib.import_module(module)
    file = Path(str(loaded.__file__))
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and ">>>" in str(node.value.value):
            text = str(node.value.value)
            yield doctest.DocTestParser().get_doctest(text, vars(loaded).copy(), module, str(file), node.lineno - 1)


def test_a_block_marked_as_not_run_is_left_out() -> None:
    page = "a\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```python\ny = 2\n```\n```\nz = 3\n```\n"
    assert runnable_lines(page) == "\n\nx = 1" + "\n" * 8


def test_versions_in_the_security_policy_are_the_minimum_versions_of_extras() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d.]+)[ ,].*CVE-", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    admitted = re.findall(r'"(\w+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert {name.lower() for name, _ in rows} == {"pillow", "cbor2", "imagecodecs", "duckdb", "torch"}
    for name, version in rows:
        assert {least for found, least in admitted if found == name.lower()} == {version}


def test_docstrings_mention_no_files_that_are_not_installed() -> None:
    """The package is installed without the other folders. Comments for developers may refer to them."""
    found = []
    for path in (SOURCE / "feedline").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if OUTSIDE.search(text) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{path.name}:{node.lineno}: {one}" for one in OUTSIDE.findall(node.value)]
    assert found == []
