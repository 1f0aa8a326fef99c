from pathlib import Path

import braceexpand
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets import Remote, TarDataset
from feedline.datasets.framework.shards import Found, braces, expand
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption, SourceError

words = st.text(st.sampled_from(list("ab-0")), max_size=3)
numbers = st.integers(-4, 5).map(str) | st.integers(0, 12).map("{:03d}".format)
pairs = st.builds("{{{}..{}}}".format, numbers, numbers) | st.lists(words, min_size=2, max_size=3).map(
    lambda parts: "{" + ",".join(parts) + "}"
)
nested = st.lists(pairs | words, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")


@given(st.lists(words | pairs | nested, max_size=3).map("".join))
def test_braces_expand_like_in_the_webdataset_package(pattern: str) -> None:
    assert list(braces(pattern)) == list(braceexpand.braceexpand(pattern))


@pytest.mark.parametrize("pattern", ["a{b}c", "a{b", "a}b", "{}", "{a..}", "{1..2..3..4}", "a{,b}"])
def test_literal_and_incomplete_braces(pattern: str) -> None:
    try:
        expected = list(braceexpand.braceexpand(pattern))
    except ValueError:  # unbalanced
        expected = [pattern]
    assert list(braces(pattern)) == expected


def test_steps() -> None:
    assert list(braces("{0..10..5}")) == ["0", "5", "10"]


def test_rejects_patterns_that_expand_to_too_many_names() -> None:
    with pytest.raises(BadOption, match="more than"):
        list(braces("{0..999999999999}"))


def test_globs_lists_and_paths(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt", "odd[1].tar", "{x}.tar"):
        (tmp_path / name).touch()
    assert expand(f"{tmp_path}/[ab].tar") == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    assert len(expand(f"{tmp_path}/*.tar")) == 4
    for number in (10, 9):
        (tmp_path / f"part-{number}.tgz").touch()
    assert expand(f"{tmp_path}/part-*") == [f"{tmp_path}/part-{number}.tgz" for number in (9, 10)]
    assert expand(f"{tmp_path}/odd[1].tar") == [f"{tmp_path}/odd[1].tar"]
    assert expand(tmp_path / "{x}.tar") == [f"{tmp_path}/{{x}}.tar"]
    assert expand([tmp_path / "a.tar", f"{tmp_path}/{{b,c}}.tar"]) == [f"{tmp_path}/{n}.tar" for n in "abc"]
    assert expand("http://x/{1..2}.tar::s3://b/a.tar") == ["http://x/1.tar", "http://x/2.tar", "s3://b/a.tar"]


def test_rejects_patterns_without_shards_and_duplicates(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No file fits"):
        expand(f"{tmp_path}/*.tar")
    for nothing in ("", [], [""]):
        with pytest.raises(BadOption, match="names no shard"):
            expand(nothing)
    with pytest.raises(BadOption, match=r"a\.tar comes twice"):
        expand(["a.tar", "a.tar"])
    with pytest.raises(BadOption, match="path or an address"):
        expand([3])  # type: ignore[list-item]
    with pytest.raises(BadOption, match="path or an address"):
        expand(None)  # type: ignore[arg-type]


def test_a_folder_is_not_a_shard(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is not a file. .* such as .*\*"):
        len(TarDataset(tmp_path))


def test_patterns_list_the_objects_of_a_store() -> None:
    assert expand("s3://bucket/{a,b}-*.tar", lambda pattern: [pattern.replace("*", number) for number in "12"]) == [
        f"s3://bucket/{name}.tar" for name in ("a-1", "a-2", "b-1", "b-2")
    ]
    assert expand("http://host/*.tar", lambda pattern: []) == ["http://host/*.tar"], "a web server cannot list files"


def test_versions_of_a_listing_are_used_if_requests_can_pin_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(self: Storage, pattern: str) -> dict[str, Version]:
        return {pattern.replace("*", "1"): Version(9, "abc"), pattern.replace("*", "2"): Version(9, "")}

    monkeypatch.setattr(Storage, "listed", listed)
    found, names = Found(Remote()), ["s3://b/a-1.tar", "gs://b/a-1.tar"]
    assert found.listed("s3://b/a-*.tar") == ["s3://b/a-1.tar", "s3://b/a-2.tar"]
    for pattern in ("gs://b/a-*.tar", "memory://b/a-*.tar"):
        found.listed(pattern)
    assert found.listed_versions == dict.fromkeys(names, Version(9, "abc"))
    assert found.versions(names) == found.listed_versions


def test_ipv6_addresses_are_not_split() -> None:
    assert expand("http://[::1]:80/a.tar::http://[fe80::2%25e]/{a,b}.tar::c.tar") == [
        "http://[::1]:80/a.tar",
        "http://[fe80::2%25e]/a.tar",
        "http://[fe80::2%25e]/b.tar",
        "c.tar",
    ]
