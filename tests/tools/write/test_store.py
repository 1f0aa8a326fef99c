"""Outputs in object stores: an in-memory store, and a local S3 server with and without faults."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.datasets import ParquetDataset, Remote, TarDataset, open_dataset
from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption, CorruptSource, PackError, SourceChanged, SourceError
from feedline.tools.write import Stage, store
from feedline.tools.write.inspection import inspect
from tests import program_server
from tests.datasets.storage.servers import StoreProxy, first, needs_s3, options_for, s3_bucket, store_proxy
from tests.tools.write.stores import Mixed, canonical, content, mixed

pack = functools.partial(feedline.pack, workers=0)
shards = functools.partial(pack, format="tar", samples_per_shard=16)
FIELDS = {"image": "image.npy", "vector": "vector.npy", "label": "cls", "name": "name.txt"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


# Any, throughout: fsspec and boto3 have no types.
@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty in-memory store."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def files_below(memory: Any, folder: str) -> dict[str, bytes]:
    """Return the content of all files below a folder of the in-memory store, by relative path."""
    root = f"/{folder}/"
    return {name.removeprefix(root): memory.cat(name) for name in memory.find(root)}


def without_place(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the content of files; the manifest without the entries that only stores have."""
    manifest = json.loads(files["feedline.json"])
    for name in ("place", "crc32"):
        manifest.pop(name, None)
    manifest["shards"] = [{**shard, "tag": ""} for shard in manifest["shards"]]
    return {**files, "feedline.json": manifest}


@pytest.mark.parametrize("format_", ["tar", "parquet"])
def test_the_output_has_the_same_bytes_as_a_local_one(memory: Any, tmp_path: Path, format_: str) -> None:
    act = functools.partial(pack, Mixed(), format=format_, samples_per_shard=33)
    local, remote = act(tmp_path / "out"), act("memory://bucket/out/")
    assert without_place(files_below(memory, "bucket/out")) == without_place(content(tmp_path / "out"))
    assert (remote.count, remote.size, remote.resumed) == (100, local.size, 0)
    assert remote.path == "memory://bucket/out/"
    call = remote.line.partition("feedline.Loader(feedline.datasets.")[2].partition("), batch_size")[0]
    with closing(eval(f"{call})", {"TarDataset": TarDataset, "ParquetDataset": ParquetDataset})) as dataset:
        assert canonical(dataset.__getitems__(list(range(100)))) == canonical(list(map(mixed, range(100))))


# -- interruption -----------------------------------------------------------------------------------------------------


class Lost(Exception):
    """Stands for a machine that is lost."""


