"""What the package index shows: names, versions, extras."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import feedline

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "docs", "frameworks", "release", "streaming"}


def named_in(text: str) -> str:
    return (ROOT / text).read_text("utf-8")


def extras_in(extra: str) -> set[str]:
    """Return an extra and all extras that it includes."""
    names = {extra}
    for one in EXTRAS[extra]:
        if found := re.fullmatch(r"feedline\[([\w,]+)\]", one):
            names |= {inner for name in found[1].split(",") for inner in extras_in(name)}
    return names


def packages_of(extra: str) -> list[str]:
    return [
        name
        for one in EXTRAS[extra]
        for found in [re.match(r"feedline\[([\w,]+)\]|([\w-]+)", one)]
        if found is not None
        for name in ([f"`{inner}`" for inner in found[1].split(",")] if found[1] else [found[2]])
    ]


def test_the_version_is_the_same_everywhere() -> None:
    version = feedline.__version__
    assert f"\n## {version}\n" in named_in("CHANGELOG.md")
    assert f"\nversion: {version}\n" in named_in("CITATION.cff")
    minor = version.rpartition(".")[0]
    assert f"| {minor} | yes |" in named_in("SECURITY.md")
    assert f"Version {minor}, Apache-2.0." in named_in("README.md")


def test_the_pages_install_what_can_be_installed() -> None:
    """Until pyproject.toml names a public address, feedline is on no package index: it is installed from a checkout."""
    is_published = "Source" in PROJECT.get("urls", {})
    for page in ("README.md", "docs/start/install.md"):
        text = named_in(page)
        assert ("pip install 'feedline[torch]'" in text) == is_published, page
        assert ("pip install '.[torch]'" in text) != is_published, page
        assert ("not on the package index" in text) != is_published, page


def test_the_changelog_starts_with_this_version() -> None:
    versions = re.findall(r"^## (.+)$", named_in("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == feedline.__version__
    assert "unreleased" not in named_in("CHANGELOG.md")


def test_the_classifiers_are_true() -> None:
    classifiers = PROJECT["classifiers"]
    assert "Typing :: Typed" in classifiers
    assert (ROOT / "src/feedline/py.typed").exists()
    is_stable = "Development Status :: 5 - Production/Stable" in classifiers
    assert is_stable == (int(feedline.__version__.partition(".")[0]) >= 1)
    listed = set(re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers)))
    tested = re.search(r"^PYTHONS = \((.*)\)$", named_in("noxfile.py"), re.MULTILINE)
    assert tested is not None
    assert listed == set(re.findall(r"3\.\d+", tested[1]))
    assert PROJECT["requires-python"] == f">={min(listed, key=lambda one: int(one[2:]))}"


def test_all_includes_every_extra_for_users_except_gpu() -> None:
    assert extras_in("all") - {"all"} == EXTRAS.keys() - FOR_DEVELOPERS - {"all", "gpu"}


def test_groups_include_their_extras() -> None:
    assert extras_in("remote") == {"remote", "s3", "gs", "hf"}
    assert {"demo", "lab", "pack", "torch", "images"} <= extras_in("tools")


def test_the_install_page_lists_the_packages_of_each_extra() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", named_in("docs/start/install.md"), re.MULTILINE)
    assert {name for name, _ in rows} == EXTRAS.keys() - FOR_DEVELOPERS
    for name, brings in rows:
        assert brings == ", ".join(packages_of(name)), name


def test_numpy_is_the_only_required_dependency() -> None:
    assert [re.split(r"[<>=]", one)[0] for one in PROJECT["dependencies"]] == ["numpy"]


def test_the_matrix_tests_the_lowest_supported_versions() -> None:
    nox = named_in("noxfile.py")
    floor = {one.partition(">=")[0]: one.partition(">=")[2] for one in [*PROJECT["dependencies"], *EXTRAS["torch"]]}
    assert f'"torch=={floor["torch"]}.*"' in nox
    assert f'"numpy=={floor["numpy"]}.*"' in nox
