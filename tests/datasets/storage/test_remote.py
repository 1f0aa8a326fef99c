"""`Remote`: its options are checked once, and never shown if they may be secret."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets import Remote
from feedline.errors import BadOption


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read_ahead": -1}, "read_ahead=-1"),
        ({"read_ahead": True}, "read_ahead=True"),
        ({"retries": -1}, "retries=-1"),
        ({"retries": "2"}, "retries='2'"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"unsafe_redirects": 1}, "unsafe_redirects=1"),
        ({"storage_options": "hunter2"}, "storage_options= is a dict"),
        ({"cache_bytes": "much"}, "cache_bytes='much'"),
        ({"cache": True}, "cache=True is not a path"),
    ],
)
def test_options_are_checked_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadOption, match=said) as caught:
        Remote(**options)
    assert "hunter2" not in str(caught.value)


def test_a_cache_is_at_least_a_few_pieces_in_a_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="cache_bytes=10 is less than"):
        Remote(cache=tmp_path, cache_bytes=10)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadOption, match=r"thesis\.tex"):
        Remote(cache=tmp_path)


def test_secrets_are_not_shown_and_are_pickled(tmp_path: Path) -> None:
    remote = Remote(storage_options={"secret": "hunter2"}, cache=tmp_path / "c", read_ahead=3)
    assert "hunter2" not in repr(remote)
    copy = pickle.loads(pickle.dumps(remote))
    assert copy == remote
    assert copy.storage_options == {"secret": "hunter2"}
    assert (copy.requests, Remote().requests) == (3, 32)
    assert copy.disk_cache.folder == tmp_path / "c"
    assert replace(remote, cache=None).disk_cache is None
    assert hash(copy) == hash(remote)