@pytest.mark.parametrize(
    ("format_", "replaces", "step"),
    [
        ("tar", True, 2),
        *(pytest.param(*case, 1, marks=pytest.mark.slow) for case in (("tar", False), ("parquet", True))),
    ],
)
def test_a_run_that_ends_at_any_request_is_resumed(
    memory: Any, monkeypatch: pytest.MonkeyPatch, format_: str, replaces: bool, step: int
) -> None:
    """Until the new output is complete, readers get all of the old one."""
    act = functools.partial(pack, Mixed(70), format=format_, samples_per_shard=30)
    old = functools.partial(pack, Mixed(), format=format_, samples_per_shard=30)
    ask, left = Storage.ask, [1000]

    def asked(self: Any, *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Lost
        return ask(self, *arguments, **options)

    monkeypatch.setattr(store, "_UPLOADS", 1)  # so that requests have a fixed order
    monkeypatch.setattr(Storage, "ask", asked)
    if replaces:
        old("memory://bucket/base/out")
    memory.pipe("/bucket/base/beside", b"")
    base = files_below(memory, "bucket/base")
    act("memory://bucket/base/out", overwrite=True)
    expected = without_place(files_below(memory, "bucket/base/out"))
    seen, resumed = [], set()
    for point in itertools.count(0, step):
        place = f"at-{point}/out"
        memory.pipe({f"/bucket/at-{point}/{name}": data for name, data in base.items()})
        left[0] = point
        try:
            act(f"memory://bucket/{place}", overwrite=replaces)
        except Lost:
            left[0] = 1000
        else:
            break
        is_complete = "feedline.json" in files_below(memory, f"bucket/{place}")
        seen.append(labels_in(f"memory://bucket/{place}", format_) if is_complete else [])
        resumed.add(act(f"memory://bucket/{place}", overwrite=is_complete).resumed)
        assert without_place(files_below(memory, f"bucket/{place}")) == expected, f"ended at request {point}"
    assert [labels for labels, _ in itertools.groupby(seen)] == [OLD if replaces else [], NEW]
    assert resumed == {0, 24, 47, 70} or (step > 1 and len(resumed) > 2)


def interrupt(act: Any) -> None:
    """Interrupt a run after some shards."""

    def stop(stage: Stage) -> None:
        if stage.done > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act(report=stop)


@pytest.mark.parametrize("change", ["vanished", "not noted"])
def test_only_shards_that_the_job_file_names_are_delivered(memory: Any, change: str) -> None:
    act = functools.partial(shards, Mixed())
    act("memory://bucket/whole")
    interrupt(functools.partial(act, "memory://bucket/out"))
    if change == "vanished":
        memory.rm("/bucket/out/shard-000001.tar")
    else:
        memory.pipe("/bucket/out/shard-000099.tar", b"uploaded by a run that was killed before it was noted")
    assert (act("memory://bucket/out").resumed == 0) == (change == "vanished")
    assert without_place(files_below(memory, "bucket/out")) == without_place(files_below(memory, "bucket/whole"))


def test_an_incomplete_output_cannot_be_opened_by_its_folder(memory: Any) -> None:
    interrupt(functools.partial(shards, Mixed(), "memory://bucket/out"))
    for act in (lambda: len(TarDataset("memory://bucket/out/")), lambda: inspect("memory://bucket/out")):
        with pytest.raises(SourceError, match=r"memory://bucket/out/?: .* run the same command again"):
            act()
    with closing(TarDataset("memory://bucket/out/*.tar")) as dataset:
        assert 0 < len(dataset) < 100


# -- existing outputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_packed", "name", "data"),
    [
        (False, "notes.txt", b"precious"),
        (False, ".packing/a.json", b"precious"),
        (False, "feedline.json", b'{"shards": [], "format": "tar", "count": 0}'),
        (True, "shard-000099.tar", b"precious"),
        (True, ".index/shard-000099.tar", b"precious"),
    ],
)
def test_objects_that_feedline_did_not_write_are_left_alone(
    memory: Any, is_packed: bool, name: str, data: bytes
) -> None:
    if is_packed:
        shards(Mixed(), "memory://bucket/out")
    memory.pipe(f"/bucket/out/{name}", data)
    before = files_below(memory, "bucket/out")
    with pytest.raises(BadOption, match=name):
        shards(Mixed(70), "memory://bucket/out", overwrite=True, restart=True)
    assert files_below(memory, "bucket/out") == before


def labels_in(address: str, format_: str, **options: Any) -> list[int]:
    """Return the labels of all samples of an output."""
    opened: Any = ParquetDataset if format_ == "parquet" else TarDataset
    field = "label" if format_ == "parquet" else "cls"
    with closing(opened(f"{address}/", field, cache=False, **options)) as dataset:
        return [int(label) for label in dataset.__getitems__(list(range(len(dataset))))]


OLD, NEW = [number % 10 for number in range(100)], [number % 10 for number in range(70)]


def test_only_the_same_job_is_resumed_and_only_on_request_an_output_is_replaced(memory: Any) -> None:
    act = functools.partial(shards, out="memory://bucket/out")
    interrupt(functools.partial(act, Mixed(99)))
    with pytest.raises(BadOption, match=r"memory://bucket/out was left by a run with samples=99.*--restart"):
        act(Mixed())
    assert act(Mixed(), restart=True).resumed == 0
    with pytest.raises(BadOption, match=r"memory://bucket/out exists already.*--overwrite"):
        act(Mixed(70))
    interrupt(functools.partial(act, Mixed(70), overwrite=True))
    assert labels_in("memory://bucket/out", "tar") == OLD
    pack(Mixed(80), "memory://bucket/out", format="tar", samples_per_shard=50, overwrite=True, restart=True)
    assert len(labels_in("memory://bucket/out", "tar")) == 80
    assert len(files_below(memory, "bucket/out")) == 5, "two shards, two indices, one manifest; the others are deleted"


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_copy_can_be_read_and_a_missing_or_damaged_index_is_rebuilt(memory: Any, tmp_path: Path) -> None:
    """Copies have other versions; sizes and checksums are still verified."""
    shards(Mixed(), tmp_path / "out")
    memory.put(f"{tmp_path}/out/", "/bucket/copy/", recursive=True)
    index = "/bucket/copy/.index/shard-00000{}.tar".format
    memory.rm(index(3))
    memory.pipe({index(1): memory.cat(index(1))[:-9], index(2): memory.cat(index(4))})
    with closing(TarDataset("memory://bucket/copy/", FIELDS, cache=False)) as dataset:
        assert canonical(dataset.__getitems__([*range(100)])) == canonical([*map(mixed, range(100))])


