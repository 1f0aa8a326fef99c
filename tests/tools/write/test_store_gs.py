"""Outputs in Google Cloud Storage, with a local server: simple and resumable uploads, faults, reading."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import Remote
from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.systems import close_system, make_system
from feedline.errors import PackError
from tests.datasets.storage.servers import StoreProxy, gs_server, store_proxy
from tests.tools.write.stores import Mixed, content
from tests.tools.write.test_store import OLD, Large, labels_in, without_place


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


# Any, throughout: fsspec has no types.
@pytest.fixture(scope="module")
def behind() -> Iterator[str]:
    with gs_server() as address:
        yield address


@pytest.fixture
def served(behind: str) -> Iterator[tuple[StoreProxy, Any]]:
    """A server behind a proxy, and a file system for looking at its objects."""
    with store_proxy(behind) as proxy:
        system = make_system("gs", {"endpoint_url": behind, "token": "anon"})
        yield proxy, system
        close_system(system)


def objects(system: Any, folder: str) -> dict[str, bytes]:
    """Return the content of all objects of a folder."""
    system.invalidate_cache()
    root = f"bucket/{folder}/"
    return {name.removeprefix(root): system.cat_file(name) for name in system.find(root)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_uploads_are_confirmed_repeated_and_resumed(
    served: tuple[StoreProxy, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, system = served
    remote = Remote(storage_options={"endpoint_url": proxy.address, "token": "anon"})
    act: Any = functools.partial(feedline.pack, workers=0, format="tar")
    # Small shards are sent in one request each. After some, the store refuses.
    uploads: list[str] = []

    def refuse(method: str, path: str, headers: Any) -> str | None:
        if method == "POST" and "uploadType" in path:
            uploads.append(path)
            return "AccessDenied" if len(uploads) > 9 else None
        return None

    small = functools.partial(act, Mixed(), samples_per_shard=16)
    proxy.fault = refuse
    with pytest.raises(PackError, match=r"(?s)gs://bucket/small.*cannot be written.*complete shard.*resumes"):
        small("gs://bucket/small", remote=remote)
    assert "feedline.json" not in objects(system, "small")
    proxy.fault = lambda method, path, headers: None
    assert small("gs://bucket/small", remote=remote).resumed > 0
    found = objects(system, "small")
    assert without_place(found) == without_place(content(small(tmp_path / "small").path))
    assert all(shard["tag"].isdecimal() for shard in json.loads(found["feedline.json"])["shards"]), "generations"
    assert not [path for _, path in proxy.asked if "alt=media" in path and "/shard-" in path], "MD5s are compared"
    assert labels_in("gs://bucket/small", "tar", remote=remote) == OLD
    # A large shard is sent in several requests. If the connection breaks, one of them is repeated.
    put_file: Any = type(system)._put_file
    defaults = tuple(5 << 20 if one == 50 << 20 else one for one in put_file.__defaults__)
    monkeypatch.setattr(put_file, "__defaults__", defaults)  # three requests for a shard
    left = ["drop"]

    def drop(method: str, path: str, headers: Any) -> str | None:
        return left.pop() if left and "upload_id=" in path and "bytes 5242880-" in headers["Content-Range"] else None

    proxy.fault = drop
    large = functools.partial(act, Large(), samples_per_shard=4)
    large("gs://bucket/large", remote=remote)
    assert not left
    assert len([path for _, path in proxy.asked if "upload_id=" in path]) == 2 * 3 + 1
    assert without_place(objects(system, "large")) == without_place(content(large(tmp_path / "large").path))
