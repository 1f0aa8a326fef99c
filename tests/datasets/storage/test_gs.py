"""Google Cloud Storage, imitated by a server on the loopback."""

from collections.abc import Iterator
from typing import Any

import pytest

from feedline.datasets import Remote
from feedline.datasets.storage.storage import Storage
from feedline.datasets.storage.systems import close_system, make_system
from feedline.errors import SourceChanged, SourceError
from tests.datasets.storage.servers import gs_server, knows_generations, store_proxy


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with gs_server() as address:
        yield {"endpoint_url": address, "token": "anon"}


@pytest.fixture
def system(options: dict[str, Any]) -> Iterator[Any]:
    """Return a file system to write objects with."""
    system = make_system("gs", options)
    yield system
    close_system(system)


def quick(options: dict[str, Any]) -> Storage:
    return Storage(Remote(retries=2, timeout_s=10, storage_options=options))


@pytest.fixture
def storage(options: dict[str, Any]) -> Iterator[Storage]:
    storage = quick(options)
    yield storage
    storage.close()


def test_a_missing_object(storage: Storage) -> None:
    with pytest.raises(SourceError, match=r"gs://bucket/none\.tar: there is no such object"):
        storage.open("gs://bucket/none.tar")


def test_a_changed_object_is_detected(options: dict[str, Any], system: Any) -> None:
    system.pipe_file("bucket/x/b", b"0123456789")
    with store_proxy(options["endpoint_url"]) as proxy:
        proxy.fault = knows_generations(system)
        storage = quick({**options, "endpoint_url": proxy.address})
        ((address, version),) = storage.listed("gs://bucket/x/*").items()
        blob, listed = storage.open(address), storage.open(address, version)
        assert (blob.size, blob.tag) == version
        assert blob.read(2, 4) == b"23"
        system.pipe_file("bucket/x/b", b"9876543210")
        for one in (blob, listed):  # between two ranges; between listing and reading
            with pytest.raises(SourceChanged, match="was changed or deleted after it was listed or opened"):
                one.read(4, 6)
        assert storage.open(address).read(0, 4) == b"9876"
        storage.close()


def test_the_environment_selects_the_server(
    system: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.pipe_file("bucket/some/a ä.bin", b"abc")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", options["endpoint_url"])
    storage = quick({"token": "anon"})
    assert storage.open("gs://bucket/some/a ä.bin").read(0, 3) == b"abc"
    storage.close()