def test_damage_anywhere_in_the_manifest_is_detected(memory: Any) -> None:
    shards(Mixed(), "memory://bucket/out")
    whole = memory.cat("/bucket/out/feedline.json")
    for place in range(0, len(whole), 397):
        memory.pipe("/bucket/out/feedline.json", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptSource):
            len(TarDataset("memory://bucket/out/", cache=False))
    manifest = json.loads(whole)
    del manifest["crc32"]
    manifest["shards"][0]["name"] = "../secret"
    memory.pipe("/bucket/out/feedline.json", json.dumps(manifest).encode())
    with pytest.raises(CorruptSource, match="name"):
        len(TarDataset("memory://bucket/out/", cache=False))


# -- a local S3 server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_bucket() as client:
        yield client


@pytest.fixture
def proxy(s3: Any) -> Iterator[StoreProxy]:
    with store_proxy(s3.meta.endpoint_url) as proxy:
        proxy.page = 1000
        yield proxy


@pytest.fixture
def remote(proxy: StoreProxy) -> Remote:
    return Remote(storage_options=options_for(proxy))


def objects(s3: Any, folder: str) -> dict[str, bytes]:
    """Return the content of all objects below a folder of the bucket, by relative path."""
    found = s3.list_objects_v2(Bucket="bucket", Prefix=f"{folder}/").get("Contents", [])
    return {
        one["Key"].removeprefix(f"{folder}/"): s3.get_object(Bucket="bucket", Key=one["Key"])["Body"].read()
        for one in found
    }


def kinds(proxy: StoreProxy) -> Counter[str]:
    """Return how many requests of each kind arrived."""
    return Counter("LIST" if "list-type" in path else method for method, path in proxy.asked)


