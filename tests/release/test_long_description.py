from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import dist
from scripts.long_description import absolute_links, relative_links, source_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "https://example.org/team/feedline"
BLOB, RAW = f"{SOURCE}/blob/v1.2.3", f"{SOURCE}/raw/v1.2.3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md)", f"[a]({BLOB}/docs/a.md)"),
        ("[a](./docs/a.md)", f"[a]({BLOB}/docs/a.md)"),
        ("[a](docs/a.md#part)", f"[a]({BLOB}/docs/a.md#part)"),
        ("[`feedline\n  doctor`](docs/a.md)", f"[`feedline\n  doctor`]({BLOB}/docs/a.md)"),
        ("![a: b](docs/a.png)", f"![a: b]({RAW}/docs/a.png)"),
        ("[![a](a.svg)](b.md)", f"[![a]({RAW}/a.svg)]({BLOB}/b.md)"),
        ("[a]\n\n[a]: docs/a.md", f"[a]\n\n[a]: {BLOB}/docs/a.md"),
        ('<img src="docs/a.png">', f'<img src="{RAW}/docs/a.png">'),
    ],
)
def test_relative_links_are_made_absolute(text: str, expected: str) -> None:
    assert absolute_links(text, SOURCE, "v1.2.3") == expected
    assert absolute_links(expected, SOURCE, "v1.2.3") == expected


@pytest.mark.parametrize(
    "text",
    [
        "[a](https://example.org/a)",
        "[a](mailto:a@example.org)",
        "[a](#part)",
        "```\n[a](docs/a.md)\n```",
        "`[a](docs/a.md)`",
        "~~~python\nrows[0](row)\n~~~",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert absolute_links(text, SOURCE, "v1.2.3") == text


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: links in a source archive may be absolute")
def test_the_readme_links_to_files_that_exist() -> None:
    links = relative_links((ROOT / "README.md").read_text("utf-8"))
    assert "docs/assets/report.png" in links
    assert "docs/guide/doctor.md" in links  # its text wraps to a second line
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_source_is_read_from_pyproject() -> None:
    assert source_of('[project]\nname = "a"') is None
    assert source_of('[project]\n[project.urls]\nChanges = "https://example.org"') is None
    assert source_of(f'[project]\n[project.urls]\nSource = "{SOURCE}.git"') == SOURCE
    assert source_of(f'[project]\n[project.urls]\nSource = "{SOURCE}/"') == SOURCE


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_exported_tree_has_a_readme_with_absolute_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    (clone / "src/feedline").mkdir(parents=True)
    (clone / "src/feedline/__init__.py").write_text('__version__ = "1.2.3"\n')
    (clone / "README.md").write_text("[a](docs/a.md)\n")
    (clone / "pyproject.toml").write_text(f'[project]\nname = "feedline"\n[project.urls]\nSource = "{SOURCE}"\n')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "a"]):
        subprocess.run([*git, *command], cwd=clone, check=True)
    monkeypatch.setattr(dist, "ROOT", clone)
    dist.export("HEAD", tmp_path / "tree")
    assert (tmp_path / "tree/README.md").read_text() == f"[a]({BLOB}/docs/a.md)\n"
    assert (clone / "README.md").read_text() == "[a](docs/a.md)\n"
