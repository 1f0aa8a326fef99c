"""The hooks of the site: links to files outside docs/, and a folder per version."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("mkdocs")

from mkdocs.config import load_config

from docs.building import hooks

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("not_found", "anchors", "absolute_links", "unrecognized_links")


# Any: MkDocs passes a full page object.
def rewritten(text: str, place: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    return hooks.on_page_markdown(text, page, cast(Any, None), cast(Any, None))


def test_links_to_other_files_of_the_repository_point_to_their_pages() -> None:
    assert rewritten("[a](../CONTRIBUTING.md)", "index.md") == "[a](project/contributing.md)"
    assert rewritten("[a](../../CONTRIBUTING.md#code)", "guide/ray.md") == "[a](../project/contributing.md#code)"
    assert rewritten("[a](../../examples/ray_workers.py)", "guide/ray.md") == "[a](../project/examples/ray-workers.md)"
    manifest = rewritten("[a](../../examples/clusters/kubernetes.yaml)", "guide/ray.md")
    assert manifest == "[a](../project/examples/clusters/kubernetes-yaml.md)"


def test_links_in_such_files_point_into_the_site() -> None:
    assert rewritten("[a](docs/glossary.md)", "project/contributing.md") == "[a](../glossary.md)"
    assert rewritten("[a](CHANGELOG.md)", "project/security.md") == "[a](changelog.md)"


def test_other_links_are_not_changed() -> None:
    for text in ("[a](ray.md)", "[a](https://example.org/x.md)", "[a](../../setup.py)", "[a](#here)"):
        assert rewritten(text, "guide/ray.md") == text


def test_versions_are_listed_newest_first_and_the_newest_is_shown(tmp_path: Path) -> None:
    for folder, title in (("0.9", "0.9.1"), ("0.10", "0.10.0"), ("0.9", "0.9.2")):
        (tmp_path / folder).mkdir(exist_ok=True)
        hooks.publish(tmp_path, folder, title)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(one["version"], one["title"]) for one in listed] == [("0.10", "0.10.0"), ("0.9", "0.9.2")]
    assert "url=0.10/index.html" in (tmp_path / "index.html").read_text()


def test_every_kind_of_broken_reference_fails_the_build() -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    assert config.strict
    levels = [config.validation.nav[name] for name in ("omitted_files", "not_found", "absolute_links")]
    levels += [config.validation.links[name] for name in LINKS]
    assert set(levels) == {logging.WARNING}
