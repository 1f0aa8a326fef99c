"""Google Cloud Storage, imitated by a server on the loopback."""

import io
import multiprocessing
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage.storage import Storage
from feedline.datasets.storage.systems import close_system, make_system
from feedline.errors import SourceChanged, SourceError
from tests.datasets.storage.servers import gs_server, knows_generations, store_proxy

pytestmark = pytest.mark.sample(4)

DATA = bytes(i * 7 % 251 for i in range(100_000))
COUNT = 30


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


@pytest.mark.slow
def test_ranges_of_an_object(storage: Storage, system: Any) -> None:
    system.pipe_file("bucket/some/a ä.bin", DATA)
    blob = storage.open("gs://bucket/some/a ä.bin")
    assert blob.size == len(DATA)
    assert blob.tag
    for start, stop in ((0, 1), (5, 70_000), (99_999, 100_000), (0, 100_000)):
        assert blob.read(start, stop) == DATA[start:stop]
    blob.check()
    blob.close()


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


@pytest.mark.parametrize(("mode", "workers"), [("stream", 0), ("stream", 2), ("random", 2)])
def test_shards(mode: Any, workers: int, system: Any, options: dict[str, Any], tmp_path: Any) -> None:
    for shard in range(3):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for number in range(shard, COUNT, 3):
                member = tarfile.TarInfo(f"{number:04d}.cls")
                text = str(number).encode()
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
        system.pipe_file(f"bucket/{shard}.tar", packed.getvalue())
    table = TarDataset(
        "gs://bucket/{0..2}.tar", "cls", cache=tmp_path / "indices", remote=Remote(storage_options=options)
    )
    dataset: Any = table.stream() if mode == "stream" else table
    assert next(iter(dataset)) in range(COUNT)  # before workers are forked
    found = [number for batch in feedline.Loader(dataset, 4, workers=workers) for number in batch.tolist()]
    assert sorted(found) == list(range(COUNT))
    dataset.close()


def test_the_environment_selects_the_server(
    system: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.pipe_file("bucket/c", b"abc")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", options["endpoint_url"])
    storage = quick({"token": "anon"})
    assert storage.open("gs://bucket/c").read(0, 3) == b"abc"
    storage.close()


def _read(storage: Storage) -> None:
    assert storage.open("gs://bucket/d").read(0, 3) == b"abc"


def test_a_forked_process_reads_after_its_parent_did(options: dict[str, Any], storage: Storage, system: Any) -> None:
    system.pipe_file("bucket/d", b"abc")
    _read(storage)
    child = multiprocessing.get_context("fork").Process(target=lambda: _read(quick(options)))
    child.start()
    child.join(100)
    assert child.exitcode == 0
    child.close()
