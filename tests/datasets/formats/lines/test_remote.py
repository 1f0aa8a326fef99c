"""Line files on a web server, in a store, and on the Hugging Face hub, which a local folder replaces here."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import feedline
from feedline.datasets import JSONLines, Remote, TextLines
from feedline.datasets.formats.lines import index
from feedline.datasets.formats.lines import source as source_module
from feedline.datasets.storage.blob import RetryPolicy
from feedline.errors import CorruptSource, SourceChanged, SourceError
from tests.datasets.formats.lines.writing import FORMS, all_of, lines_of, taken, write
from tests.datasets.storage.servers import Request, WebServer, web_server

COUNT = 300


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small file need many blocks and many requests."""
    for module in (index, source_module):
        monkeypatch.setattr(module, "BLOCK_BYTES", 100)
        monkeypatch.setattr(module, "PACKED_BYTES", 300)
    monkeypatch.setattr(index, "_LEAST_UNIT", 50)
    monkeypatch.setattr("feedline.datasets.storage.content.REMOTE_BLOCK", 200)
    monkeypatch.setattr(source_module, "CACHE_BYTES", 0)
    monkeypatch.setattr("feedline.datasets.storage.ranges.REMOTE_GAP", 50)
    monkeypatch.setattr("feedline.datasets.formats.lines.format.SECTION_BYTES", 250)
    monkeypatch.setattr("feedline.datasets.storage.ahead.REMOTE_CHUNK", 200)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", 100)
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "www").mkdir()
    with web_server(tmp_path / "www") as server:
        yield server


# Any, throughout: datasets and options of any kind.
def check(dataset: Any, expected: list[Any]) -> None:
    assert len(dataset) == len(expected)
    order = list(range(len(expected) - 1, -1, -7))
    assert dataset.__getitems__(order) == [expected[i] for i in order]
    for stream in (dataset.stream(), pickle.loads(pickle.dumps(dataset)).stream()):
        iterator = iter(stream)
        assert taken(iterator, 40) == expected[:40]
        again = iter(stream)
        again.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert list(again) == expected[40:]
    assert sorted(all_of(dataset.stream(shuffle=True))) == sorted(expected)
    dataset.close()


@pytest.mark.parametrize(("ending", "is_split"), FORMS[:5])
def test_files_on_a_web_server(server: WebServer, ending: str, is_split: bool, tmp_path: Path) -> None:
    write(server.folder / f"a.jsonl{ending}", lines_of(range(COUNT)), is_split=is_split)
    dataset = JSONLines(f"{server.address}/a.jsonl{ending}", cache=tmp_path / "cache")
    check(dataset, list(range(COUNT)))
    asked = len(server.requests)
    assert len(JSONLines(f"{server.address}/a.jsonl{ending}", cache=tmp_path / "cache")) == COUNT
    assert len(server.requests) <= asked + 2, "the index is kept"


