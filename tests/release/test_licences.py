from __future__ import annotations

import re

import pytest

from scripts import licences
from tests.release.test_metadata import EXTRAS, FOR_DEVELOPERS, PROJECT


def test_the_page_lists_every_direct_dependency_with_its_extras() -> None:
    rows = dict(re.findall(r"^\| ([\w-]+) \| [^|]+ \| (.*) \|$", licences.PAGE.read_text("utf-8"), re.MULTILINE))
    rows.pop("package", None)
    wanted: dict[str, list[str]] = {re.split(r"[<>=]", one)[0]: [] for one in PROJECT["dependencies"]}
    for extra in EXTRAS.keys() - FOR_DEVELOPERS:
        for one in EXTRAS[extra]:
            name = re.split(r"[<>=\[]", one)[0]
            if name != "feedline":
                wanted.setdefault(name, []).append(f"`{extra}`")
    found = {name: sorted(text.split(", ")) if text != "always" else [] for name, text in rows.items()}
    assert found == {name: sorted(extras) for name, extras in wanted.items()}, "run make sbom"


def test_every_licence_is_known() -> None:
    assert "not known" not in licences.PAGE.read_text("utf-8")


def test_packages_without_a_licence_are_listed() -> None:
    table = licences.table_of({"numpy": "BSD"}, {"numpy": [], "Odd-One": ["s3", "gs"]})
    assert "| numpy | BSD | always |" in table
    assert "| Odd-One | not known | `s3`, `gs` |" in table


@pytest.mark.parametrize(
    ("given", "short"),
    [
        ("Apache Software License", "Apache-2.0"),
        ("MIT License; Apache Software License", "MIT and Apache-2.0"),
        ("Apache-2.0 OR BSD-2-Clause", "Apache-2.0 OR BSD-2-Clause"),
        ("BSD License; BSD", "BSD"),
        ("", "not known"),
    ],
)
def test_licence_names_are_shortened(given: str, short: str) -> None:
    assert licences.short(given) == short