@needs_s3
@pytest.mark.parametrize("format_", ["tar", pytest.param("parquet", marks=pytest.mark.slow)])
def test_s3_gets_the_same_bytes_and_a_fixed_number_of_requests_per_shard(
    s3: Any, proxy: StoreProxy, remote: Remote, tmp_path: Path, format_: str
) -> None:
    """Two requests at most list the folder and check for an object with its name; nothing is read back."""
    asked = {}
    for count in (2, 5):
        proxy.asked.clear()
        act = functools.partial(pack, Mixed(), format=format_, samples_per_shard=100 // count)
        act(f"s3://bucket/{format_}-{count}", remote=remote)
        asked[count] = kinds(proxy)
    assert without_place(objects(s3, f"{format_}-5")) == without_place(content(act(tmp_path / "out").path))
    writes = 3 if format_ == "tar" else 2  # the shard, its index, the job file
    assert asked[5] - asked[2] == Counter({"PUT": 3 * writes, "HEAD": 3})
    assert asked[2]["LIST"] == asked[5]["LIST"] <= 2
    assert asked[2]["GET"] == asked[5]["GET"] == 0
    proxy.asked.clear()
    field = "cls" if format_ == "tar" else "label"
    with closing(open_dataset(f"s3://bucket/{format_}-2", fields=field, remote=remote)) as dataset:
        assert dataset.__getitems__(list(range(100))) == OLD
    assert set(kinds(proxy)) == {"GET"}, "nothing is listed or scanned"


@needs_s3
def test_readers_notice_a_replaced_object(s3: Any, remote: Remote) -> None:
    shards(Mixed(), "s3://bucket/seen", remote=remote)
    key = "seen/shard-000000.tar"
    data = s3.get_object(Bucket="bucket", Key=key)["Body"].read()
    s3.put_object(Bucket="bucket", Key=key, Body=data[:-1] + b"\1")
    with closing(TarDataset("s3://bucket/seen/", "cls", cache=False, remote=remote)) as dataset:
        for act in (lambda: dataset[0], lambda: list(dataset.stream())):
            with pytest.raises(SourceChanged, match=r"shard-000000.tar was changed"):
                act()


@needs_s3
def test_store_errors_in_the_middle_of_a_run_are_explained_and_it_resumes(
    s3: Any, proxy: StoreProxy, remote: Remote, tmp_path: Path
) -> None:
    place = "s3://bucket/expired"
    proxy.fault = lambda method, path, headers: "ExpiredToken" if method == "PUT" and "/shard-000003" in path else None
    with pytest.raises(PackError, match=rf"(?s)credentials.*3 complete shards are in {place}.*resumes") as caught:
        shards(Mixed(), place, remote=remote)
    assert "secret" not in str(caught.value)
    assert "feedline.json" not in objects(s3, "expired")
    with pytest.raises(PackError, match="s3://nowhere/out"):
        shards(Mixed(), "s3://nowhere/out", remote=remote)
    proxy.fault = first(3, "drop", "PUT")  # such requests are repeated
    assert shards(Mixed(), place, remote=remote).resumed == 44
    assert without_place(objects(s3, "expired")) == without_place(content(shards(Mixed(), tmp_path / "out").path))


class Large:
    """Samples of 3 MiB."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(3 << 18, index, np.float32)}


@pytest.mark.slow
@needs_s3
def test_large_shards_are_uploaded_in_parts_with_verified_checksums(
    s3: Any, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(1 << 30))  # otherwise the server keeps files open
    monkeypatch.setattr(store, "_PART", 5 << 20)  # the smallest that S3 allows
    pack(Large(), "s3://bucket/large", format="tar", samples_per_shard=4, remote=remote)
    manifest = json.loads(objects(s3, "large")["feedline.json"])
    assert all(shard["tag"].endswith('-3"') for shard in manifest["shards"]), "in three parts"
    with closing(TarDataset("s3://bucket/large/", "x.npy", cache=False, remote=remote)) as dataset:
        assert [int(dataset[number][7]) for number in (0, 3, 7)] == [0, 3, 7]


@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_upload_is_detected(memory: Any, monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    plain = type(memory).put_file

    def put_file(self: Any, path: str, target: str, **options: Any) -> None:
        plain(self, path, target, **options)
        if target.endswith("/shard-000001.tar") and ".index" not in target:
            data = bytearray(self.cat(target))
            data[700] ^= 4
            self.pipe(target, bytes(data) if verify else bytes(data[:-5]))

    monkeypatch.setattr(type(memory), "put_file", put_file)
    with pytest.raises(PackError, match=r"shard-000001.tar"):
        shards(Mixed(), "memory://bucket/out", verify=verify)
    assert "feedline.json" not in files_below(memory, "bucket/out")


# -- on another engine ------------------------------------------------------------------------------------------------


ON_RAY = """
import fsspec, ray
from feedline.tools.cli.main import main
from tests.tools.write.test_store import files_below, without_place

options = ["--format", "tar", "--samples-per-shard", "16", "--quiet", "--workers", "2", "--engine"]
for engine in ("thread", "ray"):
    assert main(["pack", "tests.tools.write.stores:Mixed", f"memory://bucket/{engine}", *options, engine]) == 0
memory = fsspec.filesystem("memory")
assert len(files_below(memory, "bucket/ray")) == 15
assert without_place(files_below(memory, "bucket/ray")) == without_place(files_below(memory, "bucket/thread"))
ray.shutdown()
"""


@pytest.mark.ray
def test_ray_workers_write_the_same_output() -> None:
    ended = program_server.run(ON_RAY, cwd=Path(__file__).resolve().parents[3])
    assert ended.returncode == 0, ended.stderr


def test_a_faster_later_upload_is_not_noted_before_an_earlier_one(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of eight shards cannot be uploaded, the third can. A resumed run continues after the first."""
    third, put_file = threading.Event(), type(memory).put_file

    def put(system: Any, path: str, target: str, **options: object) -> None:
        if target.endswith("/out/shard-000001.tar"):
            assert third.wait(60)
            raise PackError("no")
        put_file(system, path, target, **options)
        if target.endswith("/out/shard-000002.tar"):
            third.set()

    act = functools.partial(pack, Mixed(), "memory://bucket/out", format="tar", samples_per_shard=13)
    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "put_file", put)
        with pytest.raises(PackError, match="no"):
            act()
    assert act().resumed == 13
    assert labels_in("memory://bucket/out", "tar") == OLD