def test_streams_and_random_access_share_a_compressed_file(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All continue to decompress where one of them stopped."""
    monkeypatch.setattr("feedline.datasets.storage.disk_cache.PIECE_BYTES", 200)
    write(server.folder / "a.jsonl.gz", lines_of(range(COUNT)), is_split=False)
    remote = Remote(cache=tmp_path / "shards", cache_bytes=100_000)
    dataset = JSONLines(f"{server.address}/a.jsonl.gz", cache=tmp_path / "index", part_bytes=300, remote=remote)
    assert len(dataset) == COUNT
    passes, found = [iter(dataset.stream(shuffle=True, seed=seed)) for seed in (1, 2)], [list[int](), list[int]()]
    for first in range(0, COUNT, 20):
        for one, samples in zip(passes, found, strict=True):
            samples += one.take(20)
        dataset.close()  # so that blocks are read again
        assert dataset.__getitems__(range(first, first + 20)) == list(range(first, first + 20))
    assert found[0] != found[1]
    assert [sorted(samples) for samples in found] == [list(range(COUNT))] * 2
    dataset.close()


def test_workers_read_from_a_server_that_drops_connections(server: WebServer) -> None:
    write(server.folder / "a.jsonl.gz", lines_of(range(COUNT)), is_split=True)
    dataset = JSONLines(f"{server.address}/a.jsonl.gz")
    len(dataset)
    server.fault = lambda request: "drop" if request.number % 3 == 0 else None
    for source in (dataset, dataset.stream()):
        assert [n for batch in feedline.Loader(source, 8, workers=2) for n in batch.tolist()] == list(range(COUNT))
    dataset.close()


def test_a_batch_needs_few_requests(server: WebServer) -> None:
    write(server.folder / "a.txt", lines_of(range(1000)))
    dataset = TextLines(f"{server.address}/a.txt", cache=False)
    len(dataset)
    dataset[0]
    server.requests.clear()
    assert dataset.__getitems__([500, 990, 505, 510, 515, 991]) == ["500", "990", "505", "510", "515", "991"]
    assert len(server.requests) == 2


def test_a_server_that_goes_down_for_good(server: WebServer) -> None:
    write(server.folder / "a.jsonl", lines_of(range(COUNT)))
    stream = JSONLines(f"{server.address}/a.jsonl", remote=Remote(retries=1, read_ahead=1)).stream()

    def fault(request: Request) -> str | None:
        return "refuse" if request.start > 400 else None

    server.fault = fault
    iterator, found = iter(stream), list[int]()
    while len(made := iterator.take(10)) == 10:
        found += made
    found += made
    with pytest.raises(SourceError, match=r"a\.jsonl cannot be read at byte"):
        iterator.take(10)
    assert 0 < len(found) < COUNT
    assert iterator.has_broken_off, "a sample of another file would not be the next sample"
    state = iterator.state_dict()
    server.fault = lambda request: None
    again = iter(stream)
    again.load_state_dict(state)
    assert [*found, *again] == list(range(COUNT))
    assert [*found, *iterator] == list(range(COUNT)), "the same pass can also continue"
    stream.close()


def test_passwords_are_not_shown(server: WebServer) -> None:
    write(server.folder / "a.jsonl", b"1\n?\n")
    dataset = JSONLines(server.address.replace("//", "//ada:hunter2@") + "/a.jsonl?token=t0ken", cache=False)
    stream = dataset.stream()
    texts = [repr(dataset), repr(stream), repr(dataset.files)]
    for read in (lambda: dataset[1], lambda: list(stream)):
        with pytest.raises(CorruptSource, match=r"127\.0\.0\.1:\d+/a\.jsonl\?\*\*\*, line 2: ") as caught:
            read()
        texts.append(str(caught.value))
    texts += [repr(dataset), str(next(iter(stream))), json.dumps(iter(stream).state_dict())]
    assert not [text for text in texts if "hunter2" in text or "t0ken" in text]
    dataset.close()
    stream.close()


# -- stores ---


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def test_files_in_a_store(memory: Any, tmp_path: Path) -> None:
    for number, (ending, is_split) in enumerate(FORMS):
        path = write(tmp_path / f"x{ending}", lines_of(range(number * 40, number * 40 + 40)), is_split=is_split)
        memory.pipe(f"/bucket/train/part-{number}.jsonl{ending}", path.read_bytes())
    memory.pipe("/bucket/train/_SUCCESS.jsonl", b"?")
    memory.pipe("/bucket/train/notes.txt", b"hello\n")
    expected = list(range(40 * len(FORMS)))
    check(JSONLines("memory://bucket/train/"), expected)
    check(TextLines(["memory://bucket/train", tmp_path / "x.xz"]), ["hello", *map(str, expected[-40:])])
    with pytest.raises(SourceError, match=r"memory://bucket/none"):
        len(TextLines("memory://bucket/none/"))


class Hub(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The parts of Hugging Face's file system that feedline uses, over a local folder."""

    protocol = "hf"
    root = ""
    opened: list[tuple[str, str]] = []  # noqa: RUF012  (of all instances)

    def _path(self, path: str) -> str:
        return os.path.join(self.root, self._strip_protocol(path))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        name, own = self._strip_protocol(path), self._path(path)
        if not os.path.exists(own):
            raise FileNotFoundError(name)
        if os.path.isdir(own):
            return {"name": name, "type": "directory", "size": 0}
        stat = os.stat(own)
        return {"name": name, "type": "file", "size": stat.st_size, "blob_id": f"{stat.st_mtime_ns:x}"}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        name = self._strip_protocol(path)
        found = [self.info(f"{name}/{one}") for one in sorted(os.listdir(self._path(path)))]
        return found if detail else [one["name"] for one in found]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.opened.append((path, str(options.get("cache_type"))))
        return open(self._path(path), mode)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fsspec.register_implementation("hf", Hub, clobber=True)
    folder = tmp_path / "hub" / "datasets" / "ada" / "poems"
    folder.mkdir(parents=True)
    monkeypatch.setattr(Hub, "root", str(tmp_path / "hub"))
    Hub.opened.clear()
    yield folder
    sys.modules["fsspec.registry"]._registry.pop("hf")  # the real one is found again


def test_lines_on_the_hub(hub: Path, tmp_path: Path) -> None:
    for number in range(3):
        values = range(number * 40, number * 40 + 40)
        write(hub / f"part-{number}.jsonl.gz", lines_of(values), is_split=True)
    check(JSONLines("hf://datasets/ada/poems/*.jsonl.gz", cache=tmp_path / "cache"), list(range(120)))
    assert len(list((tmp_path / "cache").glob("*.line-index"))) == 3, "an object has a tag, so its index is kept"
    check(JSONLines("hf://datasets/ada/poems"), list(range(120)))
    assert {cache for _, cache in Hub.opened} == {"none"}, "only the requested lines are read"
    dataset = JSONLines("hf://datasets/ada/poems/part-0.jsonl.gz")
    assert dataset[0] == 0
    write(hub / "part-0.jsonl.gz", lines_of(range(41)))
    with pytest.raises(SourceChanged, match=r"hf://datasets/ada/poems/part-0\.jsonl\.gz was changed"):
        dataset[39]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_damaged_piece_of_the_disk_cache_is_requested_again(
    server: WebServer, tmp_path: Path, ending: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.datasets.storage.disk_cache.PIECE_BYTES", 200)
    write(server.folder / f"a.jsonl{ending}", lines_of(range(COUNT)))
    address, pieces = f"{server.address}/a.jsonl{ending}", tmp_path / "pieces"
    dataset = JSONLines(address, cache=False, remote=Remote(cache=pieces))

    def values() -> list[Any]:
        if is_stream:
            return all_of(dataset.stream())
        return dataset.__getitems__(range(COUNT))

    for _ in range(3):
        assert values() == list(range(COUNT))
        for piece in pieces.glob("?*-*"):
            content = piece.read_bytes()
            with open(piece, "r+b") as file:  # in place, as a failing disk does
                file.write(bytes([content[0] ^ 1]))
    dataset.close()
