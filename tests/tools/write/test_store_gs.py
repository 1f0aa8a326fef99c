"""Outputs in Google Cloud Storage, with a local server: simple and resumable uploads, faults, reading."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.systems import close_system, make_system
from feedline.errors import PackError
from tests.datasets.storage.servers import StoreProxy, gs_server, store_proxy
from tests.tools.write.stores import Mixed, content
from tests.tools.write.test_store import OLD, Large, labels_in, without_place

pack = functools.partial(feedline.pack, workers=0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


@pytest.fixture(scope="module")
def behind() -> Iterator[str]:
    with gs_server() as address:
        yield address


@pytest.fixture
def proxy(behind: str) -> Iterator[StoreProxy]:
    with store_proxy(behind) as proxy:
        yield proxy


# Any, throughout: fsspec has no types.
@pytest.fixture
def system(behind: str) -> Iterator[Any]:
    """A file system for looking at the objects."""
    system = make_system("gs", {"endpoint_url": behind, "token": "anon"})
    yield system
    close_system(system)


def options_for(proxy: StoreProxy) -> dict[str, Any]:
    return {"endpoint_url": proxy.address, "token": "anon"}


def objects(system: Any, folder: str) -> dict[str, bytes]:
    """Return the content of all objects of a folder."""
    system.invalidate_cache()
    root = f"bucket/{folder}/"
    return {name.removeprefix(root): system.cat_file(name) for name in system.find(root)}


@pytest.mark.parametrize("format_", ["tar", "parquet"])
def test_the_output_has_the_same_bytes_as_a_local_one(
    proxy: StoreProxy, system: Any, tmp_path: Path, format_: str
) -> None:
    act = functools.partial(pack, Mixed(), format=format_, samples_per_shard=30)
    act(f"gs://bucket/{format_}", remote=Remote(storage_options=options_for(proxy)))
    found = objects(system, format_)
    assert without_place(found) == without_place(content(act(tmp_path / "out").path))
    assert all(shard["tag"].isdecimal() for shard in json.loads(found["feedline.json"])["shards"]), (
        "tags are generations"
    )
    assert not [path for method, path in proxy.asked if method == "GET" and "alt=media" in path], "MD5s are compared"
    assert labels_in(f"gs://bucket/{format_}", format_, remote=Remote(storage_options=options_for(proxy))) == OLD


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_resumable_upload_survives_a_broken_connection(
    proxy: StoreProxy, system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file: Any = type(system)._put_file
    defaults = tuple(5 << 20 if one == 50 << 20 else one for one in put_file.__defaults__)
    monkeypatch.setattr(put_file, "__defaults__", defaults)  # three requests for a shard
    left = ["drop"]

    def drop(method: str, path: str, headers: Any) -> str | None:
        return left.pop() if left and "upload_id=" in path and "bytes 5242880-" in headers["Content-Range"] else None

    proxy.fault = drop
    act = functools.partial(pack, Large(), format="tar", samples_per_shard=4)
    act("gs://bucket/large", remote=Remote(storage_options=options_for(proxy)))
    assert not left
    assert len([path for _, path in proxy.asked if "upload_id=" in path]) == 2 * 3 + 1, "only one request was repeated"
    assert without_place(objects(system, "large")) == without_place(content(act(tmp_path / "out").path))
    with closing(
        TarDataset("gs://bucket/large/", "x.npy", cache=False, remote=Remote(storage_options=options_for(proxy)))
    ) as dataset:
        assert [int(dataset[number][7]) for number in (0, 5, 7)] == [0, 5, 7]


def test_a_run_is_resumed_after_a_rejected_upload(proxy: StoreProxy, system: Any, tmp_path: Path) -> None:
    act = functools.partial(pack, Mixed(), format="tar", samples_per_shard=16)
    uploads: list[str] = []

    def refuse(method: str, path: str, headers: Any) -> str | None:
        if method == "POST" and "uploadType" in path:
            uploads.append(path)
            return "AccessDenied" if len(uploads) > 9 else None
        return None

    proxy.fault = refuse
    with pytest.raises(PackError, match=r"(?s)gs://bucket/refused.*cannot be written.*complete shard.*resumes"):
        act("gs://bucket/refused", remote=Remote(storage_options=options_for(proxy)))
    assert "feedline.json" not in objects(system, "refused")
    proxy.fault = lambda method, path, headers: None
    assert act("gs://bucket/refused", remote=Remote(storage_options=options_for(proxy))).resumed > 0
    assert without_place(objects(system, "refused")) == without_place(content(act(tmp_path / "out").path))
