"""Make the links of README.md absolute for the page of the package, where relative ones lead nowhere.

`[project.urls]` in pyproject.toml names the repository as `Source`. `make dist` rewrites the README of the tree that it
builds, so that links and images lead to the files of the tag of that version. The address has to serve files under
`blob/<tag>/` and images under `raw/<tag>/`, as GitHub and GitLab do.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_IMAGES = (".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp")
_CODE = r"^(?P<fence>```|~~~).*?^(?P=fence)|`[^`]+`"
_BEFORE = r"\]\(|^\[[^\]\n]+\]:[ ]+|\b(?:src|href)=\""
_RELATIVE = r"(?![a-z][a-z0-9+.-]*:|[#/])[^)#\s\"]+"
_LINK = re.compile(rf"{_CODE}|(?P<before>{_BEFORE})(?P<path>{_RELATIVE})", re.MULTILINE | re.DOTALL)


def source_of(pyproject: str) -> str | None:
    """Return the address of the repository that the text of pyproject.toml names, or None."""
    address: str | None = tomllib.loads(pyproject)["project"].get("urls", {}).get("Source")
    return None if address is None else address.rstrip("/").removesuffix(".git")


def relative_links(text: str) -> list[str]:
    """Return the paths that a Markdown text links to or shows, without their anchors; code is left out."""
    return [found["path"] for found in _LINK.finditer(text) if found["path"]]


def absolute_links(text: str, source: str, tag: str) -> str:
    """Return a Markdown text with the address of `tag` in front of every relative link and image."""

    def replace(found: re.Match[str]) -> str:
        if not found["path"]:
            return found[0]  # code
        path = posixpath.normpath(found["path"])
        view = "raw" if path.lower().endswith(_IMAGES) else "blob"
        return f"{found['before']}{source}/{view}/{tag}/{path}"

    return _LINK.sub(replace, text)


def rewrite_readme(tree: Path, tag: str) -> None:
    """Make the links of a tree's README.md absolute, if its pyproject.toml names the repository."""
    source = source_of((tree / "pyproject.toml").read_text("utf-8"))
    if source is not None:
        readme = tree / "README.md"
        readme.write_text(absolute_links(readme.read_text("utf-8"), source, tag), "utf-8")
