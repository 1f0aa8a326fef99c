"""The reference covers everything public, and its generated parts agree with the code."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest

import feedline
from docs.building import tables
from feedline.tools.cli.main import COMMANDS
from tests.promises.names import PACKAGES, listed_names, shown_names, value_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {page.name: page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md")}
SHOWN = set(shown_names())
NAMES = [name for name in listed_names() if not isinstance(value_of(name), (types.ModuleType, str))]


def test_every_package_that_lists_its_names_is_covered() -> None:
    listed = {name for name in feedline.__all__ if isinstance(getattr(feedline, name), types.ModuleType)}
    assert listed <= set(PACKAGES)


def test_every_public_name_is_in_the_reference() -> None:
    assert set(NAMES) - SHOWN == set()


def test_the_reference_shows_every_name_once() -> None:
    assert sorted(shown_names()) == sorted(set(shown_names()))


def needs_example(value: object) -> bool:
    """True for classes and functions; the text of an exception and the advice linked to it show how it is met."""
    return inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, BaseException))


def test_every_public_class_and_function_has_an_example() -> None:
    documented = {name: value_of(name) for name in NAMES if needs_example(value_of(name))}
    texts = {
        name: (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
        for name, value in documented.items()
    }
    assert [name for name, text in texts.items() if ">>>" not in text] == []


@pytest.mark.parametrize("page", sorted(tables.PARTS))
def test_generated_parts_are_current(page: str) -> None:
    assert tables.current(page) == PAGES[page], "run python -m docs.building.tables"


def test_every_command_is_described() -> None:
    commands = re.findall(r"^## feedline ([\w-]+)$", PAGES["command-line.md"], re.MULTILINE)
    assert commands == list(COMMANDS)


def test_every_extra_for_users_is_on_the_install_page() -> None:
    text = (DOCS / "start/install.md").read_text("utf-8")
    project = (DOCS.parent / "pyproject.toml").read_text("utf-8")
    part = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", part, re.MULTILINE))
    for_developers = {"dev", "docs", "frameworks", "release", "streaming"}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == extras - for_developers
