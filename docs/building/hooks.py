"""What the site needs besides its pages: files from outside docs/, the version, and a folder per version.

MkDocs knows only what lies in docs/. Pages link to other files of the repository, as a reader of the repository needs
them. Those that are listed here get pages of their own when the site is built, and links to them lead there. A link to
any other file outside docs/ stays as it is, and a strict build fails on it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^__version__ = "(.+)"', (ROOT / "src/feedline/__init__.py").read_text("utf-8"), re.MULTILINE)
DOCUMENTS = {
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "src/feedline/tools/measure/README.md": "project/bench-harness.md",
}
"""Markdown files of the repository and their places in the site."""
PROGRAMS = ("examples/*.py", *(f"examples/clusters/*{suffix}" for suffix in (".py", ".sbatch", ".yaml")))
"""Programs and the files of launchers, each of which gets a page that shows it."""
LANGUAGES = {".py": "python", ".sbatch": "bash", ".yaml": "yaml"}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

serving = False


def on_startup(*, command: str, dirty: bool) -> None:
    """Remember whether the site is only shown, not built for readers."""
    global serving
    serving = command == "serve"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the version, and the folder of this version."""
    assert VERSION is not None
    version = VERSION[1]
    config.copyright = f"feedline {version}, Apache License 2.0"
    if not serving:  # the menu of versions reads a file beside the folders of all versions
        config.site_dir = str(Path(config.site_dir) / folder_of(version))
        config.extra["version"] = {"provider": "mike"}
    return config


def folder_of(version: str) -> str:
    """Return the folder of a version: releases that only fix faults share one."""
    return ".".join(version.split(".")[:2])


def generated() -> dict[str, tuple[str, str]]:
    """Return the pages made of files outside docs/, by their places: the file, and the text."""
    pages = {place: (name, (ROOT / name).read_text("utf-8")) for name, place in DOCUMENTS.items()}
    for pattern in PROGRAMS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            code = path.read_text("utf-8")
            text = f"# {path.name}\n\n`{name}` in the repository.\n\n```{LANGUAGES[path.suffix]}\n{code}```\n"
            pages[page_of(name)] = name, text
    return pages


def page_of(name: str) -> str:
    """Return the place in the site of a file outside docs/, named relative to the root of the repository."""
    place = name.removesuffix(".py").replace("_", "-").replace(".", "-")
    return DOCUMENTS.get(name) or f"project/{place}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files outside docs/."""
    for place, (_, text) in generated().items():
        if place.startswith("project/changelog"):  # it names everything, and explains nothing
            text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside docs/ to their pages, and those of such files into the site."""
    place = page.file.src_uri
    pages = generated()
    origin = pages[place][0] if place in pages else f"docs/{place}"
    names = {name: target for target, (name, _) in pages.items()}

    def led(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        if target in names:
            target = names[target]
        elif target.startswith("docs/") and place in pages:
            target = target.removeprefix("docs/")
        else:
            return match[0]
        return match[1] + posixpath.relpath(target, posixpath.dirname(place) or ".") + match[3]

    parts = []
    end = 0
    for block in CODE.finditer(markdown):
        parts += [LINK.sub(led, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(led, markdown[end:])])


def on_post_build(config: MkDocsConfig) -> None:
    """List this version beside the others, and lead readers who name none to the newest."""
    if serving:
        return
    folder = Path(config.site_dir)
    assert VERSION is not None
    publish(folder.parent, folder.name, VERSION[1])


def publish(site: Path, folder: str, title: str) -> None:
    """Write the list of versions, the newest first, and the page that leads to the newest."""
    path = site / "versions.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    entries = [one for one in entries if one["version"] != folder and (site / one["version"]).is_dir()]
    entries.append({"version": folder, "title": title, "aliases": []})
    entries.sort(key=lambda one: [int(part) for part in re.findall(r"\d+", one["version"])], reverse=True)
    path.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    newest = entries[0]["version"]
    (site / "index.html").write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>feedline</title>\n'
        f'<meta http-equiv="refresh" content="0; url={newest}/index.html">\n'
        f'<a href="{newest}/index.html">feedline {entries[0]["title"]}</a>\n</html>\n',
        "utf-8",
    )
    (site / ".nojekyll").touch()  # some hosts drop files whose names begin with _
