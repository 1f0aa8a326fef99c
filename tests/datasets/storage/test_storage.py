import asyncio
import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.datasets import Remote
from feedline.datasets.storage import systems
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.storage import Storage, local_path, protocol_of
from feedline.datasets.storage.systems import close_system
from feedline.errors import BadOption, SourceChanged, SourceError
from tests.datasets.storage.servers import S3_OPTIONS, s3_bucket


@pytest.mark.parametrize(
    ("address", "protocol"),
    [
        *((address, "") for address in ("a.tar", "/data/a.tar", "file:///data/a.tar", "C:/data", "://a")),
        *(("HTTP://host/a", "http"), ("s3://b/a", "s3"), ("x+y://b", "x+y")),
    ],
)
def test_protocols(address: str, protocol: str) -> None:
    assert protocol_of(address) == protocol
    assert local_path("file:///a/b.tar") == local_path("/a/b.tar") == "/a/b.tar"


def test_a_storage_can_be_closed_twice_and_used_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    storage = Storage()
    for _ in range(2):
        blob = storage.open(f"file://{tmp_path}/a")
        assert blob.read(0, 2) == b"he"
        blob.close()
        storage.close()
        storage.close()


DATA = bytes(i * 7 % 251 for i in range(100_000))


def quick(**options: object) -> Storage:
    return Storage(Remote(retries=2, timeout_s=10, storage_options=options))


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_bucket() as client:
        client.put_object(Bucket="bucket", Key="some/a ä.bin", Body=DATA)
        yield client


@pytest.fixture
def storage(s3: Any) -> Iterator[Storage]:
    storage = quick(**S3_OPTIONS, endpoint_url=s3.meta.endpoint_url)
    yield storage
    storage.close()


def test_missing_objects_and_folders(storage: Storage) -> None:
    for address in ("s3://bucket/none.tar", "s3://none/a.tar"):
        with pytest.raises(SourceError, match=f"{address}: there is no such object"):
            storage.open(address)
    with pytest.raises(SourceError, match="not an object"):
        storage.open("s3://bucket/some")


def test_a_changed_object_is_detected(storage: Storage, s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="b", Body=b"0123456789")
    blob = storage.open("s3://bucket/b")
    s3.put_object(Bucket="bucket", Key="b", Body=b"9876543210")
    with pytest.raises(SourceChanged, match="s3://bucket/b"):
        blob.read(0, 5)


def test_another_version_than_the_known_one_is_detected(storage: Storage, s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="b", Body=b"0123456789")
    known = storage.listed("s3://bucket/[b]")["s3://bucket/b"]
    assert known == (10, storage.open("s3://bucket/b").tag)
    assert storage.open("s3://bucket/b", known).read(2, 4) == b"23"
    s3.put_object(Bucket="bucket", Key="b", Body=b"9876543210")
    with pytest.raises(SourceChanged, match="s3://bucket/b"):
        storage.open("s3://bucket/b", known).read(2, 4)


def test_any_fsspec_protocol_is_supported(s3: Any) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/here/a.bin", DATA)
    storage = quick()
    opened = storage.open("memory://here/a.bin", storage.listed("memory://here/*")["memory://here/a.bin"])
    assert opened.read(3, 8) == DATA[3:8]
    fsspec.filesystem("memory").pipe_file("/here/a.bin", DATA[1:])
    with pytest.raises(SourceChanged, match="was changed while it was read"):
        opened.check()
    with pytest.raises(SourceChanged, match="has changed since it was looked at"):
        storage.open("memory://here/a.bin", Version(len(DATA), opened.tag))
    storage.close()
    fsspec.filesystem("memory").rm("/here", recursive=True)


def test_a_store_that_ignores_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe_file("/here/a.bin", DATA)
    storage = quick()
    blob = storage.open("memory://here/a.bin")
    monkeypatch.setattr(type(system), "cat_file", lambda *_, **__: DATA)
    with pytest.raises(SourceError, match="sent 100000 bytes where 5 were requested"):
        blob.read(3, 8)
    storage.close()
    system.rm("/here", recursive=True)


def test_a_named_pipe_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is not a file"):
        Storage().open(str(tmp_path / "pipe"))


def test_unknown_protocols_and_options(s3: Any) -> None:
    with pytest.raises(BadOption, match="nonsense://"):
        Storage().open("nonsense://bucket/a.tar")
    with (
        contextlib.closing(quick(endpoint="http://127.0.0.1:9")) as storage,
        pytest.raises(SourceError, match=r"'endpoint'. Are the names in storage_options= right"),
    ):
        storage.open("s3://bucket/a.tar")


SECRETS = {"secret": "hunter2", "key": "AKIA1234", "client_kwargs": {"aws_session_token": b"t0ken"}}


@pytest.mark.parametrize("more", [{"skip_instance_cache": True}, {"config_kwargs": {"nonsense": "hunter2"}}])
def test_errors_do_not_reveal_values_of_options(more: dict[str, Any], s3: Any) -> None:
    storage = quick(**SECRETS, **more, endpoint_url="http://127.0.0.1:9")
    with pytest.raises((BadOption, SourceError)) as caught:
        storage.open("s3://bucket/a")
    text = "".join(traceback.format_exception(caught.value))
    assert all(secret not in text for secret in ("hunter2", "AKIA1234", "t0ken"))
    storage.close()


class LeakyStore:
    """A store whose errors contain the credentials."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def _strip_protocol(self, address: str) -> str:
        return address

    def invalidate_cache(self) -> None:
        pass

    def info(self, path: str) -> dict[str, Any]:
        raise self._kind(f"AKIA1234 signed it with hunter2 for {path}")


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, OSError])
def test_secrets_are_removed_from_errors_of_a_store(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "make_system", lambda *_: LeakyStore(kind))
    with pytest.raises(SourceError, match=r"\*\*\* signed it with \*\*\*") as caught:
        Storage(Remote(retries=0, storage_options=SECRETS)).open("s3://bucket/a@b")
    text = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in text
    assert "AKIA1234" not in text
    assert "s3://bucket/a@b" in text


def test_a_file_system_can_be_closed_on_the_thread_of_its_event_loop() -> None:
    done = asyncio.Event()

    async def close() -> None:
        done.set()

    async def collect_garbage() -> None:
        close_system(SimpleNamespace(_session=SimpleNamespace(close=close), loop=asyncio.get_running_loop()))
        await asyncio.wait_for(done.wait(), 60)

    asyncio.run(collect_garbage())
